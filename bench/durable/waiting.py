"""Many tasks that wait for the world: the processor time of the process that runs their plan, while nothing comes, and
how long it takes until all have gone on.

Each task waits for an event of its own. The plan is in an SQLite file. What is asserted: all tasks wait when the
measurement begins, none has gone on when it ends, and each goes on with the data of its event.
"""

import asyncio
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.fleet.fleet import Fleet
from asterism.fleet.sent_events import send_event
from asterism.orchestrator.events import Event

BAR = 0.02
"""The share of one processor that they may take at most."""

SENDERS = 4
"""How many events are sent at once."""


@dataclass(frozen=True)
class Sizes:
    tasks: int = 10_000
    seconds: float = 60.0
    settle: float = 5.0


@dataclass(frozen=True)
class Measured:
    """``processor`` is the share of one processor while the tasks waited for ``seconds``; ``continued`` is how many
    seconds passed from the first event that was sent to the end of the plan."""

    tasks: int
    seconds: float
    processor: float
    continued: float


FULL = Sizes()


def measure(sizes: Sizes = FULL) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(f"sqlite:///{Path(folder) / 'waiting.db'}", sizes))


async def _measure(url: str, sizes: Sizes) -> Measured:
    plan, kinds = Constellation("waiting"), Counter[str]()
    for number in range(sizes.tasks):
        plan.add(Task(f"t{number}", wait_for={"event": f"paid/{number}"}))
    async with await Fleet.open(url) as fleet, await Fleet.open(url) as sender:
        orchestrator = DurableOrchestrator(fleet, local=1)
        all_wait = asyncio.Event()

        def count(event: Event) -> None:
            kinds.update([event.kind])
            if kinds["task_waiting"] == sizes.tasks:
                all_wait.set()

        orchestrator.events.subscribe(count)
        running = asyncio.create_task(orchestrator.run(plan))
        await all_wait.wait()
        await asyncio.sleep(sizes.settle)  # the last of the waits are written
        used, at = time.process_time(), time.monotonic()
        await asyncio.sleep(sizes.seconds)
        seconds, used = time.monotonic() - at, time.process_time() - used
        assert set(kinds) == {"constellation_started", "task_waiting"}, "a task went on before its event"
        at = time.monotonic()
        for first in range(0, sizes.tasks, SENDERS):
            batch = range(first, min(first + SENDERS, sizes.tasks))
            await asyncio.gather(*(send_event(sender.store, f"paid/{number}", number) for number in batch))
        result = await running
        continued = time.monotonic() - at
    assert [result[f"t{number}"].value for number in range(sizes.tasks)] == list(range(sizes.tasks))
    return Measured(sizes.tasks, seconds, used / seconds, continued)
