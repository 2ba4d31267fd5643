"""Peer worlds: three machines, each with a store, that exchange records over links that fail.

Everything is real except the machines, the links and the work: agents, monitors and exchanges, whose messages go
through JSON. While links are cut, two machines may work on one run. When the links have been repaired for a while, all
stores must have the same record of each run, with one owner, and every device that lost a run must have been notified
(``peer_stores``).

Three worlds have harsher faults: stores delete ended runs early, clocks jump, files are rolled back. After such a fault
stores cannot agree on every run. Those runs are *excused* from some of the promises; all others are not. Every run has
to end in every store that knows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from asterism.core.errors import AsterismError, RunRefused
from asterism.core.run.run import COMPLETED, Run
from asterism.core.run.workflow import Workflow
from asterism.fleet import retention
from asterism.fleet.fleet import Fleet
from asterism.peers.exchange import Exchange
from asterism.peers.peer_service import SyncLoop
from asterism.peers.registry import Peer, PeerRegistry
from asterism.store.protocol import FEED, PutRegister, Query, feed_of
from asterism.testing.simulator.fleet_world import Life, World
from asterism.testing.simulator.machines import Machine
from asterism.testing.simulator.peer_stores import Disk, Link, PeerChecker, PeerStore, check, copy_of, put_back, text_of

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
        self.losses = (
            losses if losses is not None else (0.0 if splits is not None else self.chance.choice([0, 0.05, 0.2]))
        )
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
        keep = chance.choice(["epoch", "epoch", "original", "furthest"])
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
