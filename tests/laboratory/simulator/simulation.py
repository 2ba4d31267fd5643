"""One simulation: the event loop it runs on, the errors it collects, and the command that replays it."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import importlib
import json
import logging
import random
import shlex
import traceback
from collections.abc import Coroutine, Mapping, Set
from typing import Any, Protocol, TypeVar, overload

from asterism.core.errors import AsterismError
from asterism.testing.virtual_time import Deadlock, SimLoop, moment
from tests.laboratory.simulator.checker import Checker, Violation
from tests.laboratory.simulator.fleet_world import FleetWorld


class Playable(Protocol):
    """A world: made of a seed, inside the loop that has its time, and played once."""

    def __init__(self, seed: int, **arguments: Any) -> None: ...

    @property
    def checker(self) -> Checker: ...

    def play(self) -> Coroutine[Any, Any, None]: ...


World = TypeVar("World", bound=Playable)


class SimulationLoop(SimLoop):
    """SimLoop without what only real time and real sockets need: a world takes thousands of turns of its loop, a hunt
    plays tens of thousands of worlds. Callbacks that are ready at one moment run in an order that follows the seed, and
    so do timers for one instant."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._order = random.Random(seed)
        self._due: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.Handle]] = []
        self._made = 0
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        due = asyncio.Handle(callback, args, self, context)
        self._due.append(due)
        return due

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError("a simulation has no threads")

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        due = asyncio.Handle(callback, args, self, context)
        self._made += 1
        heapq.heappush(self._timers, (moment(when), self._made, due))
        return due

    def _run_once(self) -> None:
        timers = self._timers
        if not self._due:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Deadlock(f"deadlock at {self._now:.3f} s: no callback is ready and no timer is set")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._due.append(heapq.heappop(timers)[2])
        due, self._due = self._due, []
        if len(due) > 1:
            self._order.shuffle(due)
        for callback in due:
            if not callback._cancelled:
                callback._run()


@overload
def simulate(seed: int, seen: list[FleetWorld] | None = None, **arguments: Any) -> FleetWorld: ...
@overload
def simulate(seed: int, seen: list[World] | None = None, world: type[World] = ..., **arguments: Any) -> World: ...
def simulate(seed: int, seen: list[Any] | None = None, world: type[Any] = FleetWorld, **arguments: Any) -> Any:
    """Play the world of one seed to its end, and return it.

    :param seed: decides everything that happens in the world.
    :param seen: receives the world, also if the simulation fails.
    :param world: the kind of world: one of this package, or your own.
    :param arguments: further arguments of the world.
    :raises Violation: the first promise that was broken, with the command that replays the world. The command is a note
        on any other exception.
    """
    replay = replay_line(seed, world, arguments)
    loop, errors = SimulationLoop(seed), ErrorCollector()
    loop.set_exception_handler(errors.on_unhandled)

    async def make() -> Playable:
        made: Playable = world(seed, **arguments)
        return made

    try:
        errors.listen()
        asyncio.set_event_loop(loop)
        made = loop.run_until_complete(make())
        if seen is not None:
            seen.append(made)
        loop.run_until_complete(made.play())
    except Exception as error:
        error.add_note(f"replay with: {replay}")
        raise
    finally:
        errors.close()
        asyncio.set_event_loop(None)
        _shut_down(loop)
    for broken in (*errors.collected, *made.checker.violations):
        raise Violation(f"{broken}\nreplay with: {replay}")
    return made


class ErrorCollector(logging.Handler):
    """Collects errors that no simulated fault explains: a device that survives a bug in its own code logs it, and a
    simulation does not show its log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.collected: list[str] = []

    def listen(self) -> None:
        logging.getLogger("asterism").addHandler(self)

    def close(self) -> None:
        logging.getLogger("asterism").removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None:
            self._add(record.exc_info[1])

    def on_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A task has raised an exception that no other task retrieved."""
        if not isinstance(context.get("exception"), AsterismError):
            self._add(context.get("exception"))

    def _add(self, error: BaseException | None) -> None:
        if error is not None:
            text = "".join(traceback.format_exception(error))
            self.collected.append(f"a bug in Asterism: {error!r}\n{text}")


def _shut_down(loop: SimulationLoop) -> None:
    """Cancel what is left. Tasks of a crashed machine hang wherever they were, so they are cancelled repeatedly."""
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


COMMAND = "python -m tests.laboratory.simulator"

_HERE = "tests.laboratory.simulator."
WORLDS: Mapping[str, str] = {
    "fleet": f"{_HERE}fleet_world:FleetWorld",
    "gateway": f"{_HERE}gateway_world:GatewayWorld",
    "batteries": f"{_HERE}fleet_world:BatteryWorld",
    "wall-clocks": f"{_HERE}fleet_world:WallClockWorld",
    "schedules": f"{_HERE}fleet_world:ScheduleWorld",
    "moves": f"{_HERE}fleet_world:MoveWorld",
    "limits": f"{_HERE}fleet_world:LimitWorld",
    "files": f"{_HERE}file_world:FileWorld",
    "plans": f"{_HERE}plan_world:PlanWorld",
    "retries": f"{_HERE}plan_world:RetryWorld",
    "cancellations": f"{_HERE}plan_world:CancelWorld",
    "peers": f"{_HERE}peer_world:PeerWorld",
    "forgetful-peers": f"{_HERE}peer_world:ForgetfulWorld",
    "jumping-peers": f"{_HERE}peer_world:JumpingWorld",
    "put-back-peers": f"{_HERE}peer_world:PutBackWorld",
}


def replay_line(seed: int, world: type[Any], arguments: Mapping[str, Any]) -> str:
    """Return the command that replays a world. An argument that JSON cannot express is named in a comment behind it."""
    words = ["--seed", str(seed)]
    place = f"{world.__module__}:{world.__qualname__}"
    name = next((name for name, known in WORLDS.items() if known == place), place)
    if name != "fleet":
        words += ["--world", name]
    written = {name: text for name, value in arguments.items() if (text := _written(value)) is not None}
    if written:
        words += ["--arguments", "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in written.items()) + "}"]
    left = [name for name in arguments if name not in written]
    comment = f"  # without {', '.join(left)}, which only a program can pass" if left else ""
    return f"{COMMAND} {shlex.join(words)}{comment}"


def world_named(name: str) -> type[Any]:
    """Return the class of a world by its name in WORLDS or as ``module:Class``. Raises ValueError."""
    module, _, attribute = WORLDS.get(name, name).partition(":")
    try:
        world = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        known = ", ".join(WORLDS)
        raise ValueError(f"unknown world {name!r} ({error}); use {known}, or module:Class") from error
    if not isinstance(world, type):
        raise ValueError(f"{name!r} is not a class of worlds")
    return world


def _written(value: Any) -> str | None:
    """Return a value as JSON; None if that is not possible."""
    try:
        return json.dumps(value, default=_list)
    except TypeError:
        return None


def _list(value: Any) -> Any:
    if isinstance(value, Set):
        return sorted(value)
    raise TypeError(value)
