"""The event loop of a simulation: the one for tests, without what only real time and real sockets need.

A world takes thousands of turns of its loop, and a hunt plays tens of thousands of worlds.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import logging
import random
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from asterism.core.errors import AsterismError
from asterism.testing.sim.witness import Violation, Witness
from asterism.testing.virtual_time import Deadlock, SimLoop

SAME = 1e-6
"""What is due within so many seconds is due at the same moment."""


class Playable(Protocol):
    @property
    def witness(self) -> Witness: ...

    def play(self) -> Coroutine[Any, Any, None]: ...


World = TypeVar("World", bound=Playable)


class _Due:
    """What asyncio calls a handle: a callback, the context it runs in, and whether it was called off."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_loop")

    def __init__(self, loop: Clockwork, callback: Any, args: Any, context: Any) -> None:
        self._loop, self._callback, self._args = loop, callback, args
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # they may hold much

    def cancelled(self) -> bool:
        return self._cancelled

    def run(self) -> None:
        try:
            self._context.run(self._callback, *self._args)
        except Exception as error:
            self._loop.call_exception_handler({"message": "a callback failed", "exception": error})


class Clockwork(SimLoop):
    """``Clockwork(seed).run_until_complete(main())``. Whatever is ready at one moment runs in an order that follows the
    seed, and so do timers for one instant."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._order = random.Random(seed)
        self._due: list[_Due] = []
        self._timers: list[tuple[float, int, _Due]] = []
        self._made = 0
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        due = _Due(self, callback, args, context)
        self._due.append(due)
        return due

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError("there are no threads in a simulation")

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        due = _Due(self, callback, args, context)
        self._made += 1
        # kept apart by less than the clock can tell, so that their order is the seed's
        heapq.heappush(self._timers, (when + self._order.random() * 1e-7, self._made, due))
        return due

    def _run_once(self) -> None:
        timers = self._timers
        if not self._due:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Deadlock(f"nothing can happen any more, at {self._now:.3f} s")
            self._now = max(self._now, round(timers[0][0], 6))
        while timers and timers[0][0] <= self._now + SAME:
            self._due.append(heapq.heappop(timers)[2])
        due, self._due = self._due, []
        if len(due) > 1:
            self._order.shuffle(due)
        for one in due:
            if not one._cancelled:
                one.run()


def play(seed: int, make: Callable[[], World], replay: str, seen: list[World] | None = None) -> World:
    """Make a world inside a loop that has its time, and play it to its end. Raises Violation with the first promise
    that was broken, and ``replay``, which plays it again (it is a note on whatever else is raised); ``seen`` gets the
    world even then."""
    loop, mistakes = Clockwork(seed), Mistakes()
    loop.set_exception_handler(mistakes.left_alone)

    async def made() -> World:
        return make()

    try:
        mistakes.listen()
        asyncio.set_event_loop(loop)
        world = loop.run_until_complete(made())
        if seen is not None:
            seen.append(world)
        loop.run_until_complete(world.play())
    except Exception as error:
        error.add_note(f"replay with: {replay}")
        raise
    finally:
        mistakes.close()
        asyncio.set_event_loop(None)
        _finish(loop)
    for broken in (*mistakes.found, *world.witness.violations):
        raise Violation(f"{broken}\nreplay with: {replay}")
    return world


class Mistakes(logging.Handler):
    """Hears of what goes wrong in a world and is no fault of the world. A device that lives on after a mistake in its
    own code logs it, and nobody reads the log of a world."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def listen(self) -> None:
        logging.getLogger("asterism").addHandler(self)

    def close(self) -> None:
        logging.getLogger("asterism").removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None:
            self._add(record.exc_info[1])

    def left_alone(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A task of the event loop has raised something, and nobody waited for it."""
        if not isinstance(context.get("exception"), AsterismError):
            self._add(context.get("exception"))

    def _add(self, error: BaseException | None) -> None:
        if error is not None:
            told = "".join(traceback.format_exception(error))
            self.found.append(f"a mistake in Asterism itself: {error!r}\n{told}")


def _finish(loop: Clockwork) -> None:
    """What a crash has left hangs wherever it was, also when it is told to end: it is told again."""
    for _ in range(50):
        left = asyncio.all_tasks(loop)
        if not left:
            break
        for task in left:
            task.cancel()
        with contextlib.suppress(Exception):
            loop.run_until_complete(_a_turn())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _a_turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)
