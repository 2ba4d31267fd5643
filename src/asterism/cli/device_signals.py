"""Signals for a device: the first asks it to finish and leave, the second to hand its work back, the third ends it.
``asterism device drain`` asks the same as the first, from elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator

from asterism.fleet.device.agent import DeviceAgent

log = logging.getLogger("asterism.device")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130


class Leaving:
    """``drain_for`` is how long what is being done may take to finish, in seconds."""

    def __init__(self, agent: DeviceAgent, drain_for: float) -> None:
        self._agent, self._drain_for = agent, drain_for
        self._asked = 0  # how often it was told to leave
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Signals come here while the block runs."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.told)
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    async def run(self) -> int:
        """Run the device until it has left. Returns the exit code."""
        if self._asked:
            return INTERRUPTED
        self._work = asyncio.create_task(self._agent.run())
        minding = asyncio.create_task(self._mind_the_store())
        try:
            await self._work
        except asyncio.CancelledError:
            if self._agent.joined.is_set():
                raise
            return INTERRUPTED
        finally:
            minding.cancel()
        return 0

    async def _mind_the_store(self) -> None:
        """It may ask the device to leave, too."""
        await self._agent.draining.wait()
        if not self._asked:
            self._asked = 1
            self._leave("a")

    def told(self) -> None:
        self._asked += 1
        if not self._agent.joined.is_set():  # there is nothing to finish
            if self._work is not None:
                self._work.cancel()
        elif self._asked == 1:
            self._leave()
        elif self._asked == 2:
            self._hand_back()
        else:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(INTERRUPTED)  # its children end with it

    def _leave(self, hurry: str = "a second") -> None:
        held = len(self._agent.worker)
        if held:
            runs = "1 run" if held == 1 else f"{held} runs"
            log.info("leaving: %s may take %g s; %s signal hands back now", runs, self._drain_for, hurry)
        else:
            log.info("leaving")
        self._agent.drain()
        self._timer = asyncio.get_running_loop().call_later(self._drain_for, self._hand_back)

    def _hand_back(self) -> None:
        if len(self._agent.worker):
            log.info("handing back what is not finished")
        self._agent.drain(hand_back=True)
