"""Peer worlds: three machines, each with a store, that exchange records over links that fail.

Everything is real except the machines, the links and the work: agents, monitors and exchanges, whose messages go
through JSON. While links are cut, two machines may work on one run. When the links have been repaired for a while, all
stores must have the same record of each run, with one owner, and every device that lost a run must have been notified.

Three worlds have harsher faults: stores delete ended runs early, clocks jump, files are rolled back. After such a fault
stores cannot agree on every run. Those runs are *excused* from some of the promises; all others are not. Every run has
to end in every store that knows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asterism.core.errors import AsterismError, RunRefused
from asterism.core.run.merge import is_forgotten, own_result, own_story
from asterism.core.run.run import CLAIMED, COMPLETED, PROCESSING, Run
from asterism.core.run.work import Workflow
from asterism.fleet import retention
from asterism.fleet.fleet import Fleet
from asterism.peers.exchange import Exchange, PeerUnreachable
from asterism.peers.peer_service import SyncLoop
from asterism.peers.registry import Peer, PeerRegistry
from asterism.store import row_codec
from asterism.store.memory import MemoryStore
from asterism.store.protocol import FEED, Notice, PutCopy, PutRegister, PutRun, Query, Watch, Write, feed_of
from tests.laboratory.simulator.checker import Checker, Execution, OrderedWatches
from tests.laboratory.simulator.fleet_world import Life, World
from tests.laboratory.simulator.machines import Machine


@dataclass
class PeerChecker(Checker):
    """A checker of several stores. Executions may overlap while links are cut, so it only records them; it checks that
    a device that loses a run is notified.

    ``excused`` are runs for which not all promises can hold (the harsher faults below), among them those
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
        self.files_folder = None  # simulated work makes no files

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
    return row_codec.to_text(row_codec.row_of(run.changed(revision=0)))


def _short(run: Run | None) -> str:
    return "none" if run is None else f"{run.status} epoch {run.epoch} {run.device} {len(run.story)} entries"


# -- worlds ------------------------------------------------------------------------------------------------------------


NAMES = ("m0", "m1", "m2")
PAIRS = tuple(itertools.combinations(NAMES, 2))

SPLITS: tuple[frozenset[tuple[str, str]], ...] = tuple(
    frozenset(cut) for count in range(len(PAIRS) + 1) for cut in itertools.combinations(PAIRS, count)
)
"""All ways in which the links between three machines can be cut: none; one, so that two hear of each other from the
third; two, so that one is isolated; all."""

PHASE = 9.0
"""How long a split lasts, in seconds: longer than the timeout of peers."""

PEER_TIMEOUT = 5.0
SETTLING = 20.0
"""How long after the last fault two machines may still work on one run."""

RECOVERY = 600.0
HEARTBEAT, TIMEOUT = 1.0, 4.0
GPU = frozenset({"gpu"})
_FAST: dict[str, Any] = {
    "heartbeat": HEARTBEAT,
    "heartbeat_timeout": TIMEOUT,
    "assignment_timeout": 4.0,
    "claim_timeout": 6.0,
    "no_device_timeout": 500.0,
    "backoff": 0.3,
    "backoff_most": 2.0,
    "losses": 50,
}
FLOWS = (
    Workflow("plain", call="work:do", **_FAST),
    Workflow("retried", call="work:do", retries=2, **_FAST),
    Workflow("picky", call="work:do", needs=GPU, **_FAST),
)

CHECK_INTERVAL = 5.0
KEEP = 6.0
"""How long ended runs are kept, in seconds."""

MARGIN = 1.0
"""How much longer, since the difference of two clocks is known only approximately."""


@dataclass
class PeerLife(Life):
    exchange: Exchange


class PeerWorld(World[PeerLife, PeerChecker]):
    """Three machines with a store each.

    :param splits: the links that are cut, phase by phase; None for random faults of links and machines.
    :param losses: the probability that a message or an answer is lost or delivered twice; None for a random one.
    :param runs: how many runs people create.
    :param trouble: how long random faults last, in seconds.
    :param make_exchange: makes the exchange of each machine.
    """

    series: tuple[str | None, ...] = (None, None, None, "alpha")
    """The series from which that of a run is drawn."""

    skews: tuple[float, ...] = (0.0, 5.0, 86_400.0, -3600.0)
    """The errors of clocks, in seconds, where links fail at random."""

    def __init__(
        self,
        seed: int,
        *,
        splits: Sequence[frozenset[tuple[str, str]]] | None = None,
        losses: float | None = None,
        runs: int = 4,
        trouble: float = 60.0,
        make_exchange: Callable[[Fleet], Exchange] = Exchange,
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(seed, PeerChecker(loop.time))
        self.splits, self._trouble, self.number_of_runs = splits, trouble, runs
        if losses is None:
            losses = self.chance.choice([0.0, 0.05, 0.2]) if splits is None else 0.0
        self.losses = losses
        skews = [0.0, 86_400.0, -86_400.0] if splits is not None else self.chance.choices(self.skews, k=3)
        self.jumped = dict(zip(NAMES, skews, strict=True))
        self.stores = {
            name: PeerStore(name, lambda name=name: 1_000_000.0 + loop.time() + self.jumped[name], self.checker)  # type: ignore[misc]
            for name in NAMES
        }
        self.checker.stores = self.stores
        self.cut: frozenset[tuple[str, str]] = frozenset()
        self._make_exchange = make_exchange
        self._rates = {name: self.chance.uniform(0.97, 1.03) for name in NAMES}

    @property
    def excused(self) -> set[str]:
        return self.checker.excused

    def is_cut(self, name: str, other: str) -> bool:
        return (min(name, other), max(name, other)) in self.cut

    def latest_life(self, name: str) -> PeerLife:
        life = self.lives.get(name)
        return life if life is not None else next(ended for ended in reversed(self.ended) if ended.machine.name == name)

    # -- machines ----------------------------------------------------------------------------------------------------

    async def introduce(self) -> None:
        """Make the machines peers. Of each pair one calls the other, or both do."""
        for name, other in PAIRS:
            directions = self.chance.choice([(True, False), (False, True), (True, True)])
            for here, there, calls in ((name, other, directions[0]), (other, name, directions[1])):
                await PeerRegistry(self.stores[here]).add(there, url=f"sim://{there}" if calls else None)
        for name, store in self.stores.items():  # fixed ids, so that a seed shows the same world each time
            ids = {"store/id": f"store-{name}", FEED: f"feed-{name}"}
            await store.commit([PutRegister(key, {"id": fixed}, None) for key, fixed in ids.items()])
            await Fleet(store).configure(peer_timeout=PEER_TIMEOUT, hold=2.0)

    def boot(self, name: str) -> None:
        machine = Machine(name, self._rates[name], 0.0)
        fleet = Fleet(Disk(self.stores[name], machine), by=name, clock=machine, chance=self.chance)
        agent = self.agent(
            fleet,
            machine,
            name,
            can=GPU if name != "m0" else (),
            slots=self.chance.randint(1, 2),
            heartbeat=HEARTBEAT,
            heartbeat_timeout=TIMEOUT,
            grace=0.3,
            monitor_every=1.3,
            lease=4.0,
        )
        exchange = self._make_exchange(fleet)

        def connect(peer: Peer) -> Link:
            return Link(self, name, peer.name)

        sync_loop = SyncLoop(exchange, connect, interval=2.0, max_backoff=3.0)
        tasks = [asyncio.create_task(_quietly(agent.run())), asyncio.create_task(_quietly(sync_loop.run()))]
        self.lives[name] = PeerLife(machine, agent, tasks, exchange)
        self.checker.note(f"{name} boots")

    def part(self, cut: Iterable[tuple[str, str]]) -> None:
        self.cut = frozenset((name, other) for name, other in cut)
        self.checker.note(f"cut: {', '.join('-'.join(pair) for pair in sorted(self.cut)) or 'nothing'}")

    # -- work --------------------------------------------------------------------------------------------------------

    async def work(self, until: float) -> None:
        """People create runs on machines, and cancel or pause some."""
        for number in range(self.number_of_runs):
            life = self.lives.get(NAMES[number % 3])
            if life is not None and not life.machine.frozen:
                self.spawn(self._create(life.agent.fleet, FLOWS[number % len(FLOWS)]))
            await asyncio.sleep(until / (self.number_of_runs + 1))

    async def _create(self, fleet: Fleet, flow: Workflow) -> None:
        chance = self.chance
        seconds = chance.choice([0.5, 6.0, 20.0, 40.0])
        run_input: dict[str, Any] = {
            "steps": chance.randint(1, 6),
            "seconds": seconds,
            "fails": chance.choice([0.0, 0.0, 0.3]),
        }
        if chance.random() < 0.2:
            run_input["padding"] = "x" * 70_000  # stored as a blob
        series = chance.choice(self.series)
        keep = chance.choice(["epoch", "epoch", "original"])
        run = await fleet.create(flow, run_input, series=series, keep=keep, priority=chance.randint(0, 1))
        self.checker.acknowledged.append(run)
        if chance.random() < 0.25:
            await asyncio.sleep(chance.uniform(0.0, 30.0))
            await self._cancel_or_pause(run.id)

    async def _cancel_or_pause(self, run_id: str) -> None:
        """Cancel or pause a run in any store that knows it."""
        there = [name for name, store in self.stores.items() if await store.run(run_id) is not None]
        if not there:
            return
        fleet = Fleet(self.stores[self.chance.choice(there)], by="person", chance=self.chance)
        with contextlib.suppress(RunRefused):
            if self.chance.random() < 0.5:
                self.checker.acknowledged.append(await fleet.cancel(run_id))
            else:
                self.checker.acknowledged.append(await fleet.pause(run_id, "to look at it"))

    # -- trouble -----------------------------------------------------------------------------------------------------

    async def trouble(self) -> None:
        if self.splits is not None:
            for cut in self.splits:
                self.part(cut)
                await asyncio.sleep(PHASE)
            return
        loop = asyncio.get_running_loop()
        while loop.time() < self._trouble:
            await asyncio.sleep(self.chance.expovariate(1 / 5.0))
            await self.random_fault()

    async def random_fault(self) -> None:
        chance, what = self.chance, self.chance.random()
        if what < 0.5:
            self.part(pair for pair in PAIRS if chance.random() < 0.6)
        elif what < 0.7 and self.lives:
            name = chance.choice(sorted(self.lives))
            self.crash(name)
            self.spawn(self._back_later(name, chance.choice([0.5, 5.0, 20.0])))
        elif self.lives:
            machine = self.lives[chance.choice(sorted(self.lives))].machine
            self.checker.note(f"{machine.name} freezes")
            machine.freeze()
            asyncio.get_running_loop().call_later(chance.choice([1.0, 6.0, 20.0]), machine.thaw)

    async def _back_later(self, name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if name not in self.lives:
            self.boot(name)

    # -- from beginning to end ---------------------------------------------------------------------------------------

    async def play(self) -> None:
        await self.introduce()
        for name in NAMES:
            self.boot(name)
        await asyncio.sleep(3.0)  # they exchange records, and know each other's devices
        span = PHASE * len(self.splits) if self.splits is not None else self._trouble
        await asyncio.gather(self.work(span), self.trouble())
        await asyncio.gather(*self._jobs, return_exceptions=True)
        self._heal()
        await self._wait_until_done()
        await check(self)
        await self._shut_down()

    def _heal(self) -> None:
        self.checker.note("no more faults")
        self.losses = 0.0
        self.part(())
        for life in self.lives.values():
            life.machine.thaw()
        for name in NAMES:
            if name not in self.lives:
                self.boot(name)
        self._healed = asyncio.get_running_loop().time()

    async def _wait_until_done(self) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < self._healed + RECOVERY and not self.checker.violations:
            for name, life in list(self.lives.items()):
                if life.tasks[0].done():
                    self.ended.append(self.lives.pop(name))
                    self.boot(name)
            await asyncio.sleep(1.0)
            if loop.time() > self._healed + SETTLING:
                self._one_owner()
            everything = [await store.find(Query()) for store in self.stores.values()]
            for run in everything[0]:
                if run.paused is not None:  # a person paused it and forgot it
                    with contextlib.suppress(RunRefused):
                        await Fleet(self.stores["m0"], by="person", chance=self.chance).resume(run.id)
            idle = all(not len(life.agent.worker) for life in self.lives.values())
            if idle and self._all_the_same(everything) and loop.time() > self._healed + 5.0:
                return

    def _all_the_same(self, everything: list[list[Run]]) -> bool:
        by_id: list[dict[str, Run]] = [{run.id: run for run in runs} for runs in everything]
        return all(run.ended for runs in everything for run in runs) and all(
            self.agreed(run_id, [runs.get(run_id) for runs in by_id]) for run_id in set().union(*by_id)
        )

    def agreed(self, run_id: str, records: Sequence[Run | None]) -> bool:
        """Whether all stores have the same record of a run; None stands for a store without one."""
        return len({None if run is None else text_of(run) for run in records}) == 1

    def _one_owner(self) -> None:
        executing: dict[str, str] = {}
        for execution in self.checker.executions:
            if execution.ended is None and not execution.machine.dead:
                other = executing.setdefault(execution.run, execution.machine.name)
                if other != execution.machine.name:
                    self.checker.broken(f"run {execution.run} is executed by {other} and {execution.machine.name}")

    def spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return super().spawn(_quietly(job))


async def _quietly(job: Any) -> None:
    with contextlib.suppress(AsterismError):
        await job


def schedules(depth: int) -> list[tuple[frozenset[tuple[str, str]], ...]]:
    """Every sequence of so many splits."""
    return list(itertools.product(SPLITS, repeat=depth))


# -- harsher faults ----------------------------------------------------------------------------------------------------


def _asks_often(fleet: Fleet) -> Exchange:
    return Exchange(fleet, check_interval=CHECK_INTERVAL)


class ForgetfulWorld(PeerWorld):
    """Stores delete ended runs from time to time."""

    skews = (0.0, 0.0, 3.0)

    def __init__(self, seed: int, **arguments: Any) -> None:
        super().__init__(seed, **{"make_exchange": _asks_often, **arguments})

    async def introduce(self) -> None:
        await super().introduce()
        for store in self.stores.values():
            await Fleet(store).configure(keep=KEEP)

    async def random_fault(self) -> None:
        if self.chance.random() < 0.6:
            await super().random_fault()
        name = self.chance.choice(NAMES)
        store = self.stores[name]
        before = store.clock() - KEEP - MARGIN
        number = await retention.prune(store, before, 500)
        self.checker.note(f"{name} forgets {number} runs")

    def agreed(self, run_id: str, records: Sequence[Run | None]) -> bool:
        """A store may have deleted the run, or have heard of it too late. Those that know it agree."""
        if None in records:
            self.excused.add(run_id)
        return super().agreed(run_id, [run for run in records if run is not None])


class JumpingWorld(PeerWorld):
    """The clocks of stores jump forward and back."""

    async def random_fault(self) -> None:
        if self.chance.random() < 0.7:
            await super().random_fault()
            return
        name = self.chance.choice(NAMES)
        jump = self.chance.choice([-40.0, -3.0, 3.0, 40.0, 7000.0, -self.jumped[name]])
        self.jumped[name] += jump
        self.checker.note(f"the clock of {name} jumps by {jump:g} s")


class PutBackWorld(PeerWorld):
    """The file of a store is copied, and rolled back to the copy later."""

    def __init__(self, seed: int, **arguments: Any) -> None:
        super().__init__(seed, **{"make_exchange": _asks_often, **arguments})
        self.checker.remembered = True
        self._copies: dict[str, dict[str, Any]] = {}
        self.put_back = 0

    async def random_fault(self) -> None:
        if self.chance.random() < 0.6:
            await super().random_fault()
            return
        name = self.chance.choice(NAMES)
        if name not in self._copies:
            self.checker.note(f"the store of {name} is copied")
            self._copies[name] = copy_of(self.stores[name])
            return
        if name in self.lives:
            self.crash(name)
        await asyncio.sleep(0.5)
        if name in self.lives:  # it was booted meanwhile
            return
        self.checker.excused |= {run.id for store in self.stores.values() for run in await store.find(Query())}
        store = self.stores[name]
        newest = await store.newest()
        put_back(store, self._copies.pop(name))
        self.checker.forget(name)
        self.put_back += 1
        self.checker.note(f"the store of {name} is put back")
        await self._reuse_feed_numbers(Fleet(store, by="person", chance=self.chance), newest)
        self.boot(name)

    async def _reuse_feed_numbers(self, fleet: Fleet, newest: int) -> None:
        """Create runs and cancel them until the numbers of the feed are used again, before the next sync."""
        while await feed_of(fleet.store).newest() < newest:
            run = await fleet.create(FLOWS[0], {})
            self.checker.acknowledged.append(await fleet.cancel(run.id))

    def agreed(self, run_id: str, records: Sequence[Run | None]) -> bool:
        """A run that was executed twice may have two ends: a store does not accept a peer's word about its own
        device."""
        done = any(run is not None and run.status is COMPLETED for run in records)
        return (done and run_id in self.excused) or super().agreed(run_id, records)
