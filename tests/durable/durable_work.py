"""Functions of the tasks in these tests. They are imported by path, as in another process."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

DONE: Counter[str] = Counter()
"""How often each task was executed to its end."""

GO: dict[str, asyncio.Event] = {}

BEGUN: list[str] = []
"""The tasks that have begun, in their order."""


def reset() -> None:
    DONE.clear()
    GO.clear()
    BEGUN.clear()


def gate(name: str) -> asyncio.Event:
    return GO.setdefault(name, asyncio.Event())


async def work(name: str) -> str:
    DONE[name] += 1
    return f"{name} done"


async def brief(name: str) -> str:
    """Lasts some milliseconds, which differ from name to name: it ends while something else is written."""
    await asyncio.sleep(0.001 * (sum(map(ord, name)) % 17))
    return await work(name)


async def wait(name: str) -> str:
    """Waits until the test opens its gate."""
    gate(f"{name} begun").set()
    await gate(name).wait()
    DONE[name] += 1
    return f"{name} done"


async def in_order(name: str) -> str:
    """Notes when it begins, and waits until the test opens its gate."""
    BEGUN.append(name)
    return await wait(name)


async def noted(name: str) -> str:
    """Notes when it begins, and when it is over."""
    BEGUN.append(name)
    try:
        return await wait(name)
    finally:
        BEGUN.append(f"{name} is over")


async def reporting(name: str, run: Any) -> str:
    """Reports progress, and waits."""
    run.report(1, 2)
    return await wait(name)


async def printing(name: str) -> str:
    print(f"{name} says hello")
    return await work(name)


async def talking(name: str) -> str:
    """Prints before and after it waits for its gate."""
    print(f"{name} begins")
    value = await wait(name)
    print(f"{name} ends")
    return value


async def talks_and_fails(name: str) -> None:
    print(f"{name} fails")
    await fail(name)


async def who_am_i() -> str:
    return "another function"


async def stubborn(name: str) -> str:
    """Waits until the test opens its gate, and ignores cancellation."""
    gate(f"{name} begun").set()
    while not gate(name).is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await gate(name).wait()
    return await work(name)


async def numbered(name: str) -> int:
    """Like ``stubborn``, with a gate for each execution. Returns the number of the execution."""
    DONE[f"{name} begun"] += 1
    number = DONE[f"{name} begun"]
    await stubborn(f"{name} {number}")
    return number


async def slow(name: str) -> str:
    await asyncio.sleep(8.0)
    return await work(name)


async def fail(name: str) -> None:
    DONE[name] += 1
    raise ValueError(f"{name} is out of paper")


async def like_a_secret() -> dict[str, str]:
    return {"secret": "MY_TOKEN"}


async def echo(given: Any) -> list[Any]:
    return [given]


async def join(first: str, second: str) -> list[str]:
    return [first, second]


async def everything(results: dict[str, Any]) -> list[str]:
    return sorted(results)


async def input_and_results(first: Any, results: dict[str, Any]) -> list[Any]:
    return [first, dict(results)]


async def whatever(**inputs: Any) -> list[str]:
    return sorted(inputs)


async def who(run: Any) -> list[Any]:
    return [run.id, run.epoch]


def outer() -> Any:
    def inner() -> None: ...

    return inner


def shadowed() -> None: ...


ORIGINAL = shadowed


def shadowed() -> None:  # type: ignore[no-redef]
    """Another function under the same name."""


async def given(value: Any, until: str | None = None) -> Any:
    """Returns the value; with ``until``, not before the test opens that gate."""
    if until is not None:
        gate(f"{until} begun").set()
        await gate(until).wait()
    return value


async def tick_of(tick: Any, **inputs: Any) -> list[Any]:
    return [tick, tick.date, inputs]


def write_line(file: str, line: str) -> None:
    with open(file, "a") as lines:
        lines.write(f"{line}\n")
