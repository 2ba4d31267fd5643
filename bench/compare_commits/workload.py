"""The work by which two commits are compared.

``python -m bench.compare_commits.workload PART SCALE`` does one part in this process, with the Asterism of the
interpreter that runs it, and prints a line of JSON.

Only public names of Asterism are used, so that the same file measures commits of different layouts.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import asterism
from asterism import Constellation, DeviceAgent, DurableOrchestrator, Fleet, Task, Workflow
from bench import loop
from bench.durable.work import STEP, trace
from bench.graphs import Graph, chain, check, independent, layers
from bench.measure import Sample, best_of, timed_result
from bench.peers import asterism_peer
from bench.peers.surroundings import environment, scratch
from bench.runs import work
from bench.runs.work import NOTHING

REPEATS = 3
"""How often each process does its part; the least counts, since what disturbs a run only adds."""

IN_FLIGHT = 1000
SLOTS = 1000


def _tune_gc() -> None:
    """As the commands of Asterism do for processes that are devices or orchestrators."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


# -- cost per task -----------------------------------------------------------------------------------------------------


def _cost(graph: Graph) -> Sample:
    return best_of(lambda: asterism_peer.run(graph), REPEATS)


# -- runs on SQLite ----------------------------------------------------------------------------------------------------


async def _runs(number: int, in_flight: int) -> Sample:
    """Runs of a fleet with one device in this process: created, claimed, executed, completed, and waited for."""
    async with await Fleet.open() as fleet:
        agent = DeviceAgent(fleet, "bench", slots=in_flight)
        living = asyncio.create_task(agent.run())
        await agent.joined.wait()
        flow = await fleet.workflows.add(Workflow("nothing", call=NOTHING))
        left = iter(range(number))

        async def create_and_wait() -> None:
            for _ in left:
                run = await fleet.create(flow, {"number": 1})
                ended = await fleet.wait(run.id)
                assert ended.status == "completed", f"{ended.status}: {ended.error}"

        executed = work.executed
        sample = await _timed(number, lambda: asyncio.gather(*(create_and_wait() for _ in range(in_flight))))
        agent.drain()
        await living
        assert work.executed - executed == number, f"{work.executed - executed} executions of {number} runs"
        return sample


async def _timed(tasks: int, action: Callable[[], Awaitable[object]]) -> Sample:
    cpu, wall = time.process_time(), time.perf_counter()
    await action()
    return Sample(tasks, time.perf_counter() - wall, time.process_time() - cpu)


def _runs_on_sqlite(number: int, in_flight: int) -> Sample:
    _tune_gc()

    def once() -> Sample:
        with scratch() as folder, environment(_store(folder)), loop.runner() as runner:
            return runner.run(_runs(number, in_flight))

    return best_of(once, REPEATS)


def _store(folder: Path) -> dict[str, str]:
    return {"ASTERISM_STORE": f"sqlite:///{folder}/fleet.db", "XDG_STATE_HOME": str(folder)}


# -- durable plans -----------------------------------------------------------------------------------------------------


def _durable(graph: Graph) -> Sample:
    _tune_gc()

    def once() -> Sample:
        plan = Constellation("bench")
        for task, parents in enumerate(graph):
            plan.add(Task(str(task), call=STEP, inputs={"number": task}), after=map(str, parents))
        trace.clear()
        with scratch() as folder, environment(_store(folder)), loop.runner() as runner:
            fleet = runner.run(Fleet.open())
            try:
                orchestrator = DurableOrchestrator(fleet, local=SLOTS)
                sample, result = timed_result(len(graph), lambda: runner.run(orchestrator.run(plan)))
            finally:
                runner.run(fleet.close())
        check(graph, trace)
        assert result.state == "completed", f"the plan is {result.state}"
        assert len(result.values) == len(graph), f"{len(result.values)} of {len(graph)} tasks completed"
        return sample

    return best_of(once, REPEATS)


PARTS: dict[str, tuple[str, Callable[[float], Sample]]] = {
    "cost-independent": ("cost per task, independent", lambda scale: _cost(independent(int(10_000 * scale)))),
    "cost-chain": ("cost per task, chain", lambda scale: _cost(chain(int(2_000 * scale)))),
    "cost-layers": ("cost per task, layers of 20", lambda scale: _cost(layers(int(500 * scale), 20))),
    "runs-alone": ("runs on SQLite, one by one", lambda scale: _runs_on_sqlite(int(500 * scale), 1)),
    "runs-in-flight": (
        f"runs on SQLite, up to {IN_FLIGHT:,} in flight",
        lambda scale: _runs_on_sqlite(int(5_000 * scale), min(IN_FLIGHT, int(5_000 * scale))),
    ),
    "durable-wide": ("durable wide", lambda scale: _durable(independent(int(5_000 * scale)))),
    "durable-chain": ("durable chain", lambda scale: _durable(chain(int(500 * scale)))),
}
"""By name: what it is, and the function that measures it. All sizes are multiplied by ``scale``."""


def main(part: str, scale: float) -> None:
    sample = PARTS[part][1](scale)
    package = str(Path(asterism.__file__).resolve().parent)
    print(json.dumps({"package": package, "tasks": sample.tasks, "wall": sample.wall, "cpu": sample.cpu}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
