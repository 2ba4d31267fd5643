"""Language models and agents: what they read of a plan, and what they may do to it.

A model that edits and writes plans:

``model_editor``        a language model that edits plans: ``ModelEditor``
``planner``             a plan file from a request in words: ``draft_plan``
``budget``              what a call may cost at most: prices, estimates (the budget: ``durable/editor_budget.py``)
``plan_prompt``         the compact view of a plan that it reads
``edit_schema``         its tools, and the schema of its answer
``edit_filter``         which ends it is asked about at all: ``EditFilter``
``conversation``        the messages about the ends of one cycle, and what the answers mean
``model_calls``         requests to models: streams, timeouts, rate limits, fallback, prices
``model_messages``      a question and its answer, as plain data
``cassette``            its exchanges, in memory or in a store, and their replay
``fleet_surroundings``  devices and output of tasks of a plan in a store
``untrusted_text``      marks what devices, issues and files say, so that a model can tell it from its instructions

Agents that execute tasks:

``agent_prompt``        the prompt for work of an agent, and the result in its answer
``judged_actions``      what an agent asks of its device, judged by the device policy
``acp_executor``        agents that speak ACP, as child processes: ``AcpAgent``
``a2a_executor``        remote agents that speak A2A: ``A2aAgent``
``model_worker``        a language model with tools as the agent of a device: ``ModelAgent``
``agent_runners``       the agent of a device from a command, a URL or the name of a model

Clients of the Model Context Protocol:

``mcp_server``          the MCP server: tools, resources and prompts over one store, for any transport
``mcp_tools``           the table of tools, made of the endpoints of the HTTP API
``mcp_waits``           tools that wait: for events, for the end of a run or of a plan
``mcp_tasks``           the Tasks extension: long work as a handle that the client polls
``mcp_approvals``       edits that wait for a person, asked through elicitation
``mcp_resources``       plan, story and report as resources
``mcp_prompts``         prompts that teach a client to edit
``mcp_stdio``           MCP over standard input and output
``mcp_http``            MCP over streamable HTTP, on the server

The SDKs are extras (``model``, ``acp``, ``a2a``, ``mcp``), imported with the first use.

Invariants: the core knows no model and no protocol of agents. An agent goes through the same checks as a person: what a
plan, a run or a series allows is decided below this package, and what a credential allows is decided by the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.agents.a2a_executor import A2aAgent
    from asterism.agents.acp_executor import AcpAgent
    from asterism.agents.agent_prompt import AgentFailed
    from asterism.agents.budget import Account, Budget, Price, Spent
    from asterism.agents.cassette import Cassette, Exchange, MemoryCassette, StoreCassette
    from asterism.agents.edit_filter import EditFilter
    from asterism.agents.model_calls import ModelCaller, ModelFailed
    from asterism.agents.model_editor import ModelEditor
    from asterism.agents.model_worker import ModelAgent
    from asterism.agents.planner import NoPlan, PlanDraft, draft_plan
    from asterism.agents.untrusted_text import UNTRUSTED_NOTICE, mark_untrusted

__all__ = [
    "UNTRUSTED_NOTICE",
    "A2aAgent",
    "Account",
    "AcpAgent",
    "AgentFailed",
    "Budget",
    "Cassette",
    "EditFilter",
    "Exchange",
    "MemoryCassette",
    "ModelAgent",
    "ModelCaller",
    "ModelEditor",
    "ModelFailed",
    "NoPlan",
    "PlanDraft",
    "Price",
    "Spent",
    "StoreCassette",
    "draft_plan",
    "mark_untrusted",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "asterism.agents.a2a_executor": ["A2aAgent"],
        "asterism.agents.acp_executor": ["AcpAgent"],
        "asterism.agents.agent_prompt": ["AgentFailed"],
        "asterism.agents.budget": ["Account", "Budget", "Price", "Spent"],
        "asterism.agents.cassette": ["Cassette", "Exchange", "MemoryCassette", "StoreCassette"],
        "asterism.agents.edit_filter": ["EditFilter"],
        "asterism.agents.model_calls": ["ModelCaller", "ModelFailed"],
        "asterism.agents.model_editor": ["ModelEditor"],
        "asterism.agents.model_worker": ["ModelAgent"],
        "asterism.agents.planner": ["NoPlan", "PlanDraft", "draft_plan"],
        "asterism.agents.untrusted_text": ["UNTRUSTED_NOTICE", "mark_untrusted"],
    },
)
