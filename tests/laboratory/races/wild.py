"""A wilder race: everything that may go wrong at once, and only the promises that hold even then.

Devices give work back, vanish, leave and join; tasks time out, fail, cancel themselves and refuse to stop; editors
break, talk nonsense, answer late or with whole plans; a person edits, cancels tasks, pauses and resumes. Whatever
happens: the invariants hold at every look, no execution of a task overlaps another one, and the constellation ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from asterism import Constellation, EditBatch, EditRejected, LocalDevice, Orchestrator, Task, Work, edits
from asterism.core.errors import DeviceLost, DeviceUnavailable, PlanError
from asterism.core.plan.assignment_lock import POLICIES
from asterism.core.plan.constellation import ConstellationView
from asterism.core.plan.status import TERMINAL
from asterism.core.plan.task import Priority
from asterism.testing.virtual_time import run
from tests.laboratory.plan_invariants import check_invariants

OUTCOMES = ["success", "success", "completion", "failure"]


def wild(seed: int) -> list[str]:
    """Run one in virtual time. An empty list is a good one."""
    contest = Wild(seed)
    try:
        run(asyncio.wait_for(contest.run(), 100_000), seed)
    except Exception as error:
        contest.problems.append(f"{type(error).__name__}: {error}")
    return contest.problems


class Wild:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.policy = self.random.choice(POLICIES)
        self.plan = Constellation(f"wild-{seed}")
        self.problems: list[str] = []
        self.at_work: Counter[str] = Counter()
        self.cancelling: list[asyncio.Future[None]] = []
        self.names = 0
        for _ in range(self.random.randint(3, 12)):
            before = [task.id for task in self.plan]
            chosen = self.random.sample(before, min(len(before), self.random.choice([0, 1, 1, 2])))
            self.plan.add(self._task(), {source: self._terms() for source in chosen})

    def _terms(self) -> Any:
        condition = {"on": "completion", "when": "status == 'completed'"}
        return condition if self.random.random() < 0.15 else self.random.choice(OUTCOMES)

    def _task(self) -> Task:
        self.names += 1
        return Task(
            f"t{self.names}",
            revocable=self.random.random() < 0.7,
            retries=self.random.choice([0, 0, 1, 2]),
            backoff=self.random.choice([0.0, 0.1, 1.0]),
            timeout=self.random.choice([None, None, 1.0, 2.0]),
            needs=frozenset(self.random.choice([(), (), (), ("rare",)])),
            priority=self.random.choice([Priority.LOW, Priority.NORMAL, Priority.HIGH]),
        )

    async def run(self) -> None:
        self.orchestrator = orchestrator = Orchestrator(
            [LocalDevice("d0", slots=2, run=self.work), LocalDevice("d1", slots=1, can=["rare"], run=self.work)],
            editor=self.edit,
            policy=self.policy,
            max_cycles=self.random.choice([1, 4]),
            edit_timeout=self.random.choice([3.0, 600.0]),
            edit_on=self.random.choice(["all", "failure"]),
            no_device_timeout=30.0,
            grace=20.0,  # longer than anything here takes to stop, so that executions never overlap
            rank=self.random.random() < 0.5,
            seed=1,
        )
        asyncio.get_running_loop().set_exception_handler(lambda loop, told: self.problems.append(str(told)))
        person = asyncio.ensure_future(self.meddle(orchestrator))
        await orchestrator.run(self.plan)
        person.cancel()
        self._look()
        self.problems += [f"{n.id} was left {n.status}" for n in self.plan.nodes.values() if n.status not in TERMINAL]
        self.problems += [f"{task} is still being worked on" for task, count in self.at_work.items() if count]

    def _look(self) -> None:
        execution = self.orchestrator.scheduler._executions.get(self.plan.id)
        try:
            check_invariants(self.plan, set(execution.waits) if execution is not None else ())
        except AssertionError as error:
            self.problems.append(f"invariant: {error}")

    # -- the work ------------------------------------------------------------------------------------------------------

    async def work(self, work: Work) -> Any:
        task_id = work.task.id
        if self.random.random() < 0.05:
            raise DeviceUnavailable("not now")
        self.at_work[task_id] += 1
        if self.at_work[task_id] > 1:
            self.problems.append(f"{task_id} is worked on twice at a time")
        try:
            await self._pause(3.0)
            return self._outcome(work)
        except asyncio.CancelledError:
            if self.random.random() < 0.3:
                await asyncio.sleep(self.random.uniform(0.0, 8.0))  # it takes its time to stop
            if self.random.random() < 0.2:
                return "too late"
            raise
        finally:
            self.at_work[task_id] -= 1

    def _outcome(self, work: Work) -> Any:
        chance = self.random.random()
        if chance < 0.07:
            raise DeviceLost("gone")
        if chance < 0.2:
            raise RuntimeError("unlucky")
        if chance < 0.22:
            raise asyncio.CancelledError
        return work.epoch

    async def _pause(self, longest: float) -> None:
        await asyncio.sleep(self.random.choice([0.0, 0.5, 1.0, self.random.uniform(0.0, longest)]))

    # -- those who edit ------------------------------------------------------------------------------------------------

    async def edit(self, view: ConstellationView, events: Sequence[Any]) -> Any:
        self._look()
        copy = view.frozen() if self.random.random() < 0.15 else None
        await self._pause(6.0)
        self._look()
        chance = self.random.random()
        if chance < 0.05:
            raise RuntimeError("the editor broke")
        if chance < 0.1:
            return "nonsense"
        if copy is not None:
            with contextlib.suppress(EditRejected):
                copy.edit(self._changes(ConstellationView(copy)))
            return copy
        return None if chance < 0.4 else self._changes(view)

    async def meddle(self, orchestrator: Orchestrator) -> None:
        for turn in range(60):
            await self._pause(4.0)
            self._look()
            with contextlib.suppress(EditRejected, PlanError, ValueError):
                self._meddle_once(orchestrator, turn)

    def _meddle_once(self, orchestrator: Orchestrator, turn: int) -> None:
        chance = self.random.random()
        if chance < 0.3:
            batch = EditBatch(tuple(self._changes(ConstellationView(self.plan))), "person")
            orchestrator.edit(self.plan.id, batch)
        elif chance < 0.4:
            orchestrator.pause(self.plan.id)
        elif chance < 0.6:
            orchestrator.resume(self.plan.id)
        elif chance < 0.7:
            orchestrator.leave(self.random.choice(["d0", "d1"]))
        elif chance < 0.9:
            orchestrator.join(LocalDevice(self.random.choice(["d0", "d1"]), slots=1, can=["rare"], run=self.work))
        elif chance < 0.91:
            self.cancelling.append(asyncio.ensure_future(self._cancel()))
        if turn > 50:
            orchestrator.resume(self.plan.id)

    async def _cancel(self) -> None:
        with contextlib.suppress(PlanError):  # it has just ended
            await self.orchestrator.cancel(self.plan.id)

    def _changes(self, view: ConstellationView) -> list[Any]:
        ids = [task.id for task in view]
        changes: list[Any] = []
        for _ in range(self.random.randint(1, 3)):
            changes += self._change(view, ids, view.modifiable())
        return changes

    def _change(self, view: ConstellationView, ids: list[str], modifiable: list[str]) -> list[Any]:
        chance = self.random.random()
        if chance < 0.25 or not modifiable:
            return [edits.AddTask(self._task())]
        target = self.random.choice(modifiable)
        if chance < 0.35:
            return [edits.CancelTask(self.random.choice(ids))]
        if chance < 0.55:
            return [edits.RemoveTask(target, self.random.choice([None, "bridge", "remove"]))]
        if chance < 0.7:
            return [edits.UpdateTask(target, priority=self.random.choice(["low", "high"]), needs=[])]
        if chance < 0.9 and len(ids) > 1:
            source, below = self.random.sample(ids, 2)
            return [edits.AddDependency(source, below, self.random.choice(OUTCOMES))]
        return [edits.UpdateDependency(d.source, target, "completion") for d in view[target].dependencies[:1]]
