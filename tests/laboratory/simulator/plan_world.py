"""Plan worlds: the orchestrators of a plan crash, and others continue it.

A world plays a random plan among the faults of a fleet, and its orchestrators crash at random. With ``dies_at`` it
plays one small plan without other faults, whose first orchestrator dies at that commit: just before it, or just
``after`` it, before it learns the outcome.

People on other machines edit the plan through the store meanwhile, and their machines crash, too. Each edit must be
applied exactly as it was answered: once if it was accepted, never if it was rejected or withdrawn, and at most once if
its author never learned the answer.

At the end every task of the plan must have ended, no ended task may have been executed again, no acknowledged edit may
be missing, and the plan in the store must be, to the byte, the one in the memory of its last orchestrator.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from asterism.base import expressions
from asterism.core.errors import AsterismError, EditRejected, PlanError
from asterism.core.plan.constellation import Constellation, ConstellationView
from asterism.core.plan.edits import AddDependency, AddTask, EditBatch
from asterism.core.plan.journal import UnreadableJournal, lock_to_json
from asterism.core.plan.status import COMPLETED, FAILED, TERMINAL
from asterism.core.plan.task import Task
from asterism.core.plan.teardowns import teardowns_of
from asterism.core.run.run import Run
from asterism.core.run.transitions import was_executed
from asterism.durable import plan_actor
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import StoredConstellation, insert_plan, load, read_head
from asterism.durable.plan_actor import AnswerLost, edit_plan, retry_plan
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Query, Write
from asterism.store.store_errors import StoreUnavailable
from tests.laboratory.simulator.checker import work_of
from tests.laboratory.simulator.fleet_world import HEARTBEAT, TIMEOUT, FleetWorld
from tests.laboratory.simulator.machines import Machine, Wire

PLAN = "nightly"
PLAN_TIMEOUT = 2000.0
"""How long a plan of a simulation may take to end, in simulated seconds."""

MOST_PEOPLE = 4
"""How many people edit the plan through the store."""


class DoomedWire(Wire):
    """The wire of a machine that dies at its n-th commit: before the store performs it, or right after."""

    def __init__(self, *arguments: Any, dies_at: int | None = None, after: bool = False) -> None:
        super().__init__(*arguments)
        self.commits = 0
        self._dies_at, self._after = dies_at, after
        self.died = asyncio.Event()

    async def commit(self, writes: Sequence[Write]) -> None:
        await self._machine.gate()
        self.commits += 1
        if self.commits != self._dies_at:
            await super().commit(writes)
            return
        if self._after:
            self._asked(lambda: self._store.commit(writes))
        self._machine.crash()
        self.died.set()
        await self._machine.gate()


class PlanWorld(FleetWorld):
    """A fleet with a plan.

    :param steps: the largest number of tasks.
    :param dies_at: the commit at which the first orchestrator dies; None for random faults.
    :param after: whether it dies after that commit rather than before it.
    """

    def __init__(
        self, seed: int, *, steps: int = 12, dies_at: int | None = None, after: bool = False, **arguments: Any
    ) -> None:
        super().__init__(seed, **arguments)
        self.number_of_runs = 0
        self.edits: list[str] = []
        self.acknowledged: list[str] = []
        self.answers: dict[str, str] = {}  # of the edits through the store, by author
        self._asking = 0  # how many people wait for an answer
        self.plan = small_plan() if dies_at is not None else some_plan(self.chance, steps)
        self._dies_at, self._after = dies_at, after
        self._host = 0
        self._orchestrators_started = 0
        self.first_wire: DoomedWire | None = None
        self.bosses: list[DurableOrchestrator] = []
        self.log: tuple[str, ...] = ()

    @property
    def commits(self) -> int:
        """The number of commits of the first orchestrator."""
        return self.first_wire.commits if self.first_wire is not None else 0

    # -- orchestrators -------------------------------------------------------------------------------------------------

    def start_orchestrator(self) -> asyncio.Task[None]:
        """Start an orchestrator that continues the plan."""
        self._orchestrators_started += 1
        machine = Machine("boss", self.chance.uniform(0.97, 1.03), 0.0)
        dies_at = self._dies_at if self._orchestrators_started == 1 else None
        wire = DoomedWire(self.store, machine, self.chance, self._gives_up, dies_at=dies_at, after=self._after)
        self.boss_machine = machine
        self.first_wire = self.first_wire or wire
        fleet = Fleet(wire, by="boss", clock=machine, chance=self.chance)
        host = f"boss-{self._host}"
        local = self._local_slots()

        def agent(fleet: Fleet, name: str, **options: Any) -> DeviceAgent:
            options |= {"name": name, "grace": 0.5, **self.monitor_terms}
            made = self.agent(fleet, machine, host, **options)
            wire.session = made.session.id
            return made

        orchestrator = DurableOrchestrator(
            fleet,
            local=local,
            host=host,
            editor=self._edit,
            heartbeat=HEARTBEAT,
            takeover_after=TIMEOUT,
            make_agent=agent,
            policy=self.chance.choice(["scoped", "speculative"]) if self._dies_at is None else "speculative",
            seed=self.chance.randint(0, 1 << 30),
            grace=2.0,
        )
        self.boss = orchestrator
        self.bosses.append(orchestrator)
        return asyncio.create_task(self._boss(orchestrator))

    def _local_slots(self) -> int:
        """How many tasks the next orchestrator executes itself at once."""
        return self.chance.choice([0, 1, 2])

    async def _boss(self, orchestrator: DurableOrchestrator) -> None:
        try:
            await orchestrator.standby(PLAN)
        except UnreadableJournal as error:
            self.checker.broken(f"no orchestrator can continue the plan: {error}")
        except AsterismError:
            pass

    async def _edit(self, view: ConstellationView, events: Any) -> Any:
        """An editor that sometimes adds a task below one that has just ended."""
        await asyncio.sleep(self.chance.uniform(0.0, 3.0))
        ended = [event.task_id for event in events if getattr(event, "task_id", None) is not None]
        if not ended or len(self.edits) >= 4:
            return None
        name = f"extra-{len(self.edits)}"
        self.edits.append(name)
        return EditBatch((AddTask(_task(name, self.chance)), AddDependency(ended[0], name, "completion")), "editor")

    async def amend(self) -> None:
        """A person edits the running plan. An acknowledged edit must never be lost."""
        name = f"amended-{len(self.acknowledged)}-{self.chance.randint(0, 999)}"
        with contextlib.suppress(AsterismError):
            await self.boss.edit(PLAN, EditBatch((AddTask(_task(name, self.chance)),), "person"))
            self.acknowledged.append(name)

    async def steer(self) -> None:
        """A person on another machine edits the plan through the store. The machine may crash meanwhile."""
        author = f"person-{len(self.answers)}"
        machine = Machine(author, self.chance.uniform(0.97, 1.03), 0.0)
        wire = Wire(self.store, machine, self.chance, self._gives_up)
        fleet = Fleet(wire, by=author, clock=machine, chance=self.chance)
        self.answers[author] = "unknown"
        if self.chance.random() < 0.3:
            asyncio.get_running_loop().call_later(self.chance.uniform(0.0, 3.0), self._crash_person, machine, author)
        batch = EditBatch((AddTask(_task(f"by-{author}", self.chance)),), author)
        try:
            await edit_plan(fleet, PLAN, batch, timeout=self.chance.choice([0.5, 10.0]))
            answer = "accepted"
        except (StoreUnavailable, AnswerLost):
            answer = "unknown"
        except (EditRejected, PlanError):  # also if it was withdrawn
            answer = "refused"
        if not machine.dead:
            self.answers[author] = answer
            self._asking -= 1

    def _crash_person(self, machine: Machine, author: str) -> None:
        if self.answers[author] == "unknown":
            self._asking -= 1
        machine.crash()

    # -- from beginning to end -----------------------------------------------------------------------------------------

    async def play(self) -> None:
        for name in self.names:
            self.boot(name)
        await insert_plan(self.store, self.plan, {"policy": "speculative"})
        boss = self.start_orchestrator()
        until = asyncio.get_running_loop().time() + PLAN_TIMEOUT
        troubled = asyncio.create_task(self.trouble())
        while asyncio.get_running_loop().time() < until and not self.checker.violations:
            self._reboot()
            head, _ = await read_head(self.store, PLAN)
            if head.ended:
                if not await self.reopened() and troubled.done():
                    break
            else:
                boss = self._with_faults(boss, troubled.done())
            if self.chance.random() < 0.2 and len(self.acknowledged) < 3:
                self.spawn(self.amend())
            if self._dies_at is None and self.chance.random() < 0.2 and len(self.answers) < MOST_PEOPLE:
                self._asking += 1
                self.spawn(self.steer())
            await asyncio.sleep(1.0)
        await self._check()
        self.log = tuple(self.checker.log)
        boss.cancel()
        await self._shut_down()

    async def reopened(self) -> bool:
        """Whether the plan, which has ended, may have been reopened. In this kind of world nobody does."""
        return False

    def _with_faults(self, boss: asyncio.Task[None], calm: bool) -> asyncio.Task[None]:
        if not calm and self._dies_at is None and self.chance.random() < 0.08 and not self.boss_machine.dead:
            if self.chance.random() < 0.5:
                self.checker.note("boss crashes")
                self.boss_machine.crash()
            else:
                return self._replaced()
        if self.boss_machine.dead or boss.done():
            boss.cancel()
            return self.start_orchestrator()
        return boss

    def _replaced(self) -> asyncio.Task[None]:
        """Freeze the orchestrator, and start one on another machine. The frozen one wakes later, unaware of that."""
        self.checker.note("boss freezes")
        machine = self.boss_machine
        machine.freeze()
        asyncio.get_running_loop().call_later(self.chance.uniform(1.0, 60.0), machine.thaw)
        self._host += 1
        return self.start_orchestrator()

    def _reboot(self) -> None:
        for name in self.names:
            if name not in self.lives or self.lives[name].tasks[0].done():
                self.boot(name)

    async def trouble(self) -> None:
        if self._dies_at is None:
            await super().trouble()
            self._heal()

    # -- what has to hold ----------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        stored = await load(self.store, PLAN, expressions)
        broken = self.checker.broken
        if not stored.head.ended:
            waiting = [f"{node.id} {node.status}" for node in stored.plan.nodes.values() if node.status not in TERMINAL]
            broken(f"the plan has not ended: {stored.plan.state}, {', '.join(waiting)}")
            return
        for node in stored.plan.nodes.values():
            if node.status not in TERMINAL:
                broken(f"task {node.id} is {node.status} in a plan that has ended")
        for setup in stored.plan.setups:
            for teardown in teardowns_of(setup):
                if setup.has_begun and teardown.started_at is None:
                    broken(f"{setup.id} was set up, and {teardown.id} never tore it down: {teardown.reason}")
        for name in self.acknowledged:
            if name not in stored.plan:
                broken(f"the edit that added {name} was acknowledged, and it is lost")
        self._check_answers(stored)
        again = await load(self.store, PLAN, expressions)
        if _picture(again) != _picture(stored):
            broken("two readings of one journal differ")
        last = [boss.stored for boss in self.bosses if boss.stored is not None][-1]
        if last.number == stored.number and _picture(last) != _picture(stored):
            broken("the plan in the store is not the one in the memory of its orchestrator")
        await self._check_executions(stored)

    def _check_answers(self, stored: StoredConstellation) -> None:
        """Each edit through the store is applied as often as its answer says."""
        allowed = {"accepted": (1,), "refused": (0,), "unknown": (0, 1)}
        whys = [entry.why for entry in stored.plan.story() if entry.what == "edited" and entry.task is None]
        for author, answer in self.answers.items():
            times = sum(f" by {author} (" in why for why in whys)
            if times not in allowed[answer]:
                self.checker.broken(f"the answer to the edit of {author} was {answer}; it was applied {times} times")

    async def _check_executions(self, stored: StoredConstellation) -> None:
        """No execution of a task begins after its end was recorded."""
        for execution in self.checker.executions:
            task = work_of(execution.run).removeprefix(f"plan:{PLAN}/")
            last = stored.plan.nodes[task].epoch if task in stored.plan else 0
            if execution.run.startswith("plan:") and last and execution.epoch > last:
                self.checker.broken(
                    f"task {task} had ended in epoch {last} and was executed in epoch {execution.epoch}"
                )
        runs = [run for run in await self.store.find(Query()) if run.key is not None and run.key.startswith("plan:")]
        for run in runs:
            if not run.ended:
                self.checker.broken(f"run {run.id} of {run.key} is {run.status} when all is over")
        assigned, completed = Counter[str](), Counter[str]()  # how often, by task
        for run in runs:
            task, _, epoch = str(run.key).removeprefix(f"plan:{PLAN}/").rpartition("/")
            if run.status == "completed":
                completed[task] += 1
            assigned[task] += 1
            ended = stored.plan.nodes[task].epoch if task in stored.plan else 0  # 0: cancelled, which has no epoch
            if ended and int(epoch) > ended:
                self.checker.broken(f"task {task} had ended in epoch {ended} and was assigned again, in epoch {epoch}")
        for node in stored.plan.nodes.values():
            told = Counter(entry.what for entry in stored.plan.story(node.id))
            started, again = told["started"] + told["started provisionally"], told["revoked"] + told["retried"]
            if assigned[node.id] > started:
                self.checker.broken(f"task {node.id} has {assigned[node.id]} runs and was started {started} times")
            if completed[node.id] > 1 + again:
                self.checker.broken(
                    f"task {node.id} was completed {completed[node.id]} times and run again {again} times"
                )


def _picture(stored: StoredConstellation) -> str:
    return json.dumps([stored.plan.to_json(), lock_to_json(stored.lock)])


def _task(name: str, chance: random.Random) -> Task:
    inputs = {"steps": chance.randint(1, 2), "seconds": chance.choice([0.1, 2.0, 10.0]), "fails": 0.1}
    return Task(name, call="work:do", inputs=inputs, retries=chance.randint(0, 2), revocable=chance.random() < 0.5)


def some_plan(chance: random.Random, steps: int) -> Constellation:
    plan = Constellation(PLAN)
    names: list[str] = []
    for number in range(chance.randint(1, steps)):
        name = f"t{number}"
        kinds = ["success", "completion", "always"]
        after = {source: chance.choice(kinds) for source in chance.sample(names, min(len(names), 2))}
        plan.add(_task(name, chance), after if chance.random() < 0.8 else None)
        names.append(name)
    for setup in chance.sample(names, min(len(names), chance.randint(0, 2))):
        plan.add(_task(f"drop-{setup}", chance), teardown=setup)
    return plan


def small_plan() -> Constellation:
    """A plan with a fork, a join, a failure with a retry, and a revocable task."""
    plan = Constellation(PLAN)
    inputs = {"steps": 1, "seconds": 1.0, "fails": 0.0}
    plan.add(Task("a", call="work:do", inputs=inputs))
    plan.add(Task("b", call="work:do", inputs=inputs, revocable=True), "a")
    plan.add(Task("c", call="work:do", inputs={**inputs, "fails": 1.0}, retries=1, backoff=0.1), "a")
    plan.add(Task("d", call="work:do", inputs=inputs), {"b": "success", "c": "failure"})
    return plan


MOST_RETRIES = 4
PATIENCE = 60.0
"""How long a person waits for the answer to a retry, in simulated seconds."""


class RetryWorld(PlanWorld):
    """A plan world whose plan people retry each time it has ended: what failed, or a task and everything below it.

    The person's machine may die just before the commit that reopens the plan, or just after it. With ``dies_at``, the
    first orchestrator after each retry dies at that commit. A retry must happen exactly as it was answered: once if it
    was accepted, never if it was refused, and at most once if the person never learned the answer. A retry of what
    failed may be refused only if nothing did. No task may complete more often than it was run again.
    """

    def __init__(self, seed: int, **arguments: Any) -> None:
        super().__init__(seed, **arguments)
        self.retries: dict[str, str] = {}  # the answer to each retry, by its author

    async def reopened(self) -> bool:
        if len(self.retries) == MOST_RETRIES:
            return False
        author = f"retrier-{len(self.retries)}"
        self.retries[author] = "unknown"
        self.retries[author] = await self._retry(author)
        self.checker.note(f"the retry of {author} was {self.retries[author]}")
        self._orchestrators_started = 0  # the next one may die at a commit, too
        return True

    async def _retry(self, author: str) -> str:
        machine = Machine(author, self.chance.uniform(0.97, 1.03), 0.0)
        dies_at, after = self.chance.choice([None, None, 1]), self.chance.random() < 0.5
        wire = DoomedWire(self.store, machine, self.chance, self._gives_up, dies_at=dies_at, after=after)
        fleet = Fleet(wire, by=author, clock=machine, chance=self.chance)
        before = await load(self.store, PLAN, expressions)
        first = [self.chance.choice(list(before.plan.nodes))] if self.chance.random() < 0.3 else []
        retry = asyncio.create_task(retry_plan(fleet, PLAN, from_tasks=first))
        await asyncio.wait([retry], timeout=PATIENCE)
        if not retry.done():  # the machine is dead
            retry.cancel()
            return "unknown"
        error = retry.exception()
        if error is None:
            return "accepted"
        if isinstance(error, StoreUnavailable):
            return "unknown"
        if isinstance(error, PlanError):
            unchanged = (await load(self.store, PLAN, expressions)).number == before.number
            if unchanged and not first and any(node.status is FAILED for node in before.plan.nodes.values()):
                self.checker.broken(f"a task failed, and the retry of {author} was refused: {error}")
            return "refused"
        raise error

    async def _check(self) -> None:
        await super()._check()
        story = (await load(self.store, PLAN, expressions)).plan.story()
        allowed = {"accepted": (1,), "refused": (0,), "unknown": (0, 1)}
        for author, answer in self.retries.items():
            times = sum(entry.what == "reopened" and entry.why == f"by {author}" for entry in story)
            if times not in allowed[answer]:
                self.checker.broken(f"the retry of {author} was {answer}, and happened {times} times")


LATEST_CANCELLATION = 60.0
"""When the plan is cancelled at the latest, in simulated seconds: most plans still run then."""

ABSENCES = (0.0, 400.0, 700.0)
"""How long all devices are away from the cancellation on; ``no_device_timeout`` is 300 s."""

SETTLING = 200.0
"""How long stopped work may take to end after the plan: longer than the timeouts of all runs and devices."""


class CancelWorld(PlanWorld):
    """A plan world whose plan, with teardowns, a person on another machine cancels.

    Often all devices go away at that moment, for longer than ``no_device_timeout``, and some orchestrators execute
    nothing themselves. ``cancelled`` tells whether the plan had not ended before: then it ends ``cancelled``. It must
    not end before a device has executed the teardowns of all set-ups that a device has begun: until then it is
    ``cancelling``. The teardown of a set-up that no device has begun is not executed, unless the plan could not know
    it: the process that cancelled the set-up died.
    """

    def __init__(self, seed: int, **arguments: Any) -> None:
        super().__init__(seed, **arguments)
        self._own_chance = random.Random(f"cancel {seed}")  # not that of plan worlds: their seeds stay the same
        self._absent = False
        self.cancelled = False
        self.absence = self._own_chance.choice(ABSENCES)
        names = [node.id for node in self.plan.nodes.values() if node.setup is None and not node.teardowns]
        if names:
            setup = self._own_chance.choice(names)
            inputs = {"steps": 1, "seconds": 2.0, "fails": 0.0}
            task = type(self.plan[setup].task)(f"undo-{setup}", call="work:do", inputs=inputs)
            self.plan.add(task, teardown=setup)

    def boot(self, name: str, *, replace: bool = False) -> None:
        if not self._absent:
            super().boot(name, replace=replace)

    def _local_slots(self) -> int:
        return super()._local_slots() if not self.absence else 0

    async def trouble(self) -> None:
        await asyncio.gather(super().trouble(), self._cancel_plan())

    async def _cancel_plan(self) -> None:
        await asyncio.sleep(self._own_chance.uniform(0.0, LATEST_CANCELLATION))
        machine = Machine("canceller", 1.0, 0.0)
        fleet = Fleet(Wire(self.store, machine, self.chance, self._gives_up), by="canceller", clock=machine)
        while not self.cancelled:
            try:
                await plan_actor.cancel_plan(fleet, PLAN, "not tonight")
                self.cancelled = True
            except StoreUnavailable:
                await asyncio.sleep(1.0)
            except PlanError:  # it has ended
                return
        self.checker.note(f"the plan is cancelled, and no device is there for {self.absence:g} s")
        if self.absence:
            self._absent = True
            for name in sorted(self.lives):
                with contextlib.suppress(KeyError):
                    self.crash(name)
            await asyncio.sleep(self.absence)
            self._absent = False

    async def _check(self) -> None:
        until = asyncio.get_running_loop().time() + SETTLING
        while asyncio.get_running_loop().time() < until:
            self._reboot()
            await asyncio.sleep(1.0)
        await super()._check()
        stored = await load(self.store, PLAN, expressions)
        if not self.cancelled or not stored.head.ended:
            return
        runs = await self.store.find(Query())

        def runs_of(task: str) -> list[Run]:
            return [run for run in runs if str(run.key).startswith(f"plan:{PLAN}/{task}/")]

        def ends_of(task: str) -> list[float | None]:
            work = f"plan:{PLAN}/{task}"
            return [execution.ended for execution in self.checker.executions if work_of(execution.run) == work]

        for setup in stored.plan.setups:
            begun = any(was_executed(run) for run in runs_of(setup.id)) or bool(ends_of(setup.id))
            for teardown in teardowns_of(setup):
                own = runs_of(teardown.id)
                if not begun:
                    executed = any(was_executed(run) for run in own) or bool(ends_of(teardown.id))
                    if setup.times is not None and executed:
                        self.checker.broken(f"no device has begun {setup.id}, and a device has executed {teardown.id}")
                    continue
                executed = any(run.ended and not run.given_up and not run.cancelled for run in own)
                executed = executed or any(end is not None for end in ends_of(teardown.id))
                if teardown.status not in (COMPLETED, FAILED) or not executed:
                    self.checker.broken(f"{setup.id} was set up, and no device has executed {teardown.id}")
