"""The server: an HTTP API over a store, with credentials, problem documents and event streams.

======================  ================================================================================================
``app``                 the application, from the tables of endpoints and of operations
``endpoint``            ``Endpoint``, ``Call``: who calls, what they may do, the body, errors, for all routes
``request_guard``       Host and Origin, callers, rates, headers of every answer
``problems``            errors as problem documents (RFC 9457)
``openapi``             the OpenAPI document, from the same table
``health_routes``       health, login, who one is
``stream_routes``       the events of a plan and of the fleet, and metrics as text
``event_stream``        server-sent events; ``plan_feed`` and ``fleet_feed`` are their sources
``http_service``        listens, and stops in good order
``gateway_routes``      the HTTP of ``gateway``, which devices without a store ask
======================  ================================================================================================

Routes call the same functions of the library as the commands do. A rule is never written twice: what a plan, a run or a
series allows is decided below this package.
"""
