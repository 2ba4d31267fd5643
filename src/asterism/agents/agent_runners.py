"""The agent of a device from what its operator writes: a command (ACP), a URL (A2A), or the name of a model."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil

from asterism.base.text import clean
from asterism.core.errors import AsterismError
from asterism.fleet.device.agent_work import AgentRunner
from asterism.fleet.policy.device_policy import DevicePolicy


async def agent_runner(place: str, policy: DevicePolicy) -> AgentRunner:
    """The agent at a URL, or the agent that a command starts. Raises AsterismError if there is none, or if its SDK is
    not installed, and PolicyForbids for a URL that the device policy does not allow."""
    if re.match(r"https?://", place, re.IGNORECASE):
        from asterism.agents.a2a_executor import A2aAgent

        return await A2aAgent.connect(place, policy)
    from asterism.agents.acp_executor import AcpAgent, load_acp

    try:
        words = shlex.split(place)
    except ValueError as error:
        raise AsterismError(f"the command of the agent is not valid: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise AsterismError(f"there is no command {words[0] if words else place!r} on this device")
    await asyncio.to_thread(load_acp)
    return AcpAgent(words)


async def model_runner(name: str) -> AgentRunner:
    """A language model with tools, such as ``anthropic:…``. Raises AsterismError if there is no such model, or if its
    library is not installed."""
    from asterism.agents.model_worker import ModelAgent, load_pydantic_ai

    library = await asyncio.to_thread(load_pydantic_ai)
    try:
        await asyncio.to_thread(library.models.infer_model, name)  # a key that is missing is noticed here
    except (library.UserError, ValueError, ImportError) as error:
        raise AsterismError(f"the model {name!r} cannot be used: {clean(str(error))}") from None
    return ModelAgent(name)
