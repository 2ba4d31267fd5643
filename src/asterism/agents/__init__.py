"""Language models and agents: what they read of a plan, and what they may do to it.

``untrusted_text``   marks what devices, issues and files say, so that a model can tell it from its instructions
``agent_prompt``     the prompt for work of an agent, and the result in its answer
``judged_actions``   what an agent asks of its device, judged by the device policy
``acp_executor``     agents that speak ACP, as child processes: ``AcpAgent``
``a2a_executor``     remote agents that speak A2A: ``A2aAgent``
``model_worker``     a language model with tools as the agent of a device: ``ModelAgent``
``agent_runners``    the agent of a device from a command, a URL or the name of a model

The SDKs are extras (``acp``, ``a2a``, ``model``), imported with the first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.agents.a2a_executor import A2aAgent
    from asterism.agents.acp_executor import AcpAgent
    from asterism.agents.agent_prompt import AgentFailed
    from asterism.agents.model_worker import ModelAgent

__all__ = ["A2aAgent", "AcpAgent", "AgentFailed", "ModelAgent"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "asterism.agents.a2a_executor": ["A2aAgent"],
        "asterism.agents.acp_executor": ["AcpAgent"],
        "asterism.agents.agent_prompt": ["AgentFailed"],
        "asterism.agents.model_worker": ["ModelAgent"],
    },
)
