"""The server: an HTTP API over a store, with credentials, problem documents and event streams.

======================  ================================================================================================
``app``                 the application, from the tables of endpoints and of operations
``endpoint``            ``Endpoint``, ``Call``: who calls, what they may do, the body, errors, for all routes
``request_guard``       Host and Origin, callers, rates, headers of every answer
``problems``            errors as problem documents (RFC 9457)
``openapi``             the OpenAPI document, from the same table
``service_routes``      what it answers beside the operations: health, logins, streams, metrics
``event_stream``        server-sent events, and the feeds of plans and of the fleet, from which they come
``http_service``        listens, and stops in good order
``gateway_routes``      the HTTP of ``gateway``, which devices without a store ask
======================  ================================================================================================

Routes call the same functions of the library as the commands do. A rule is never written twice: what a plan, a run or a
series allows is decided below this package.
"""
