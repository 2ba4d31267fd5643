"""Stores of simulated peers, the links between them, and the checks of what must hold."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asterism.core.run.merge import is_forgotten, own_result, own_story
from asterism.core.run.run import CLAIMED, COMPLETED, PROCESSING, Run
from asterism.peers.exchange import Exchange, PeerUnreachable
from asterism.store import row_codec
from asterism.store.memory import MemoryStore
from asterism.store.protocol import Notice, PutCopy, PutRun, Query, Watch, Write
from asterism.testing.simulator.checker import Checker, Execution, OrderedWatches
from asterism.testing.simulator.machines import Machine

if TYPE_CHECKING:
    from asterism.testing.simulator.peer_world import PeerWorld


@dataclass
class PeerChecker(Checker):
    """A checker of several stores. Executions may overlap while links are cut, so it only records them; it checks that
    a device that loses a run is notified.

    ``excused`` are runs for which not all promises can hold (the harsher faults of ``peer_world``), among them those
    that a store deleted; ``forgot`` counts these. ``recorded`` maps each run to the device, epoch and time of each
    completion. ``stores`` are all stores by name, which is also the name of the one device of each. ``remembered`` is
    whether none of them deletes ended runs."""

    recorded: dict[str, set[tuple[str, int, float]]] = field(default_factory=dict)
    lost: int = 0
    excused: set[str] = field(default_factory=set)
    forgot: int = 0
    stores: dict[str, PeerStore] = field(default_factory=dict)
    remembered: bool = False

    def begins(self, run: str, epoch: int, machine: Machine) -> Execution:
        self.note(f"{run[-6:]} epoch {epoch} begins on {machine.name}")
        execution = Execution(run, epoch, machine, self.now())
        self.executions.append(execution)
        return execution

    def check_store_write(
        self, store: str, before: Run | None, write: PutRun | PutCopy, writes: Sequence[Write]
    ) -> None:
        after = write.run
        mark = f" (left to {write.left_to[-4:]})" if isinstance(write, PutCopy) else ""
        self.note(
            f"{store}: {after.id[-6:]} {before.status if before else '-'} -> {after.status} epoch {after.epoch} "
            f"{after.device or ''} {after.story[-1].why}{mark}"
        )
        if before is None:
            return
        if after.revision <= before.revision:
            self.broken(f"{store}: run {after.id} went from revision {before.revision} to {after.revision}")
        if not set(before.story) <= set(after.story):
            self.broken(f"{store}: the story of run {after.id} lost an entry")
        continues = own_story(after)[: len(own_story(before))] == own_story(before)
        if before.ended and continues and len(own_story(after)) > len(own_story(before)):
            self.broken(f"{store}: run {after.id} had ended as {before.status} and continued")
        if continues and after.status is COMPLETED and before.status is not COMPLETED and isinstance(write, PutRun):
            self._completed(store, after)
        if is_forgotten(after) and not is_forgotten(before):
            self._check_forgotten(store, after)
        if not continues:
            self._check_loser_is_notified(store, before, after, writes)

    def forget(self, store: str) -> None:
        """A store was rolled back: what its device completed since may be done again, perhaps in the same epoch."""
        for run_id, known in self.recorded.items():
            self.recorded[run_id] = {completed for completed in known if completed[0] != store}

    def _completed(self, store: str, run: Run) -> None:
        [result] = own_result(run)
        if result.device != store:
            return  # taken over from another store
        known = self.recorded.setdefault(run.id, set())
        if (result.device, result.epoch) in {(device, epoch) for device, epoch, _ in known}:
            self.broken(f"{store}: run {run.id} was completed twice in epoch {result.epoch} by {result.device}")
        known.add((result.device, result.epoch, result.ended_at))

    def _check_forgotten(self, store: str, run: Run) -> None:
        """A run that is closed as forgotten must not continue in another store."""
        for name, other in self.stores.items():
            record = other._runs.get(run.id)
            is_open = name != store and record is not None and not record.ended
            if is_open and (self.remembered or run.id not in other._feed.left):
                self.broken(f"{store}: run {run.id} was closed as forgotten, and it is open in {name}")

    def _check_loser_is_notified(self, store: str, before: Run, after: Run, writes: Sequence[Write]) -> None:
        if before.device != store:
            return
        owner = before.status in (CLAIMED, PROCESSING) and before.grant != after.grant
        result = before.status is COMPLETED and own_result(before) != own_result(after)
        if not owner and not result:
            return
        self.lost += 1
        notices = [
            write
            for write in writes
            if isinstance(write, Notice) and (write.kind, write.run) == ("conflict", before.id)
        ]
        if not notices or notices[0].device != before.device:
            self.broken(f"{store}: {before.device} lost run {before.id} (it was {before.status}), and was not notified")


class PeerStore(MemoryStore):
    """The store of one machine, which survives its crashes."""

    def __init__(self, name: str, clock: Callable[[], float], checker: PeerChecker) -> None:
        super().__init__(clock)
        self.name, self._checker = name, checker
        self.url = f"sim:{name}"
        self._watches = OrderedWatches()

    async def commit(self, writes: Sequence[Write]) -> None:
        before = {write.run.id: self._runs.get(write.run.id) for write in writes if isinstance(write, PutRun | PutCopy)}
        await super().commit(writes)
        for write in writes:
            if isinstance(write, PutRun | PutCopy):
                self._checker.check_store_write(self.name, before[write.run.id], write, writes)

    async def prune(self, ended_before: float, limit: int, **options: Any) -> int:
        before = set(self._runs)
        number = await super().prune(ended_before, limit, **options)
        self._checker.excused |= before - set(self._runs)
        self._checker.forgot += number
        return number


def copy_of(store: MemoryStore) -> dict[str, Any]:
    """Return what a copy of the store's file would contain. Records are immutable, so only their containers are
    copied."""
    data = {name: _copied(value) for name, value in vars(store).items() if name not in _OF_THE_PROCESS}
    feed = copy.copy(store._feed)
    vars(feed).update({name: _copied(value) for name, value in vars(feed).items()})
    return {**data, "_feed": feed}


def put_back(store: MemoryStore, data: dict[str, Any]) -> None:
    """Roll a store back to a copy, which can be used again."""
    vars(store).update(data)
    vars(store).update(copy_of(store))


_OF_THE_PROCESS = ("clock", "url", "name", "_watches", "_checker", "_feed")


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(part) if isinstance(part, set) else part for key, part in value.items()}
    return copy.copy(value)


class Disk:
    """The store as its own machine reaches it: always, unless the machine is frozen or dead."""

    def __init__(self, store: PeerStore, machine: Machine) -> None:
        self._store, self._machine = store, machine
        self.url, self.clock = store.url, store.clock

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def ask(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            await self._machine.gate()
            return await method(*args, **kwargs)

        return ask

    def watch(self, topics: frozenset[str]) -> Watch:
        return self._store.watch(topics)

    async def close(self) -> None:
        """Nothing to close: the disk survives a crash."""


GIVES_UP = 2.0
"""How long a machine waits for an answer, in seconds."""


class Link:
    """The link from one machine to another: it is cut, loses messages and answers, and delivers some twice."""

    def __init__(self, world: PeerWorld, here: str, there: str) -> None:
        self._world, self._here, self._there = world, here, there

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._deliver(lambda exchange: exchange.answer(self._here, _through_json(message)), repeats=True)  # type: ignore[no-any-return]

    async def fetch_blob(self, blob: str, run: str) -> bytes:
        data = await self._deliver(lambda exchange: exchange.read_blob(self._here, blob, run))
        if data is None:
            raise PeerUnreachable("the peer does not have the blob")
        return bytes(data)

    async def send_blob(self, blob: str, data: bytes) -> None:
        await self._deliver(lambda exchange: exchange.receive_blob(self._here, blob, data))

    async def _deliver(self, ask: Callable[[Exchange], Any], repeats: bool = False) -> Any:
        world, chance = self._world, self._world.chance
        await world.latest_life(self._here).machine.gate()
        await asyncio.sleep(0.005 + 0.05 * chance.random())
        life = world.lives.get(self._there)
        if world.is_cut(self._here, self._there) or life is None or chance.random() < world.losses:
            await asyncio.sleep(GIVES_UP)
            raise PeerUnreachable(f"{self._there} does not answer")
        if repeats and chance.random() < world.losses:
            asyncio.get_running_loop().call_later(chance.uniform(0.1, 10.0), self._again, ask)
        answering = asyncio.ensure_future(ask(life.exchange))
        life.tasks.append(answering)
        done, _ = await asyncio.wait([answering], timeout=GIVES_UP)
        cut = world.is_cut(self._here, self._there) or chance.random() < world.losses
        if not done or cut or answering.cancelled():
            raise PeerUnreachable(f"no answer of {self._there}")
        return _through_json(answering.result())

    def _again(self, ask: Callable[[Exchange], Any]) -> None:
        """Deliver the same message a second time, late, and drop the answer."""
        life = self._world.lives.get(self._there)
        if life is not None:
            life.tasks.append(asyncio.ensure_future(ask(life.exchange)))


def _through_json(value: Any) -> Any:
    """Return a value as it arrives over a wire."""
    return value if value is None or isinstance(value, bytes) else json.loads(json.dumps(value))


# -- at the end --------------------------------------------------------------------------------------------------------


MOST_SYNCS = 6
"""After how many syncs two stores must have nothing left to send to each other."""


async def check(world: PeerWorld) -> None:
    """Check all stores, long after the last fault. The checker records what does not hold."""
    broken = world.checker.broken
    everything = {name: {run.id: run for run in await store.find(Query())} for name, store in world.stores.items()}
    ids = sorted(set().union(*everything.values()))
    for run_id in ids:
        records = {name: runs.get(run_id) for name, runs in everything.items()}
        if _is_left_alone(world, run_id, records):
            broken(f"run {run_id} is open, and each store leaves it to another")
        texts = {None if run is None else text_of(run) for run in records.values()}
        if not world.agreed(run_id, list(records.values())):
            records_text = "; ".join(f"{name}: {_short(run)}" for name, run in records.items())
            broken(f"run {run_id} has {len(texts)} records long after all links were repaired: {records_text}")
        for run in records.values():
            if run is not None and not run.ended:
                broken(f"run {run_id} is still {run.status}: {run.story[-1]}")
    for acknowledged in world.checker.acknowledged:
        if acknowledged.id in world.excused:
            continue
        record = everything["m0"].get(acknowledged.id)
        if record is None or not set(acknowledged.story) <= set(record.story):
            broken(
                f"run {acknowledged.id} was acknowledged as {acknowledged.status}, but its story does not contain that"
            )
    _check_results(world, everything["m0"])
    if world.splits is not None and not any(world.splits):
        _check_nothing_was_contested(world)
    if not world.checker.violations:
        await _check_exchanges_are_complete(world)
    for name, store in world.stores.items():
        for problem in await store.check():
            broken(f"{name}: {problem}")
        for _, notice in await store.notices(limit=1_000_000):
            if notice.kind in ("refused", "impostor") and notice.run not in world.excused:
                broken(f"{name} refused an honest peer: {notice.message}")


def _is_left_alone(world: PeerWorld, run_id: str, records: Mapping[str, Run | None]) -> bool:
    knowing = {name: run for name, run in records.items() if run is not None}
    open_somewhere = any(not run.ended for run in knowing.values())
    return open_somewhere and all(run_id in world.stores[name]._feed.left for name in knowing)


def _check_results(world: PeerWorld, runs: Mapping[str, Run]) -> None:
    """The record holds each result that was acknowledged to a device, once."""
    for run in runs.values():
        if run.id in world.excused:
            continue
        results = [(result.device, result.epoch, result.ended_at) for result in (*own_result(run), *run.superseded)]
        recorded = world.checker.recorded.get(run.id, set())
        if len(results) != len(set(results)) or set(results) != recorded:
            world.checker.broken(f"run {run.id} was completed as {sorted(recorded)}, and says {sorted(results)}")


def _check_nothing_was_contested(world: PeerWorld) -> None:
    """No link was ever cut: each run had one owner at a time."""
    if world.checker.lost:
        world.checker.broken("a device lost a run, and no link was cut")
    begun = [(execution.run, execution.epoch) for execution in world.checker.executions]
    for run, epoch in sorted(set(begun)):
        if begun.count((run, epoch)) > 1:
            world.checker.broken(f"run {run} was begun twice in epoch {epoch}, and no link was cut")


async def _check_exchanges_are_complete(world: PeerWorld) -> None:
    for name, life in world.lives.items():
        for other in tuple(world.stores):
            if other != name:
                for _ in range(MOST_SYNCS):  # the machines sync meanwhile, so a late record may still be on its way
                    result = await life.exchange.sync(other, Link(world, name, other))
                    if not (result.sent or result.taken or result.refused):
                        break
                else:
                    world.checker.broken(f"{name} and {other} keep sending each other the same records: {result}")


def text_of(run: Run) -> str:
    """A run as text, without its revision, which counts the writes of one store."""
    return row_codec.to_text(row_codec.record_of(run.changed(revision=0, _told=((), ""))))


def _short(run: Run | None) -> str:
    return "none" if run is None else f"{run.status} epoch {run.epoch} {run.device} {len(run.story)} entries"
