"""Peer worlds with harsh faults: stores delete ended runs early, clocks jump, files are rolled back.

After such a fault stores cannot agree on every run. Those runs are *excused* from some of the promises
(``peer_checks``); all others are not. Every run has to end in every store that knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from asterism.core.run.run import COMPLETED, Run
from asterism.fleet import retention
from asterism.fleet.fleet import Fleet
from asterism.peers.exchange import Exchange
from asterism.store.protocol import Query, feed_of
from asterism.testing.simulator.peer_stores import copy_of, put_back
from asterism.testing.simulator.peer_world import FLOWS, NAMES, PeerWorld

CHECK_INTERVAL = 5.0
KEEP = 6.0
"""How long ended runs are kept, in seconds."""

MARGIN = 1.0
"""How much longer, since the difference of two clocks is known only approximately."""


def _asks_often(fleet: Fleet) -> Exchange:
    return Exchange(fleet, check_interval=CHECK_INTERVAL)


class ForgetfulWorld(PeerWorld):
    """Stores delete ended runs from time to time."""

    skews = (0.0, 0.0, 3.0)

    def __init__(self, seed: int, **terms: Any) -> None:
        super().__init__(seed, **{"make_exchange": _asks_often, **terms})

    async def introduce(self) -> None:
        await super().introduce()
        for store in self.stores.values():
            await Fleet(store).configure(keep=KEEP)

    async def something_bad(self) -> None:
        if self.chance.random() < 0.6:
            await super().something_bad()
        name = self.chance.choice(NAMES)
        store = self.stores[name]
        before = store.clock() - KEEP - MARGIN
        number = await retention.prune(store, before, 500)
        self.witness.note(f"{name} forgets {number} runs")

    def agreed(self, run_id: str, records: Sequence[Run | None]) -> bool:
        """A store may have deleted the run, or have heard of it too late. Those that know it agree."""
        if None in records:
            self.excused.add(run_id)
        return super().agreed(run_id, [run for run in records if run is not None])


class JumpingWorld(PeerWorld):
    """The clocks of stores jump forward and back."""

    async def something_bad(self) -> None:
        if self.chance.random() < 0.7:
            await super().something_bad()
            return
        name = self.chance.choice(NAMES)
        jump = self.chance.choice([-40.0, -3.0, 3.0, 40.0, 7000.0, -self.jumped[name]])
        self.jumped[name] += jump
        self.witness.note(f"the clock of {name} jumps by {jump:g} s")


class PutBackWorld(PeerWorld):
    """The file of a store is copied, and rolled back to the copy later."""

    def __init__(self, seed: int, **terms: Any) -> None:
        super().__init__(seed, **{"make_exchange": _asks_often, **terms})
        self.witness.remembered = True
        self._copies: dict[str, dict[str, Any]] = {}
        self.put_back = 0

    async def something_bad(self) -> None:
        if self.chance.random() < 0.6:
            await super().something_bad()
            return
        name = self.chance.choice(NAMES)
        if name not in self._copies:
            self.witness.note(f"the store of {name} is copied")
            self._copies[name] = copy_of(self.stores[name])
            return
        if name in self.lives:
            self.crash(name)
        await asyncio.sleep(0.5)
        if name in self.lives:  # it was booted meanwhile
            return
        self.witness.excused |= {run.id for store in self.stores.values() for run in await store.find(Query())}
        store = self.stores[name]
        newest = await store.newest()
        put_back(store, self._copies.pop(name))
        self.witness.forget(name)
        self.put_back += 1
        self.witness.note(f"the store of {name} is put back")
        await self._until_its_numbers_are_used_again(Fleet(store, by="person", chance=self.chance), newest)
        self.boot(name)

    async def _until_its_numbers_are_used_again(self, fleet: Fleet, newest: int) -> None:
        """Create runs and cancel them until the numbers of the feed are used again, before any peer is met."""
        while await feed_of(fleet.store).newest() < newest:
            run = await fleet.create(FLOWS[0], {})
            self.witness.acknowledged.append(await fleet.cancel(run.id))

    def agreed(self, run_id: str, records: Sequence[Run | None]) -> bool:
        """A run that was executed twice may have two ends: a store does not accept a peer's word about its own
        device."""
        done = any(run is not None and run.status is COMPLETED for run in records)
        return (done and run_id in self.excused) or super().agreed(run_id, records)
