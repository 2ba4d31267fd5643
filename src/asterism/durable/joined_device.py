"""An orchestrator as a device of its fleet."""

from __future__ import annotations

import asyncio

from asterism.fleet.device.agent import DeviceAgent

HANDING_BACK = 30.0
"""How long it may take to hand back what this process does itself, in seconds."""


class Joined:
    """A device of the fleet for as long as the block lasts. What it does then is handed back."""

    def __init__(self, agent: DeviceAgent) -> None:
        self._agent = agent

    async def __aenter__(self) -> asyncio.Task[None]:
        self._living = asyncio.create_task(self._agent.run())
        joined = asyncio.create_task(self._agent.joined.wait())
        try:
            await asyncio.wait([self._living, joined], return_when=asyncio.FIRST_COMPLETED)
            if self._living.done():
                self._living.result()
        except BaseException:
            self._living.cancel()
            raise
        finally:
            joined.cancel()
        return self._living

    async def __aexit__(self, *error: object) -> None:
        self._agent.drain(hand_back=True)
        try:
            await asyncio.wait([self._living], timeout=HANDING_BACK)
        finally:  # what could not be said by then is found out by others when our time is up
            self._living.cancel()
            await asyncio.gather(self._living, return_exceptions=True)
