"""Agents that execute tasks: ACP, A2A, and a language model with tools.

``agent_prompt``   the prompt for work of an agent, and the result in its answer
``acp_executor``   agents that speak ACP, as child processes: ``AcpAgent``
``a2a_executor``   remote agents that speak A2A: ``A2aAgent``
``model_worker``   a language model with tools as the agent of a device: ``ModelAgent``

The SDKs are extras (``acp``, ``a2a``, ``model``), imported with the first use.

Invariants: the core knows no protocol of agents. What an agent asks of its device is judged by the device policy
(``models/judged_actions``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.agents.a2a_executor import A2aAgent as A2aAgent
    from asterism.agents.acp_executor import AcpAgent as AcpAgent
    from asterism.agents.agent_prompt import AgentFailed as AgentFailed
    from asterism.agents.model_worker import ModelAgent as ModelAgent

__getattr__, __dir__ = lazy_names(__name__)
