"""Helpers that several packages need: text, durations, YAML, expressions, HTTP.

- ``text``: text that is safe to show, also URLs and whole streams; ``secret_mask`` hides the values of secrets.
- ``durations``, ``yaml_lines``: the one parser of durations, and the one reader of YAML files with line numbers.
- ``expressions``: conditions, rules and selections in CEL. ``cel/`` is the metered implementation.
- ``http_server``, ``http_limits``: a server with limits on connections, time, bodies and events; signed deliveries.
- ``startup``: names of a package that are imported on first use, hints for missing extras, the garbage collector.
- ``clock``, ``error_log``: the clock of a machine, ids that sort by time, follow loops; recurring errors in a log.

``base`` imports only ``core``, and no package above it. Modules that need an extra (httpx, uvicorn, rich) import it
when it is first used, or are imported only by code that has checked for it.

Add a module here if two packages need it and it knows nothing about plans in stores, fleets, peers or series.
"""
