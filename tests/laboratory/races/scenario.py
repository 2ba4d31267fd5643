"""One seeded race: a random plan, random devices, and editors that remove and replace what is about to be dispatched.

``race(seed)`` runs it and returns the promises that were broken, in words. What it watches is independent of the code
it tests: the bodies of the tasks and the editors keep a log of their own, and the rules are judged from that.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any

from asterism import (
    Constellation,
    EditBatch,
    EditEvent,
    EditRejected,
    LocalDevice,
    Orchestrator,
    Result,
    Task,
    TaskEvent,
    Work,
    edits,
)
from asterism.core.plan.assignment_lock import POLICIES
from asterism.core.plan.constellation import ConstellationView
from asterism.core.plan.status import TERMINAL
from asterism.testing.virtual_time import run
from tests.laboratory.plan_invariants import check_invariants


def race(seed: int, policy: str | None = None) -> list[str]:
    """Run one race in virtual time. An empty list is a good one."""
    contest = Race(seed, policy)
    try:
        run(asyncio.wait_for(contest.run(), 100_000), seed)
    except Exception as error:
        contest.problems.append(f"{type(error).__name__}: {error}")
    return contest.problems


class Race:
    def __init__(self, seed: int, policy: str | None) -> None:
        self.random = random.Random(seed)
        self.policy = policy or self.random.choice(POLICIES)
        self.plan = Constellation(f"race-{seed}")
        self.problems: list[str] = []
        self.started: dict[str, int] = {}  # how often the body of a task began
        self.inputs: dict[int, dict[str, Any]] = {}  # what each execution was given, by epoch
        self.unreviewed: set[tuple[str, int]] = set()  # executions that have ended and whose editor has not answered
        self.events: list[TaskEvent | EditEvent] = []
        self.names = 0
        self._build()

    def _build(self) -> None:
        for _ in range(self.random.randint(4, 14)):
            before = [task.id for task in self.plan]
            count = min(len(before), self.random.choice([0, 1, 1, 2, 3]))
            on = {name: self.random.choice(["success", "completion"]) for name in self.random.sample(before, count)}
            self.plan.add(self._task(), on)

    def _task(self) -> Task:
        self.names += 1
        return Task(
            f"t{self.names}",
            revocable=self.policy == "speculative" and self.random.random() < 0.7,
            retries=self.random.choice([0, 0, 1]),
            backoff=0.1,
            data={"n": 0},
        )

    async def run(self) -> None:
        count = self.random.randint(1, 3)
        devices = [LocalDevice(f"d{n}", slots=self.random.choice([1, 2, None]), run=self.work) for n in range(count)]
        self.orchestrator = orchestrator = Orchestrator(
            devices,
            editor=self.edit,
            policy=self.policy,
            max_cycles=self.random.choice([1, 2, 4]),
            strategy=self.random.choice(["score", "round_robin", "load_balance"]),
            seed=1,
        )
        orchestrator.events.subscribe(self.events.append, TaskEvent, EditEvent)
        asyncio.get_running_loop().set_exception_handler(lambda loop, told: self.problems.append(str(told)))
        person = asyncio.ensure_future(self.meddle(orchestrator))
        result = await orchestrator.run(self.plan)
        person.cancel()
        self._judge(result)

    async def _pause(self, longest: float) -> None:
        if self.random.random() < 0.3:
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(self.random.choice([0.5, 1.0, self.random.uniform(0.0, longest)]))

    # -- the body of every task ----------------------------------------------------------------------------------------

    async def work(self, work: Work) -> Any:
        """Notes what must not be, takes a random time, and sometimes fails."""
        task_id = work.task.id
        self._check_start(work)
        self.started[task_id] = self.started.get(task_id, 0) + 1
        self.inputs[work.epoch] = dict(work.results)
        await self._pause(3.0)
        last = work.attempt > work.task.retries
        failed = self.random.random() < 0.15
        if last or not failed:
            self.unreviewed.add((task_id, work.epoch))
        if failed:
            raise RuntimeError("unlucky")
        return task_id, work.epoch

    def _check_start(self, work: Work) -> None:
        task_id = work.task.id
        if task_id not in self.plan:
            self.problems.append(f"{task_id} was removed, and started")
            return
        if self.plan[task_id].task != work.task:
            self.problems.append(f"{task_id} was started from a stale plan")
        if work.task.revocable:
            return
        if self.started.get(task_id, 0) > work.task.retries:
            self.problems.append(f"{task_id} was started more often than its retries allow")
        for source in work.results:
            if (source, self.plan.node(source).epoch) in self.unreviewed:
                self.problems.append(f"{task_id} was started before the review of {source} was over")

    # -- the editor ----------------------------------------------------------------------------------------------------

    async def edit(self, view: ConstellationView, events: Sequence[Any]) -> Any:
        """Thinks for a random time, then removes, replaces or changes what is about to be dispatched."""
        ends = [event for event in events if isinstance(event, TaskEvent)]
        ended, reviewed = [end.task_id for end in ends], {(end.task_id, end.epoch) for end in ends}
        self.unreviewed |= reviewed
        self._verify()
        answer = self._decide(view, ended) if self.random.random() < 0.5 else None
        await self._pause(4.0)
        self._verify()
        answer = answer or self._decide(view, ended)
        self.unreviewed -= reviewed
        if self.random.random() < 0.05:
            raise RuntimeError("the editor broke")
        return answer

    async def meddle(self, orchestrator: Orchestrator) -> None:
        """A person who edits whatever was pending a while ago, held or not; being refused is part of the game."""
        while True:
            await self._pause(5.0)
            view = ConstellationView(self.plan)
            change = self._decide(view, [task.id for task in view]) if self.random.random() < 0.3 else None
            await self._pause(3.0)
            with contextlib.suppress(EditRejected):
                orchestrator.edit(
                    self.plan.id, EditBatch(tuple(change or ()), "person", base_version=view.base_version)
                )
            self._verify()

    def _verify(self) -> None:
        """Here an error would be the editor's own, and swallowed: it is noted instead."""
        execution = self.orchestrator.scheduler._executions.get(self.plan.id)
        try:
            check_invariants(self.plan, set(execution.waits) if execution is not None else ())
        except AssertionError as error:
            self.problems.append(f"invariant: {error}")

    def _decide(self, view: ConstellationView, ended: list[str]) -> list[Any] | None:
        below = {child for task_id in ended if task_id in view for child in view[task_id].dependents}
        targets = sorted(below & set(view.modifiable()))
        choice = self.random.random()
        if not targets or choice < 0.2:
            return None
        target = self.random.choice(targets)
        if choice < 0.5:
            return self._replace(view, target)
        if choice < 0.6:
            return [edits.RemoveTask(target, dependents=self.random.choice(["bridge", "remove"]))]
        if choice < 0.9:  # count up from what was seen: a lost update leaves the number too small
            return [edits.UpdateTask(target, data={"n": view[target].task.data["n"] + 1})]
        task = self._task()
        return [edits.AddTask(task), *(edits.AddDependency(source, task.id, "completion") for source in ended[:1])]

    def _replace(self, view: ConstellationView, target: str) -> list[Any]:
        task, old = self._task(), view[target]
        return [
            edits.AddTask(task),
            *(edits.AddDependency(d.source, task.id, d.on) for d in old.dependencies),
            *(edits.RemoveDependency(target, child) for child in old.dependents),
            *(edits.AddDependency(task.id, child) for child in old.dependents),
            edits.RemoveTask(target),
        ]

    # -- the judgement -------------------------------------------------------------------------------------------------

    def _judge(self, result: Result) -> None:
        check_invariants(self.plan)
        for node in self.plan.nodes.values():
            if node.status not in TERMINAL:
                self.problems.append(f"{node.id} was left {node.status}")
            elif node.status == "cancelled" and not node.open:
                self.problems.append(f"{node.id} could have run and was missed")
            elif node.status == "completed":
                self._judge_result(node.id, node.value, node.epoch)
        self._judge_events(result)
        self._judge_edits(result)

    def _judge_result(self, task_id: str, value: Any, epoch: int) -> None:
        if value != (task_id, epoch):
            self.problems.append(f"{task_id} shows the result {value} of an execution that was not its last ({epoch})")
        for source, input_value in self.inputs[epoch].items():
            if self.plan[source].value != input_value:
                self.problems.append(f"{task_id} was built on a revoked result of {source}: {input_value}")

    def _judge_events(self, result: Result) -> None:
        ends = [e for e in self.events if isinstance(e, TaskEvent) and e.kind in ("task_completed", "task_failed")]
        for task in result:
            told = [(event.kind, event.value) for event in ends if event.task_id == task.id]
            stands = [(f"task_{task.status}", task.value)] if task.status in ("completed", "failed") else []
            if told != stands:
                self.problems.append(f"{task.id}: the events told {told}, the record says {stands}")

    def _judge_edits(self, result: Result) -> None:
        for task in self.plan:
            applied = [e for e in self.events if isinstance(e, EditEvent) and e.kind == "edit_applied"]
            updates = sum(text == f"update task {task.id!r}: data" for event in applied for text in event.edits)
            if task.task.data["n"] != updates:
                self.problems.append(f"{task.id}: {updates} updates were accepted and {task.task.data['n']} are there")
        stands = {(node.id, node.epoch) for node in self.plan.nodes.values()}
        void = {cycle.id for cycle in result.cycles if not stands.issuperset(cycle.ends)}  # reviews of what was revoked
        for event in self.events:
            if isinstance(event, EditEvent) and event.kind == "edit_rejected" and event.cycle not in void:
                for violation in event.violations:
                    if violation.rule == "immutable":
                        self.problems.append(f"an editor was overtaken by what it was reviewing: {violation}")
