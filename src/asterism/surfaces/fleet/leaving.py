"""Signals for a device: the first asks it to finish and leave, the second to hand its work back, the third ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys

from asterism.runtime.fleet.agent import DeviceAgent

log = logging.getLogger("asterism.device")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130


async def run_until_told(agent: DeviceAgent, drain_for: float) -> int:
    """Run a device until it has left. Returns the exit code."""
    work = asyncio.create_task(agent.run())
    leaving = _Leaving(agent, work, drain_for)
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, leaving.told)
    try:
        await work
    except asyncio.CancelledError:
        if not leaving.before_joining:
            raise
        return INTERRUPTED
    finally:
        leaving.close()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    return 0


class _Leaving:
    """``drain_for`` is how long what is being done may take to finish, in seconds."""

    def __init__(self, agent: DeviceAgent, work: asyncio.Task[None], drain_for: float) -> None:
        self._agent, self._work, self._drain_for = agent, work, drain_for
        self._signals = 0
        self._timer: asyncio.TimerHandle | None = None
        self.before_joining = False

    def told(self) -> None:
        self._signals += 1
        if not self._agent.joined.is_set():
            self.before_joining = True
            self._work.cancel()
        elif self._signals == 1:
            self._drain()
        elif self._signals == 2:
            self._hand_back()
        else:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(INTERRUPTED)  # its children end with it

    def _drain(self) -> None:
        held = len(self._agent.desk)
        if held:
            runs = "1 run" if held == 1 else f"{held} runs"
            log.info("leaving: %s may take %g s to finish; the next signal hands back at once", runs, self._drain_for)
        else:
            log.info("leaving")
        self._agent.drain()
        self._timer = asyncio.get_running_loop().call_later(self._drain_for, self._hand_back)

    def _hand_back(self) -> None:
        if len(self._agent.desk):
            log.info("handing back what is not finished")
        self._agent.drain(hand_back=True)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
