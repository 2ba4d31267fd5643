"""One seeded race: a random plan, random devices, and editors that remove and replace what is about to be dispatched.

``race(seed)`` runs it and raises AssertionError if one of the promises was broken. What it watches is independent of the lock it
tests: the task bodies and the editors write a log of their own, and the rules are judged from that log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from asterism import Constellation, EditEvent, LocalDevice, Orchestrator, Task, TaskEvent, Work, edits
from asterism.core.lock import POLICIES
from asterism.core.status import TERMINAL, TaskStatus
from asterism.core.verify import verify
from asterism.core.view import ConstellationView
from asterism.testing.loop import run


@dataclass
class Log:
    """What the bodies of tasks and the editors saw, in order."""

    started: dict[str, int] = field(default_factory=dict)  # times the body of a task began
    results: dict[str, list[Any]] = field(default_factory=dict)  # what each body returned, in order
    reviewing: set[str] = field(default_factory=set)  # ended tasks whose editor has not answered
    removed: set[str] = field(default_factory=set)
    replaced: dict[str, str] = field(default_factory=dict)  # old id -> new id, by an accepted edit
    expected: dict[str, int] = field(default_factory=dict)  # the timeout that the last accepted update gave a task
    problems: list[str] = field(default_factory=list)
    visible: list[tuple[str, Any]] = field(default_factory=list)


class Race:
    def __init__(self, seed: int, policy: str | None = None) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.policy = policy or self.random.choice(POLICIES)
        self.log = Log()
        self.plan = Constellation(f"race-{seed}")
        self.fresh = 0
        self._build()

    def _build(self) -> None:
        names: list[str] = []
        for _ in range(self.random.randint(4, 14)):
            task = self._task()
            count = min(len(names), self.random.choice([0, 1, 1, 2, 3]))
            after = {name: self._on() for name in self.random.sample(names, count)}
            self.plan.add(task, after)
            names.append(task.id)

    def _on(self) -> str:
        return self.random.choice(["success", "success", "completion"])

    def _task(self) -> Task:
        self.fresh += 1
        return Task(
            f"t{self.fresh}",
            revocable=self.policy == "speculative" and self.random.random() < 0.7,
            retries=self.random.choice([0, 0, 1]),
            backoff=0.1,
            timeout=1000.0,
        )

    # -- the work ------------------------------------------------------------------------------------------------------

    async def work(self, work: Work) -> Any:
        """The body of every task: notes what must not be, takes a random time, and sometimes fails."""
        log, task_id = self.log, work.task.id
        node = self.plan.node(task_id) if task_id in self.plan else None
        revocable = work.task.revocable
        if node is None or (task_id in log.removed and not revocable):
            log.problems.append(f"{task_id} was removed and started")
        if not revocable:
            self._check_start(work)
        log.started[task_id] = log.started.get(task_id, 0) + 1
        await self._pause(3)
        if self.random.random() < 0.15:
            raise RuntimeError("unlucky")
        value = (task_id, work.epoch)
        log.results.setdefault(task_id, []).append(value)
        return value

    def _check_start(self, work: Work) -> None:
        log, task_id = self.log, work.task.id
        if log.started.get(task_id, 0) > work.task.retries:
            log.problems.append(f"{task_id} was started more often than its retries allow")
        for source in work.results:
            if source in log.reviewing:
                log.problems.append(f"{task_id} was started before the review of {source} was over")
        if task_id in log.expected and work.task.timeout != log.expected[task_id]:
            log.problems.append(f"{task_id} was started from a stale plan (timeout {work.task.timeout})")

    async def _pause(self, longest: float) -> None:
        if self.random.random() < 0.3:
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(self.random.choice([0.5, 1.0, self.random.uniform(0, longest)]))

    # -- the editor ----------------------------------------------------------------------------------------------------

    async def edit(self, view: ConstellationView, events: Sequence[Any]) -> Any:
        """Think for a random time, then remove, replace or change what is about to be dispatched."""
        ended = [event.task_id for event in events if isinstance(event, TaskEvent)]
        await self._pause(4)
        if self.random.random() < 0.05:
            raise RuntimeError("the editor broke")
        return self._decide(view, ended)

    def _decide(self, view: ConstellationView, ended: list[str]) -> list[Any] | None:
        below = {child for task_id in ended if task_id in view for child in view[task_id].dependents}
        targets = sorted(task_id for task_id in below if view[task_id].status == "pending" or view[task_id].provisional)
        choice = self.random.random()
        if not targets or choice < 0.3:
            return None
        target = self.random.choice(targets)
        if choice < 0.6:
            return self._replace(view, target)
        if choice < 0.75:
            return [edits.RemoveTask(target, dependents=self.random.choice(["bridge", "remove"]))]
        if choice < 0.9:
            return [edits.UpdateTask(target, timeout=float(self.random.randint(1001, 2000)))]
        task = self._task()
        return [edits.AddTask(task), *(edits.AddDependency(source, task.id, "completion") for source in ended[:1])]

    def _replace(self, view: ConstellationView, target: str) -> list[Any]:
        task = self._task()
        old = view[target]
        return [
            edits.AddTask(task),
            *(edits.AddDependency(d.source, task.id, d.on) for d in old.dependencies),
            *(edits.RemoveDependency(target, child) for child in old.dependents),
            *(edits.AddDependency(task.id, child) for child in old.dependents),
            edits.RemoveTask(target),
        ]

    # -- watching ------------------------------------------------------------------------------------------------------

    def watch(self, orchestrator: Orchestrator) -> None:
        """Wrap the two places where truth is made: an applied edit and a recorded end."""
        execution = orchestrator._executions[self.plan.id]
        lock, cycles, log = execution.lock, execution.cycles, self.log
        finish, close, apply = lock.finish, lock.close, self.plan.apply

        def finished(node: Any, status: TaskStatus, *rest: Any, **more: Any) -> None:
            log.reviewing.add(node.id)
            finish(node, status, *rest, **more)
            verify(self.plan)

        def closed(cycle: Any, *rest: Any) -> Any:
            log.reviewing.difference_update(cycle.tasks)
            confirmed = close(cycle, *rest)
            verify(self.plan)
            return confirmed

        def applied(batch: Any, now: float) -> Any:
            done = apply(batch, now)
            verify(self.plan)
            self._note(batch)
            return done

        object.__setattr__(lock, "finish", finished) if hasattr(lock, "__dict__") else None
        del cycles
        self.plan.apply = applied  # type: ignore[method-assign]
        _Wrapped.wrap(lock, finished, closed)

    def _note(self, batch: Any) -> None:
        for edit in batch.edits:
            if isinstance(edit, edits.RemoveTask):
                self.log.removed.add(edit.task_id)
            elif isinstance(edit, edits.UpdateTask):
                self.log.expected[edit.task_id] = edit.changes["timeout"]
            elif isinstance(edit, edits.AddTask):
                self.log.replaced[edit.task.id] = edit.task.id


class _Wrapped:
    @staticmethod
    def wrap(lock: Any, finish: Callable[..., None], close: Callable[..., Any]) -> None: ...
