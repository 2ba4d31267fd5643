"""Python functions as the work of a run: coroutines on the event loop, plain functions in threads of their own.

A function that has a parameter ``run`` is told who it is and can tell how far it has come. Nothing can stop a thread:
when a run is taken away its function is *told* (``run.stopping``, and ``run.report`` raises), and after the grace
period it is left to itself. Its word does not count any more, but it goes on doing what it does until it ends or the
process does. Work that has to be stopped for certain belongs into a command.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from asterism.base import function_calls
from asterism.base.processes import EXHAUSTED, own_part
from asterism.core.errors import AsterismError, safe_repr
from asterism.core.run.run import Progress, Run
from asterism.fleet.policy.policy import DevicePolicy

log = logging.getLogger("asterism.device")


MOST_STEPS = 10**15
OF_TASKS = "$results"
"""The input that says which of the others are results of tasks, in a constellation; all of them if it is left out."""

RESULT_OF = "$result:"
"""Before the name of a task: the input that holds its result, if another input has its name."""


class RunStopped(AsterismError):
    """Raised by ``run.report`` in a function whose run was taken away: it should end."""


class CurrentRun:
    """What a function's parameter ``run`` gets. ``attempt`` counts the executions of the run from 1; ``progress`` is
    how far the one before had come. ``expired`` says whether its limit has passed, if it has one."""

    def __init__(
        self, run: Run, on_progress: Callable[[Progress], None], expired: Callable[[], bool] | None = None
    ) -> None:
        self.id, self.epoch, self.progress = run.id, run.epoch, run.progress
        self.attempt = attempt_of(run)
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self._stopped = False
        self._over = False
        self.expired = expired

    @property
    def stopping(self) -> bool:
        """Whether the run was taken away, so that the function should end."""
        return self._stopped

    def report(self, step: int, total: int | None = None) -> None:
        """Tell how far it is; from any thread. Raises RunStopped if the function should end."""
        for value in (step, total):
            if value is not None and (type(value) is not int or not 0 <= value <= MOST_STEPS):
                raise ValueError(
                    f"progress is counted in whole numbers from 0 to {MOST_STEPS:,}, not {safe_repr(value)}"
                )
        if self._stopped:
            raise RunStopped(f"run {self.id} was taken away")
        if threading.get_ident() == self._home:
            self._tell(Progress(step, total))
            return
        try:
            self._loop.call_soon_threadsafe(self._tell, Progress(step, total))
        except RuntimeError:  # the loop is closed: the device is gone
            raise RunStopped(f"run {self.id} was taken away") from None

    def stop(self) -> None:
        self._stopped = True

    def over(self) -> None:
        """It has ended; what a thread says from now on is not passed on."""
        self._over = self._stopped = True

    def _tell(self, progress: Progress) -> None:
        if not self._over:
            self._on_progress(progress)


def attempt_of(run: Run) -> int:
    """Which execution of a run this is; a device that declined has not tried."""
    if not run.previous:
        return 1
    return 1 + sum(assignment.reason != "declined" for assignment in run.previous)


def attempts_of(run: Run) -> int:
    """How often it was tried up to now, with the attempt that is under way; who declined has not tried."""
    closed = bool(run.previous) and run.previous[-1].epoch == run.epoch
    return attempt_of(run) - (closed or run.epoch == 0)


class Calls:
    """Calls functions for one device. ``lingering`` is how many go on although their runs were taken away."""

    def __init__(self, policy: DevicePolicy, grace: float) -> None:
        self._policy, self._grace = policy, grace
        self._known: dict[str, tuple[Callable[..., Any], function_calls.Signature]] = {}
        self.lingering = 0

    async def call(self, call: Callable[..., Any] | str, given: Mapping[str, Any], current: CurrentRun) -> Any:
        """The value of a function. When cancelled, it waits until the function has ended: what goes on is not over, and
        nobody else may begin it. Cancelled again, it lets go of a thread: then the run is lost, or the device is
        ending."""
        try:
            if isinstance(call, str):
                function, signature = self._known.get(call) or await self._function(call)
            else:
                function, signature = call, function_calls.signature(call)
            arguments = arguments_of(signature, given, current, function)
            if signature.asynchronous and current.expired is None:
                return await self._await(function(**arguments), current)
            return await self._watch(_call(function, arguments, signature.asynchronous), current)
        except (SystemExit, KeyboardInterrupt) as error:
            raise _wanted_to_end(error) from None

    async def _await(self, coroutine: Awaitable[Any], current: CurrentRun) -> Any:
        """Nothing to do but to wait: to cancel us is to cancel it."""
        try:
            return await coroutine
        except asyncio.CancelledError:
            asking = asyncio.current_task()
            if asking is None or not asking.cancelling():
                raise RuntimeError("the function was cancelled by itself") from None
            raise
        finally:
            current.over()

    async def _watch(self, work: Coroutine[Any, Any, Any], current: CurrentRun) -> Any:
        """Wait for what may go on although it was told to stop."""
        job = asyncio.create_task(work)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            asking = asyncio.current_task()
            if job.cancelled() and (asking is None or not asking.cancelling()):
                raise RuntimeError("the function was cancelled by itself") from None
            current.stop()
            job.cancel()
            try:
                await asyncio.wait([job], timeout=self._grace)
                if not job.done() and not (current.expired is not None and current.expired()):
                    log.warning("the function does not stop; its run stays with it", extra={"run": current.id})
                    await asyncio.wait([job])
            finally:  # also when the caller has no patience left
                self._let_go(job, current)
            raise
        finally:
            current.over()

    def _let_go(self, job: asyncio.Future[Any], current: CurrentRun) -> None:
        if not job.done():
            self.lingering += 1
            log.warning("the function does not stop; it goes on without a run", extra={"run": current.id})
            job.add_done_callback(self._gone)
        job.add_done_callback(_seen)

    def _gone(self, job: asyncio.Future[Any]) -> None:
        self.lingering -= 1

    async def _function(self, call: str) -> tuple[Callable[..., Any], function_calls.Signature]:
        self._policy.call(call)
        loaded: Coroutine[Any, Any, Callable[..., Any]] | None = None
        if call.partition(":")[0] not in sys.modules:  # an import may take seconds, and heartbeats must go on
            loaded = function_calls.call_in_thread(function_calls.load_function, {"path": call})
        with own_part(f"{call} could not be imported", EXHAUSTED):
            function = function_calls.load_function(call) if loaded is None else await loaded
        self._policy.called(call, function)
        self._known[call] = function, function_calls.signature(function)
        return self._known[call]


async def _call(function: Callable[..., Any], arguments: Mapping[str, Any], asynchronous: bool) -> Any:
    try:
        value = await (function(**arguments) if asynchronous else function_calls.call_in_thread(function, arguments))
        if asyncio.iscoroutine(value):  # a plain function that made a coroutine, such as a lambda
            value = await value
        return value
    except (SystemExit, KeyboardInterrupt) as error:
        raise _wanted_to_end(error) from None


def _wanted_to_end(error: BaseException) -> Exception:
    """asyncio would end the whole device with it."""
    return RuntimeError(f"the function wanted to end the process: {type(error).__name__} {error}".rstrip())


def arguments_of(
    signature: function_calls.Signature, given: Mapping[str, Any], current: CurrentRun, function: Callable[..., Any]
) -> dict[str, Any]:
    """The keyword arguments for one call: inputs by name, and ``run``. Raises TypeError naming what nothing fills."""
    if signature.everything or "results" in signature.names:  # which is seldom, and this is on the way of every run
        results, others = _told_apart(given)
        given = {"results": results, **results, **others} if "results" in signature.names else {**results, **others}
    arguments = dict(given) if signature.everything else {n: given[n] for n in signature.names if n in given}
    if "run" in signature.names:
        arguments["run"] = current
    absent = [name for name in signature.names if name not in arguments and name not in signature.optional]
    if absent:
        called = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{called} needs {', '.join(map(repr, absent))}, and the input of the run has no such name")
    return arguments


def _told_apart(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of the tasks before it by their names, and the other inputs."""
    of_tasks = given.get(OF_TASKS)
    if type(of_tasks) is not list or not all(type(name) is str for name in of_tasks):
        return dict(given), {}  # there is none, or somebody's input has that name
    results = {name.removeprefix(RESULT_OF): given[name] for name in of_tasks if name in given}
    return results, {name: value for name, value in given.items() if name not in of_tasks and name != OF_TASKS}


def _seen(job: asyncio.Future[Any]) -> None:
    if not job.cancelled():
        job.exception()
