"""Clients of the Model Context Protocol: the operations as tools.

``mcp_server``     the MCP server: tools, resources and prompts over one store, for any transport
``mcp_tools``      the table of tools: operations, described for models
``mcp_tasks``      work that goes on: the Tasks extension, a handle that the client polls
``mcp_approvals``  edits that wait for a person, asked through elicitation
``mcp_resources``  plan, story and report as resources; prompts that teach a client to edit
``mcp_http``       MCP over streamable HTTP, on the server, with its sessions, and over standard input and output

The SDK is the extra ``mcp``, imported with the first use.

Invariants: a client goes through the same checks as a person: what a credential allows is decided by the server.
"""
