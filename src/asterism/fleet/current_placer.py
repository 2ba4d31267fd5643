"""The placer of a fleet object: its devices, read again after a second, and slots reserved for assignments under way.

The store counts the runs that devices own, so an assignment is in the next read once its write is done. Until then only
this process knows of it. Many runs that are created at the same time would otherwise all go to the same free slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from asterism.base.clock import Clock
from asterism.core.run.placement import Choice, Placer

PLACER_AGE = 1.0
"""How long a placer is used, in seconds. Assignments of this process are counted meanwhile."""

ReadPlacer = Callable[[Placer | None], Awaitable[Placer]]
"""Reads the devices. The argument is the placer before, which knows whose turn it is."""


class CurrentPlacer:
    """``read`` reads the devices from the store. One read serves all who wait for it."""

    def __init__(self, read: ReadPlacer, clock: Clock) -> None:
        self._read, self._clock = read, clock
        self._reading = asyncio.Lock()
        self._reads = 0  # how many have begun
        self._known: tuple[float, Placer] | None = None
        self._under_way: dict[str, str] = {}  # run -> device of an assignment whose write is not acknowledged
        self._just_written: list[str] = []  # devices of assignments that were acknowledged during a read

    async def get(self, *, fresh: bool = False) -> Placer:
        """The placer, at most ``PLACER_AGE`` old."""
        reads = self._reads
        if not fresh and (placer := self._young) is not None:
            return placer
        async with self._reading:
            # another caller may have read it meanwhile; a read that began before this call is not fresh
            if (not fresh or self._reads > reads) and (placer := self._young) is not None:
                return placer
            self._reads += 1
            self._just_written.clear()
            began = self._clock.time()
            placer = await self._read(None if self._known is None else self._known[1])
            # those that were written during the read may be counted in it: a slot that seems taken for a second is
            # better than two runs for one slot
            for device in (*self._under_way.values(), *self._just_written):
                placer.reserve(device)
            self._known = (began, placer)
        return placer

    @property
    def _young(self) -> Placer | None:
        """The placer, if it may still be used."""
        if self._known is None or self._clock.time() - self._known[0] > PLACER_AGE:
            return None
        return self._known[1]

    def choose(self, run_id: str, choose: Callable[[Placer], Choice]) -> tuple[Placer, Choice]:
        """Choose a device for a run, and reserve a slot of it until ``settle``. The placer must have been read."""
        assert self._known is not None
        placer = self._known[1]
        self._free(run_id)  # a second try to write the same run
        choice = choose(placer)
        if choice.owner is not None:
            placer.record_assignment(choice.owner.device)
            self._under_way[run_id] = choice.owner.device
        return placer, choice

    def settle(self, run_id: str, *, written: bool) -> None:
        """The write of a run that was given to ``choose`` has ended. If it was not ``written``, its slot is free."""
        if not written:
            self._free(run_id)
        elif (device := self._under_way.pop(run_id, None)) is not None and self._reading.locked():
            self._just_written.append(device)

    def _free(self, run_id: str) -> None:
        device = self._under_way.pop(run_id, None)
        if device is not None and self._known is not None:
            self._known[1].release(device)
