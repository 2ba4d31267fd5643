"""What editing costs, and that it does not grow with the plan."""

import asyncio
import gc
import statistics
import time
from dataclasses import dataclass
from typing import Any

from asterism import Constellation, EditBatch, LocalDevice, Orchestrator, Task, edits
from bench.graphs import check, layers
from bench.measure import Sample, timed_result_async
from bench.peers.asterism_peer import build
from bench.proof import check_plan, nothing

GROWTH = 2.0
"""Cost per task (and per edit) at 100,000 tasks may be this many times that at 1,000."""

SIZES = (1_000, 100_000)


@dataclass(frozen=True)
class Growth:
    """A cost in seconds at the small and at the large size."""

    what: str
    small: float
    large: float

    @property
    def ratio(self) -> float:
        return self.large / self.small


class Reviewer:
    """An editor that reviews every end and changes nothing."""

    def __init__(self) -> None:
        self.reviewed: list[str] = []

    async def edit(self, view: Any, events: Any) -> None:
        self.reviewed += [event.task_id for event in events]


class Grower:
    """An editor that adds a task for every end, until the plan has its size."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.added: list[str] = []

    async def edit(self, view: Any, events: Any) -> list[Any]:
        added: list[Any] = []
        for event in events[: self.left]:
            task = Task(f"more-{self.left - len(added) // 2}", call=_noop)
            added += [edits.AddTask(task), edits.AddDependency(event.task_id, task.id)]
            self.added.append(task.id)
        self.left -= len(added) // 2
        return added


async def _noop() -> None:
    await asyncio.sleep(0)


def with_empty_answers(size: int) -> Sample:
    """Raises unless every task ran once, completed, and its end was reviewed once."""
    graph, trace, editor = layers(size // 20, 20), list[int](), Reviewer()
    plan = build(graph, trace)
    sample, result = timed_result_async(size, lambda: Orchestrator([LocalDevice("here")], editor=editor).run(plan))
    check(graph, trace)
    check_plan(result, nothing(range(size)))
    assert sorted(map(int, editor.reviewed)) == list(range(size)), (
        f"{len(editor.reviewed)} of {size} ends were reviewed"
    )
    return sample


def with_growth(size: int) -> Sample:
    """A plan of half the size that its editor doubles. Raises unless it did, and every task ran once and completed."""
    graph, trace, editor = layers(size // 40, 20), list[int](), Grower(size // 2)
    plan = build(graph, trace)
    sample, result = timed_result_async(size, lambda: Orchestrator([LocalDevice("here")], editor=editor).run(plan))
    check(graph, trace)
    check_plan(result, nothing([*range(len(graph)), *editor.added]))
    assert len(result) == size, f"the plan has {len(result)} tasks, and should have grown to {size}"
    return sample


def ten_operations(size: int) -> float:
    """The processor time of one accepted edit of ten operations in the middle of a running plan, the middle of many."""
    plan = build(layers(size // 20, 20), [])
    plan.begin(0.0)
    took = []
    for turn in range(300):
        batch = _ten(plan, size // 2 + turn % 100, turn)
        began = time.process_time_ns()
        version, applied = plan.version, plan.apply(batch, 0.0)
        took.append(time.process_time_ns() - began)
        assert (len(plan), plan.version) == (size + 2, version + 1), "the edit was not applied"
        assert applied.inverse is not None
        plan.apply(applied.inverse, 0.0)
    assert len(plan) == size, f"the plan has {len(plan)} tasks of {size} after all edits were undone"
    return statistics.median(took) / 1e9


def _ten(plan: Constellation, at: int, turn: int) -> EditBatch:
    """Insert two tasks above a task, change three, rewire: ten operations in all."""
    target, first, second = str(at), f"in-{turn}-a", f"in-{turn}-b"
    source = plan[target].dependencies[0].source
    return EditBatch(
        (
            edits.AddTask(Task(first, call=_noop)),
            edits.AddTask(Task(second, call=_noop)),
            edits.AddDependency(source, first),
            edits.AddDependency(first, second),
            edits.AddDependency(second, target),
            edits.RemoveDependency(source, target),
            edits.UpdateTask(target, timeout=9.0),
            edits.UpdateTask(str(at + 1), timeout=9.0),
            edits.UpdateTask(str(at + 2), timeout=9.0),
            edits.UpdateDependency(plan[target].dependencies[1].source, target, "completion"),
        ),
        author="bench",
        base_version=plan.version,
    )


def growth() -> list[Growth]:
    rows = []
    for what, measure in (("empty answers", with_empty_answers), ("a task added per end", with_growth)):
        costs = []
        for size, repeats in zip(SIZES, (9, 2), strict=True):
            samples = []
            for _ in range(repeats):
                gc.collect()
                samples.append(measure(size).cpu_per_task)
            costs.append(min(samples))
        rows.append(Growth(what, *costs))
    rows.append(Growth("an edit of ten operations", *(ten_operations(size) for size in SIZES)))
    return rows
