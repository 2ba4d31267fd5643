"""Does half of a layered plan and dies: ``python -m bench.durable.half FILE TASKS`` ends itself with SIGKILL when half
of its tasks have ended. The file then has the contents that a crash leaves: a journal, and unfinished runs."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from asterism import Constellation, Task
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.fleet.fleet import Fleet
from bench.durable import work

SLOTS = 1000
NAME = "half"
UNTIL = "bench.durable.half:until"
_left = 0
on_begin: Callable[[], None] | None = None
"""Called by every step, to find out when the first one begins."""


async def until(number: int) -> None:
    """The step of such a plan. The process that continues the plan sets no end."""
    global _left
    if on_begin is not None:
        on_begin()
    await work.step(number)
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def build(tasks: int) -> Constellation:
    plan = Constellation(NAME)
    for number, parents in enumerate(work.graph("layered", tasks)):
        plan.add(Task(str(number), call=UNTIL, inputs={"number": number}), after=map(str, parents))
    return plan


async def main(path: Path, tasks: int) -> None:
    plan = build(tasks)
    async with await Fleet.open(f"sqlite:///{path}") as fleet:
        await DurableOrchestrator(fleet, local=SLOTS).run(plan)


def let_die(tasks: int) -> None:
    """From now on count down to the end of this process."""
    global _left
    _left = tasks


if __name__ == "__main__":
    # The step is found by its import path, which is another module than the one that is executed.
    from bench.durable import half

    half.let_die(int(sys.argv[2]) // 2)
    asyncio.run(half.main(Path(sys.argv[1]), int(sys.argv[2])))
