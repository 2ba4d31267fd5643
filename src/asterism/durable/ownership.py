"""The time in which this process has a constellation. It may be taken up again within it, as often as it takes."""

from __future__ import annotations

import asyncio
from typing import Any

from asterism.durable.journal_store import OwnershipLost


class Tenure:
    """``ended`` is done when the end of the constellation is durable; ``running`` is set while it can be changed;
    ``paused`` is whether somebody in this process has paused it."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.running = asyncio.Event()
        self.paused = False

    async def running_or_over(self) -> None:
        waiting = asyncio.ensure_future(self.running.wait())
        either: list[asyncio.Future[Any]] = [waiting, self.ended]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    def leave(self, error: OwnershipLost) -> None:
        """It is over, and if that was not the end of the constellation, whoever waits for it is told."""
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # if nobody waits, that is no mistake
