"""The client of the HTTP API, and the documents that it exchanges with a server."""
