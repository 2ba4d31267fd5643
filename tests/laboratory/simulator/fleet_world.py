"""Simulated fleets: machines, a store, work, and faults, all from one seed.

Besides ``FleetWorld``: worlds with moves of runs, low batteries, wall clocks that jump, and schedules.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from asterism.base.clock import ServerClock, stopped
from asterism.core.errors import AsterismError, RunRefused
from asterism.core.limits import SERIES_LIMIT, Limit, Rate, limit_for, uses_of
from asterism.core.record import replace
from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.core.schedule.schedule import OVERLAP
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.device.device_connection import DeviceAccess
from asterism.fleet.fleet import Fleet
from asterism.fleet.scheduled_work import SchedulePass
from asterism.fleet.stored_limits import set_limit
from asterism.store.protocol import LIMITS, HeartbeatReply, ProgressReport, Query
from asterism.store.store_errors import StoreUnavailable
from tests.laboratory.simulator.checker import CheckedStore, Checker
from tests.laboratory.simulator.faults import ALL, OFTEN, WITH_WALL_CLOCKS, Faults
from tests.laboratory.simulator.machines import GIVES_UP, Machine, SimExecutor, Wire

log = logging.getLogger("asterism.sim")

TROUBLE = 60.0
"""How long faults happen, in seconds."""

RECOVERY = 1500.0
"""How long after that all runs must have ended, in seconds."""

HEARTBEAT, TIMEOUT = 3.0, 10.0
TIMES: dict[str, Any] = {"heartbeat": HEARTBEAT, "heartbeat_timeout": TIMEOUT}
GPU = frozenset({"gpu"})


@dataclass
class Life:
    """A machine from boot to crash. The first of its ``tasks`` runs its device."""

    machine: Machine
    agent: DeviceAgent
    tasks: list[asyncio.Task[Any]]


@dataclass
class FleetLife(Life):
    wire: Wire


AnyLife = TypeVar("AnyLife", bound=Life)
AnyChecker = TypeVar("AnyChecker", bound=Checker)


class SimHost:
    """The host of a simulated machine: there is no other process of the device."""

    def __init__(self, host: str) -> None:
        self.host = host

    def acquire(self) -> bool:
        return True

    def kill_orphans(self, session: str) -> None:
        """Nothing is left: processes end with the machine."""

    def close(self) -> None:
        """Nothing to close."""


class World(Generic[AnyLife, AnyChecker]):
    """What every kind of world has: machines that boot and crash, and the jobs of people."""

    def __init__(self, seed: int, checker: AnyChecker) -> None:
        self.chance, self.checker = random.Random(seed), checker
        self.lives: dict[str, AnyLife] = {}
        self.ended: list[AnyLife] = []
        self._jobs: list[asyncio.Task[None]] = []

    def agent(self, access: Fleet | DeviceAccess, machine: Machine, host: str, **options: Any) -> DeviceAgent:
        """Make the device of a machine, which has its name unless ``options`` say another one."""
        executor = SimExecutor(machine, self.checker, self.chance)
        usual = {"name": machine.name, "executor": executor, "host": SimHost(host), "measure": dict}
        return DeviceAgent(access, **{**usual, **options})

    def crash(self, name: str) -> None:
        life = self.lives.pop(name)
        self.checker.note(f"{name} crashes")
        life.machine.crash()
        for task in life.tasks:
            task.cancel()
        self.ended.append(life)

    def spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(job)
        self._jobs.append(task)
        return task

    async def _shut_down(self) -> None:
        await stopped(*(task for life in [*self.lives.values(), *self.ended] for task in life.tasks))


class FleetWorld(World[FleetLife, Checker]):
    """Machines that share a store.

    :param machines: the largest number of machines.
    :param runs: the largest number of runs.
    :param faults: the names of the faults that happen.
    :param often: the average time between two faults, in seconds.
    """

    MEDDLING = 0.3
    """The share of runs that a person does something about."""

    def __init__(
        self, seed: int, *, machines: int = 4, runs: int = 6, faults: Sequence[str] = ALL, often: float = OFTEN
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(seed, Checker(loop.time))
        self.jump = 0.0
        self.store = CheckedStore(lambda: 1_000_000.0 + loop.time() + self.jump, self.checker)
        self.names = [f"m{number}" for number in range(self.chance.randint(2, machines))]
        self.number_of_runs = self.chance.randint(1, runs)
        self.faults = Faults(self, faults, often)
        self._skews = {name: self.chance.choice([0.0, 0.0, 86_400.0, -3600.0]) for name in self.names}
        self._rates = {name: self.chance.uniform(0.97, 1.03) for name in self.names}
        self._hosts = dict.fromkeys(self.names, 0)
        self._gives_up: float = self.chance.choice([GIVES_UP, 15.0])
        self._watches_every = self.chance.uniform(1.5, 4.0)
        self._person = Fleet(self.store, by="person", chance=self.chance)

    def set_clock(self, jump: float) -> None:
        """The store's clock jumps by so many seconds."""
        self.jump += jump

    # -- machines ----------------------------------------------------------------------------------------------------

    def boot(self, name: str, *, replace: bool = False) -> None:
        machine = Machine(name, self._rates[name], self._skews[name])
        wire, host = self.wire(machine), f"{name}/{self._hosts[name]}"
        agent = self.agent(
            self.access(wire, machine, host),
            machine,
            host,
            can=GPU if name != "m0" else (),
            slots=self.chance.randint(1, 2),
            backlog=self.chance.randint(0, 1),
            grace=0.5,
            replace=replace,
            **TIMES,
            **self.device_terms(name),
        )
        wire.session = agent.session.id
        self.checker.note(f"{name} boots")
        self.lives[name] = FleetLife(machine, agent, [asyncio.create_task(self._live(agent))], wire)

    def device_terms(self, name: str) -> dict[str, Any]:
        """Further arguments of the device of a machine; to be overridden."""
        return self.monitor_terms

    @property
    def monitor_terms(self) -> dict[str, Any]:
        """The arguments of a device that may be elected to monitor the others."""
        return {"monitor_every": self._watches_every, "lease": 6.0}

    def wire(self, machine: Machine) -> Wire:
        """Return the connection of a machine to the store."""
        return Wire(self.store, machine, self.chance, self._gives_up)

    def access(self, wire: Wire, machine: Machine, host: str) -> Fleet | DeviceAccess:
        """Return what the device of a machine uses the fleet with."""
        return Fleet(wire, by=machine.name, clock=machine, chance=self.chance)

    def fleet_at(self, life: FleetLife) -> Fleet:
        """Return the fleet as people on a machine use it."""
        return life.agent.fleet

    async def _live(self, agent: DeviceAgent) -> None:
        """Run a device. One that is replaced or cannot reach the store is started again, as a service would be."""
        try:
            await agent.run()
        except AsterismError:
            pass
        except Exception:
            log.exception("%s ended with a bug", agent.name)  # which the simulation collects

    def replace(self, name: str) -> None:
        """Let another machine take the name. The old one continues until it learns of that."""
        self.checker.note(f"{name} is replaced")
        self.ended.append(self.lives.pop(name))
        self._hosts[name] += 1
        self.boot(name, replace=True)

    def random_life(self) -> FleetLife | None:
        return self.lives[self.chance.choice(sorted(self.lives))] if self.lives else None

    # -- work --------------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """People create runs on machines, and cancel or pause some."""
        common: dict[str, Any] = {"call": "work:do", "losses": 50, **_FAST}
        flows = [
            Workflow("plain", retries=1, **TIMES, **common),
            Workflow("picky", needs=GPU, heartbeat=4.0, heartbeat_timeout=12.0, retries=3, **common),
            Workflow("brisk", heartbeat=1.5, heartbeat_timeout=5.0, preemptible=True, **common),
        ]
        for _ in range(self.number_of_runs):
            await asyncio.sleep(self.chance.uniform(0.0, TROUBLE / self.number_of_runs))
            life = self.random_life()
            if life is not None and not life.machine.frozen:
                life.tasks.append(self.spawn(self._create(life, self.chance.choice(flows))))

    async def _create(self, life: FleetLife, flow: Workflow) -> None:
        chance = self.chance
        run_input = {"steps": chance.randint(1, 4), "seconds": chance.choice([0.1, 2.0, 15.0, 40.0]), "fails": 0.1}
        series = chance.choice([None, None, "alpha"])
        fleet = self.fleet_at(life)
        with contextlib.suppress(StoreUnavailable):
            run = await fleet.create(flow, run_input, series=series, priority=chance.randint(0, 2))
            self.checker.acknowledged.append(run)
            if chance.random() < self.MEDDLING:
                await asyncio.sleep(chance.uniform(0.0, 20.0))
                await self._meddle(fleet, run.id)

    async def _meddle(self, fleet: Fleet, run_id: str) -> None:
        """Cancel a run, or pause and resume it; may be overridden."""
        with contextlib.suppress(StoreUnavailable):
            if self.chance.random() < 0.5:
                await self._cancel(fleet, run_id)
            else:
                await self._pause(fleet, run_id)

    async def _cancel(self, fleet: Fleet, run_id: str) -> None:
        try:
            run = await fleet.cancel(run_id)
        except RunRefused as refusal:
            stored = await self.store.run(run_id)
            if stored is not None and stored.cancelled:  # only this person cancels it
                self.checker.broken(f"run {run_id} was cancelled, and it was denied: {refusal.why}")
            return
        self.checker.acknowledged.append(run)
        if run.stop_request != "cancel" and not run.ended:
            self.checker.broken(f"run {run_id} is {run.status} and was said to be cancelled")

    async def _pause(self, fleet: Fleet, run_id: str) -> None:
        with contextlib.suppress(RunRefused):
            run = await fleet.pause(run_id, "to look at it")
            self.checker.acknowledged.append(run)
            if run.stop_request != "pause" and run.paused is None and not run.ended:
                self.checker.broken(f"run {run_id} is {run.status} and was said to be paused")
            await asyncio.sleep(self.chance.uniform(0.0, 10.0))
            self.checker.acknowledged.append(await fleet.resume(run_id))

    # -- from beginning to end ---------------------------------------------------------------------------------------

    async def trouble(self) -> None:
        await self.faults.run_until(TROUBLE)

    async def play(self) -> None:
        for name in self.names:
            self.boot(name)
        await asyncio.gather(self.work(), self.trouble())
        while not all(job.done() for job in self._jobs):
            await asyncio.gather(*self._jobs, return_exceptions=True)
        self._heal()
        await self._wait_until_done()
        notices = [notice for _, notice in await self.store.notices(limit=1_000_000)]
        self.checker.check_end(await self.store.find(Query()), notices)
        await self._shut_down()

    def _heal(self) -> None:
        self.checker.note("no more faults")
        for life in [*self.lives.values(), *self.ended]:
            life.wire.heal()
            life.machine.thaw()
        for name in self.names:
            if name not in self.lives:
                self.boot(name)

    async def _wait_until_done(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + RECOVERY
        while loop.time() < until and not self.checker.violations:
            for name, life in list(self.lives.items()):
                if life.tasks[0].done():
                    self.boot(name)
            runs = await self.store.find(Query())
            for run in runs:
                if run.paused is not None and not run.ended:  # the person who paused it could not resume it
                    await self._person.resume(run.id)
            everyone = [*self.lives.values(), *(life for life in self.ended if not life.machine.dead)]
            if all(run.ended for run in runs) and all(not len(life.agent.worker) for life in everyone):
                return
            await asyncio.sleep(1.0)


_FAST: dict[str, Any] = {
    "assignment_timeout": 5.0,
    "claim_timeout": 8.0,
    "no_device_timeout": 300.0,
    "backoff": 0.5,
    "backoff_most": 5.0,
}


LOW, FULL = 0.1, 1.0
LONG = 400.0
"""Longer than the ``no_device_timeout`` of the runs, in seconds."""


class BatteryWorld(FleetWorld):
    """Batteries run low, of one machine or all, for moments or for long, and devices rest. No run may count a round or
    be given up because of that."""

    def __init__(self, seed: int, **arguments: Any) -> None:
        super().__init__(seed, **arguments)
        self.levels = dict.fromkeys(self.names, FULL)
        self.faults.all += [self._run_low] * 4

    def device_terms(self, name: str) -> dict[str, Any]:
        battery = {"measure": lambda: {"battery": self.levels[name]}, "hands_back": "battery < 0.2"}
        return {**self.monitor_terms, **battery}

    async def _run_low(self) -> None:
        low = self.names if self.chance.random() < 0.3 else [self.chance.choice(self.names)]
        self.checker.note(f"{', '.join(low)}: low battery")
        self.levels |= dict.fromkeys(low, LOW)
        await asyncio.sleep(self.chance.choice([0.5, 4.0, 20.0, LONG]))
        self.levels |= dict.fromkeys(low, FULL)
        self.checker.note(f"{', '.join(low)}: charged")

    async def play(self) -> None:
        await super().play()
        for run in await self.store.find(Query()):
            if run.rounds:
                self.checker.broken(f"run {run.id} counted {run.rounds} rounds, and devices only rested: {run.error}")


def own_clock(machine: Machine) -> Callable[[], float]:
    """Return the clock from which a machine estimates the store's clock."""
    return machine.time


class EstimatingWire(Wire):
    """A wire that estimates the store's clock from the replies to heartbeats."""

    def __init__(self, store: CheckedStore, machine: Machine, chance: random.Random, gives_up: float) -> None:
        super().__init__(store, machine, chance, gives_up)
        self._estimate = ServerClock(own_clock(machine))
        self._estimate.learn(store.clock(), self._estimate.own())

    def clock(self) -> float:
        return self._estimate()

    async def heartbeat(
        self, session: str, profile: Mapping[str, Any], reports: Sequence[ProgressReport]
    ) -> HeartbeatReply:
        asked = self._estimate.own()
        answer = await super().heartbeat(session, profile, reports)
        self._estimate.learn(answer.now, asked)
        return answer


class WallClockWorld(FleetWorld):
    """Machines estimate the store's clock, as with a server, and their wall clocks jump by an hour."""

    def __init__(self, seed: int, *, faults: Sequence[str] = WITH_WALL_CLOCKS, **arguments: Any) -> None:
        super().__init__(seed, faults=faults, **arguments)
        self.checker.right_time = self.store.clock

    def wire(self, machine: Machine) -> Wire:
        return EstimatingWire(self.store, machine, self.chance, self._gives_up)


MOST_MOVES = 3
"""How often a person moves one run."""


class MoveWorld(FleetWorld):
    """Machines that share a store, and people who move runs while machines fail.

    Most runs are moved: before they start, while they are worked on, when they have ended. The machine of the person
    may crash in the middle of a move. A move that was accepted is an assignment like any other: it is never lost, and
    the device before it is fenced.
    """

    MEDDLING = 0.9
    moves = 0

    async def _meddle(self, fleet: Fleet, run_id: str) -> None:
        for _ in range(self.chance.randint(1, MOST_MOVES)):
            with contextlib.suppress(AsterismError):  # the device has no room, the run has ended, the store is away
                await self._move(fleet, run_id, self.chance.choice(self.names))
            await asyncio.sleep(self.chance.uniform(0.0, 5.0))
        if self.chance.random() < 0.2:
            await super()._meddle(fleet, run_id)

    async def _move(self, fleet: Fleet, run_id: str, device: str) -> None:
        run = await fleet.move(run_id, device, stop=self.chance.random() < 0.7)
        self.moves += 1
        self.checker.acknowledged.append(run)
        if run.device != device:
            self.checker.broken(f"run {run_id} was said to be moved to {device}, and is on {run.device or 'no device'}")


GOES_ON = 300.0
"""How long after the last fault every schedule must have decided about a tick, in seconds."""


class ScheduleWorld(FleetWorld):
    """Machines that share a store with schedules: several coordinators at once, crashes, and clocks that jump.

    Every machine decides about ticks, elected or not, through its own connection to the store. No tick may be created
    twice, whatever happens, and when the faults are over, every schedule goes on.
    """

    def __init__(self, seed: int, **arguments: Any) -> None:
        super().__init__(seed, **arguments)
        self.faults.all += [self._set_back] * 3
        self.schedules = [f"s{number}" for number in range(self.chance.randint(1, 2))]

    def boot(self, name: str, *, replace: bool = False) -> None:
        super().boot(name, replace=replace)
        life = self.lives[name]
        life.tasks.append(asyncio.create_task(self._coordinate(life)))

    async def _coordinate(self, life: FleetLife) -> None:
        """Decide about ticks as a coordinator does, without an election."""
        decide, clock = SchedulePass(life.agent.fleet), life.agent.fleet.clock
        while not life.machine.dead:
            await clock.sleep(self.chance.uniform(1.0, 6.0))
            try:
                await decide.run_pass()
            except AsterismError:
                continue  # the next pass is soon

    async def _set_back(self) -> None:
        """The store's clock is set back, and right again a moment later: ticks come a second time."""
        self.set_clock(-3600.0)
        self.checker.note("the store's clock is set back by an hour")
        await asyncio.sleep(self.chance.uniform(2.0, 10.0))
        self.set_clock(3600.0)
        self.checker.note("the store's clock is right again")

    async def work(self) -> None:
        chance = self.chance
        await self._person.workflows.add(Workflow("ticked", call="work:do", losses=50, **TIMES))
        for name in self.schedules:
            every, overlap = chance.randint(4, 20), chance.choice(OVERLAP)
            alone = overlap in ("skip", "replace")  # else hundreds of runs may wait when the faults are over
            seconds = chance.choice([2.0, 15.0]) if alone else 0.1
            catch_up = chance.choice(["none", "last", "last", "all"] if every > 10 else ["none", "last"])
            await self._person.schedules.add(
                name,
                workflow="ticked",
                input={"steps": 1, "seconds": seconds, "fails": 0.0},
                every=every,
                catch_up="last" if alone and catch_up == "all" else catch_up,
                overlap=overlap,
                jitter=chance.choice([0.0, 3.0]),
            )
        await asyncio.sleep(TROUBLE)

    async def _wait_until_done(self) -> None:
        await self._wait_for_decisions()
        for name in self.schedules:
            await self._person.schedules.pause(name)
        await super()._wait_until_done()
        self.check_ticks(await self.store.find(Query(workflow="ticked")))

    async def _wait_for_decisions(self) -> None:
        """Every schedule goes on when the faults are over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + GOES_ON
        before = {name: (await self._person.schedules.history(name))[-1:] for name in self.schedules}
        for name in self.schedules:
            while (await self._person.schedules.history(name))[-1:] == before[name]:
                if loop.time() > until:
                    self.checker.broken(f"schedule {name} decided about no tick for {GOES_ON:g} s")
                    return
                await asyncio.sleep(1.0)

    def check_ticks(self, runs: list[Any]) -> None:
        """No tick has two runs. A key names the schedule and the tick, and perhaps, without a safeguard, more."""
        created = Counter((run.key or "").partition("#")[0] for run in runs)
        for tick, number in created.items():
            if number > 1:
                self.checker.broken(f"tick {tick} was created {number} times")


SIZES: dict[str, tuple[int, ...]] = {"warehouse": (4,), "disk": (1, 2, 3), "account/*": (1,)}
"""Limits of a world, and the sizes between which they change."""

RATE = Rate(1, 20.0)
USES = ({"warehouse": 1}, {"warehouse": 1, "account/{seconds}": 1}, {"mail": 1}, {"disk": 1})


class LimitWorld(FleetWorld):
    """Machines that share a store, and runs that use limits while machines fail and people change the limits.

    At no moment do the runs that devices own use more of a limit than it allows when one of them is granted, and no
    period has more grants than a rate allows. When the faults are over, everything ends: nothing is held by the dead.
    """

    MEDDLING = 0.1
    acquisitions = 0

    def __init__(self, seed: int, *, runs: int = 25, **arguments: Any) -> None:
        super().__init__(seed, runs=runs, **arguments)
        self.store.on_grant = self._check_grant
        self._granted: dict[str, list[float]] = {}

    def set_clock(self, jump: float) -> None:
        super().set_clock(jump)
        # if the clock is set back, what has begun in the future counts as begun when a device looks, now or later
        now = self.store.clock()
        self._granted = {name: [min(at, now) for at in times] for name, times in self._granted.items()}

    def _check_grant(self, run: Run) -> None:
        self.acquisitions += 1
        now = self.store.clock()
        limits = {name: Limit.from_json(self.store.value(f"{LIMITS}{name}")) for name in (*SIZES, "mail")}
        limits[SERIES_LIMIT.name] = SERIES_LIMIT
        for name, amount in uses_of(run.uses).items():
            limit = limit_for(limits, name)
            assert limit is not None
            held = sum(uses_of(other.uses).get(name, 0) for other in self.store.owned())
            if limit.size is not None and held > limit.size:
                self.checker.broken(f"{held} of limit {name} ({limit.size}) are held with run {run.id}")
            if limit.rate is not None:
                times = [at for at in self._granted.setdefault(name, []) if now - limit.rate.period <= at]
                self._granted[name] = [*times, *[now] * amount]
                if len(self._granted[name]) > limit.rate.number:
                    self.checker.broken(f"limit {name} let {len(self._granted[name])} begin with run {run.id}")

    async def work(self) -> None:
        for name, sizes in SIZES.items():
            await set_limit(self.store, Limit(name, self.chance.choice(sizes)))
        await set_limit(self.store, Limit("mail", rate=RATE))
        changes = self.spawn(self._change_limits())
        await super().work()
        await asyncio.gather(changes)

    async def _change_limits(self) -> None:
        while asyncio.get_running_loop().time() < TROUBLE:
            await asyncio.sleep(self.chance.uniform(1.0, 20.0))
            await set_limit(self.store, Limit("disk", self.chance.choice(SIZES["disk"])))

    async def _create(self, life: FleetLife, flow: Workflow) -> None:
        uses = self.chance.choice(USES)
        limited = replace(flow, name=f"{flow.name} {len(uses)} {min(uses)}", uses=uses)
        await super()._create(life, limited)
