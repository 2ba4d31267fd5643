"""How long each step takes, beside the figures that the origin of the design states for itself."""

import asyncio
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from asterism import Constellation, LocalDevice, Orchestrator, Task, edits
from bench.graphs import Graph, layers
from bench.proof import check_plan, nothing

CLAIMS = {
    "ready to dispatch": "< 10 ms",
    "end to next iteration": "< 5 ms",
    "edit to synchronised": "10–50 ms",
}
THROUGHPUT_CLAIM = "10–100 tasks/s"


@dataclass(frozen=True)
class Spread:
    """Seconds."""

    median: float
    worst: float  # 99 of 100 are quicker

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
        return cls(cuts[49], cuts[98])


@dataclass(frozen=True)
class Latencies:
    tasks: int
    steps: dict[str, Spread]
    throughput: float


class Stopwatch:
    """Wraps the steps of one orchestrator and notes when each happened."""

    def __init__(self) -> None:
        self.ready: dict[str, float] = {}
        self.dispatched: list[float] = []
        self.ended: list[float] = []
        self.iterations: list[float] = []
        self.edited: list[float] = []
        self._waiting: list[float] = []

    def attach(self, orchestrator: Orchestrator, plan: Constellation) -> None:
        push, start, step = plan.queue.push, plan.start, orchestrator.scheduler._step
        clock = time.perf_counter

        def pushed(node: Any) -> None:
            self.ready[node.id] = clock()
            push(node)

        def started(node: Any, *rest: Any) -> int:
            self.dispatched.append(clock() - self.ready[node.id])
            return start(node, *rest)

        def stepped() -> None:
            now = clock()
            self.iterations += [now - ended for ended in self._waiting]
            self._waiting.clear()
            step()

        plan.queue = _Queue(plan.queue, pushed)  # type: ignore[assignment]
        plan.start = started  # type: ignore[method-assign, assignment]
        orchestrator.scheduler._step = stepped  # type: ignore[method-assign]

    def note_end(self) -> None:
        self._waiting.append(time.perf_counter())


class _Queue:
    """A ready queue that tells when a task is pushed."""

    def __init__(self, queue: Any, push: Any) -> None:
        self._queue, self.push = queue, push

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def measure(tasks: int) -> Latencies:
    """Run a layered plan with an editor that changes a task in every cycle; every step is timed as it happens."""
    width = min(10, tasks // 2)
    graph = layers(tasks // width, width)
    watch = Stopwatch()
    plan = _plan(graph, watch)
    editor = _Editor(watch)
    orchestrator = Orchestrator([LocalDevice(f"device-{n}") for n in range(5)], editor=editor)
    watch.attach(orchestrator, plan)
    began = time.perf_counter()
    result = asyncio.run(orchestrator.run(plan))
    took = time.perf_counter() - began
    check_plan(result, nothing(range(len(graph))))
    samples = (len(watch.dispatched), len(watch.iterations), len(watch.edited))
    assert samples == (len(graph), len(graph), plan.version), f"{samples} samples of {len(graph)} tasks"
    assert plan.version == result.summary.edits_accepted > 0, f"{plan.version} edits were applied"
    steps = {
        "ready to dispatch": Spread.of(watch.dispatched),
        "end to next iteration": Spread.of(watch.iterations),
        "edit to synchronised": Spread.of(watch.edited),
    }
    return Latencies(len(graph), steps, len(graph) / took)


def _plan(graph: Graph, watch: Stopwatch) -> Constellation:
    async def body() -> None:
        await asyncio.sleep(0)
        watch.note_end()

    plan = Constellation("latency")
    for task, parents in enumerate(graph):
        plan.add(Task(str(task), call=body), after=map(str, parents))
    return plan


class _Editor:
    """Answers every cycle with a small edit, and notes how long it takes from the answer to the applied plan."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch

    async def edit(self, view: Any, events: Any) -> Any:
        target = next(self._below(view, events), None)
        version, answered = view.version, time.perf_counter()

        def applied() -> None:
            if view.version > version:
                self.watch.edited.append(time.perf_counter() - answered)

        asyncio.get_running_loop().call_soon(applied)
        return None if target is None else [edits.UpdateTask(target, description=f"seen in version {version}")]

    def _below(self, view: Any, events: Any) -> Iterator[str]:
        for event in events:
            for child in view[event.task_id].dependents:
                if view[child].status == "pending":
                    yield child
