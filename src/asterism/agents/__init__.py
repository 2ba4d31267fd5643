"""Agents: programs and language models that watch, plan and edit, and their ways in.

=====================  =================================================================================================
``mcp_server``         the MCP server: tools, resources and prompts over one store, for any transport
``mcp_tools``          the table of tools, made of the endpoints of the HTTP API
``mcp_waits``          tools that wait: for events, for the end of a run or of a plan
``mcp_tasks``          the Tasks extension: long work as a handle that the client polls
``mcp_approvals``      edits that wait for a person, asked through elicitation
``mcp_resources``      plan, story and report as resources
``mcp_prompts``        prompts that teach a client to edit
``mcp_http``           MCP over streamable HTTP, on the server
=====================  =================================================================================================

Invariants: the core knows no model and no protocol of agents. An agent goes through the same checks as a person: what a
plan, a run or a series allows is decided below this package, and what a credential allows is decided by the server.
"""
