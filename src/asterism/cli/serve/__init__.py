"""Commands on the server: start it, log in, tokens, MCP."""
