"""How many Python functions are called for each task of a durable chain: ``python -m bench.durable.calls``.

Counted in all threads with ``sys.setprofile``, those of the standard library too; a coroutine counts each time that it
is resumed. Counted is from the moment at which the first task runs to the moment at which the last one does: what the
beginning and the end of a plan cost does not belong to a task.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import asterism
from asterism import Constellation, DurableOrchestrator, Fleet, Task
from bench.peers.surroundings import scratch

PACKAGE = f"{Path(asterism.__file__).parent}/"
STANDARD_LIBRARY = "standard library"
STEP = "bench.durable.calls:step"
TASKS = 200

BUDGET = {
    "core": 40.0,
    "orchestrator": 24.0,
    "durable": 60.0,
    "store": 40.0,
    "execution": 18.0,
    "fleet": 45.0,
    "base": 20.0,
    STANDARD_LIBRARY: 170.0,
    "all": 380.0,
}
"""The calls that a task of a chain may cost at most, by the package of the functions and together."""


_last = 0
_calls: Counter[CodeType] = Counter()
_on = False


async def step(number: int) -> None:
    """The first task begins to count, the last one ends that."""
    global _on
    _on = number < _last
    await asyncio.sleep(0)


def _event(frame: FrameType, event: str, argument: Any) -> None:
    if _on and event == "call":
        _calls[frame.f_code] += 1


def calls_per_task(tasks: int = TASKS) -> dict[CodeType, float]:
    """The calls of each function for one task, in a chain of so many."""
    for length in (10, tasks):  # the first imports modules and fills caches
        _run(length)
    return {code: number / (tasks - 1) for code, number in _calls.items()}


def _run(tasks: int) -> None:
    global _last
    _last = tasks - 1
    _calls.clear()
    plan = Constellation("bench")
    for number in range(tasks):
        plan.add(Task(str(number), call=STEP, inputs={"number": number}), after=str(number - 1) if number else ())

    async def run(path: Path) -> None:
        async with await Fleet.open(f"sqlite:///{path}") as fleet:
            await DurableOrchestrator(fleet, local=1).run(plan)

    with scratch() as folder:
        threading.setprofile(_event)
        sys.setprofile(_event)
        try:
            asyncio.run(run(folder / "calls.db"))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def by_package(calls: dict[CodeType, float]) -> dict[str, float]:
    """The calls by the package of their functions, and together."""
    packages = dict.fromkeys((name for name in BUDGET if name != "all"), 0.0)
    for code, number in calls.items():
        file = code.co_filename
        name = file.removeprefix(PACKAGE).partition("/")[0] if file.startswith(PACKAGE) else STANDARD_LIBRARY
        packages[name] = packages.get(name, 0.0) + number
    return {**packages, "all": sum(packages.values())}


def main() -> None:
    counted = calls_per_task()
    print("| package | calls of a task | at most |\n| --- | ---: | ---: |")
    for name, number in by_package(counted).items():
        print(f"| {name} | {number:.1f} | {BUDGET.get(name, 0.0):.0f} |")
    if "-v" in sys.argv:
        for code, number in sorted(counted.items(), key=lambda item: (item[0].co_filename, item[0].co_firstlineno)):
            if number >= 0.2:
                place = f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_firstlineno}"
                print(f"{number:6.2f}  {place[-60:]} {code.co_qualname}")


if __name__ == "__main__":
    from bench.durable import calls  # where the tasks find their function: another module than this one

    calls.main()
