"""Python functions as the work of a run: coroutines on the event loop, others in threads.

A function with a parameter ``run`` gets a ``CurrentRun``, with which it reports progress. A thread cannot be stopped:
when a run is taken away, ``run.stopping`` becomes true and ``run.report`` raises, and after the grace period the
function is left to itself. Its result does not count any more, but it runs until it ends or the process does. Work
that must be stopped for certain belongs into a command.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from asterism.core.errors import AsterismError, DeviceTrouble, safe_repr
from asterism.core.json_values import NOTHING, JsonObject
from asterism.core.run.run import Progress, Run
from asterism.core.run.transitions import attempt_of
from asterism.core.schedule.tick_values import Tick, TickValues
from asterism.execution import function_calls
from asterism.execution.function_calls import LogSource, attempt_logger, record_traceback, retrieve_exception
from asterism.execution.function_modules import function_at
from asterism.execution.processes import EXHAUSTED, own_part

if TYPE_CHECKING:
    from asterism.fleet.policy.device_policy import DevicePolicy

log = logging.getLogger("asterism.device")


MOST_STEPS = 10**15
"""The largest step or total of a progress report."""

OF_TASKS = "$results"
"""In a plan, the input that names those of the other inputs that are results of tasks; all if it is left out."""

RESULT_OF = "$result:"
"""Prefix of the input that holds the result of a task, if another input has the name of the task."""


class RunStopped(AsterismError):
    """Raised by ``run.report`` in a function whose run was taken away: the function should end."""


class CurrentRun:
    """The parameter ``run`` of a function. ``attempt`` counts the executions of the run from 1; ``progress`` is what
    the one before reported last, ``traceparent`` the span that the work belongs to, ``tick`` the tick of its plan, if
    it has one. ``expired`` says whether the limit of the workflow has passed, if it has one."""

    def __init__(
        self,
        run: Run,
        on_progress: Callable[[Progress], None],
        expired: Callable[[], bool] | None = None,
        output: LogSource | None = None,
        tick: TickValues = NOTHING,
        attempt: int = 0,
    ) -> None:
        self._output = output
        self.tick = Tick(tick) if tick else None
        self.id, self.epoch, self.progress = run.id, run.epoch, run.progress
        self.traceparent = run.traceparent
        self.attempt = attempt or attempt_of(run)
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self._stopped = False
        self._over = False
        self.expired = expired

    @property
    def logger(self) -> logging.Logger:
        """A logger that writes to the log of this attempt. A function also gets it as its parameter ``logger``."""
        return attempt_logger(self.id, self._output)

    @property
    def stopping(self) -> bool:
        """Whether the run was taken away: the function should end."""
        return self._stopped

    def report(self, step: int, total: int | None = None) -> None:
        """Report progress, from any thread. Raises RunStopped if the function should end."""
        for value in (step, total):
            if value is not None and (type(value) is not int or not 0 <= value <= MOST_STEPS):
                raise ValueError(f"progress must be whole numbers from 0 to {MOST_STEPS:,}, not {safe_repr(value)}")
        if self._stopped:
            raise RunStopped(f"run {self.id} was taken away")
        if threading.get_ident() == self._home:
            self._pass_on(Progress(step, total))
            return
        try:
            self._loop.call_soon_threadsafe(self._pass_on, Progress(step, total))
        except RuntimeError:  # the loop is closed: the device is gone
            raise RunStopped(f"run {self.id} was taken away") from None

    def stop(self) -> None:
        self._stopped = True

    def over(self) -> None:
        """The function has ended, or was left to itself: what it reports from now on is dropped."""
        self._over = self._stopped = True

    def _pass_on(self, progress: Progress) -> None:
        if not self._over:
            self._on_progress(progress)


class FunctionRunner:
    """Calls functions for one device. ``lingering`` counts those that still run although their runs were taken away."""

    def __init__(self, policy: DevicePolicy, grace: float) -> None:
        self._policy, self._grace = policy, grace
        self._known: dict[str, tuple[Callable[..., Any], function_calls.Signature]] = {}
        self.lingering = 0

    async def call(self, call: Callable[..., Any] | str, inputs: Mapping[str, Any], current: CurrentRun) -> Any:
        """Call a function and return its value. When cancelled, wait until the function has ended: no other device may
        begin the run while it executes. When cancelled again, let go of a thread: the run is lost, or the device is
        ending."""
        try:
            if isinstance(call, str):
                function, signature = await self._function(call)
            else:
                function, signature = call, function_calls.signature(call)
            arguments = arguments_of(signature, inputs, current, function)
            if signature.asynchronous and current.expired is None:
                return await self._await(function(**arguments), current)
            return await self._watch(_call(function, arguments, signature.asynchronous), current)
        except BaseException as error:
            if current._output is not None and not isinstance(error, DeviceTrouble | RunStopped):
                record_traceback(current._output, error)
            if isinstance(error, SystemExit | KeyboardInterrupt):
                raise _process_exit(error) from None
            raise

    async def _await(self, coroutine: Awaitable[Any], current: CurrentRun) -> Any:
        """Wait for a coroutine on the event loop, which can be cancelled."""
        try:
            return await coroutine
        except asyncio.CancelledError:
            asking = asyncio.current_task()
            if asking is None or not asking.cancelling():
                raise RuntimeError("the function cancelled itself") from None
            raise
        finally:
            current.over()

    async def _watch(self, work: Coroutine[Any, Any, Any], current: CurrentRun) -> Any:
        """Wait for work that may continue although it was asked to stop."""
        job = asyncio.create_task(work)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            asking = asyncio.current_task()
            if job.cancelled() and (asking is None or not asking.cancelling()):
                raise RuntimeError("the function cancelled itself") from None
            current.stop()
            job.cancel()
            try:
                await asyncio.wait([job], timeout=self._grace)
                if not job.done() and not (current.expired is not None and current.expired()):
                    log.warning("the function does not stop; the device keeps its run", extra={"run": current.id})
                    await asyncio.wait([job])
            finally:  # also when it is cancelled again
                self._let_go(job, current)
            raise
        finally:
            current.over()

    def _let_go(self, job: asyncio.Future[Any], current: CurrentRun) -> None:
        if not job.done():
            self.lingering += 1
            log.warning("the function does not stop; it continues without a run", extra={"run": current.id})
            job.add_done_callback(self._lingering_ended)
        job.add_done_callback(retrieve_exception)

    def _lingering_ended(self, job: asyncio.Future[Any]) -> None:
        self.lingering -= 1

    async def _function(self, call: str) -> tuple[Callable[..., Any], function_calls.Signature]:
        """Import a function. The device policy has judged its path before, since an import executes the module."""
        with own_part(f"{call} could not be imported", EXHAUSTED):
            function = await function_at(call)
        known = self._known.get(call)
        if known is None or known[0] is not function:
            self._policy.called(call, function)
            known = self._known[call] = function, function_calls.signature(function)
        return known


async def _call(function: Callable[..., Any], arguments: Mapping[str, Any], asynchronous: bool) -> Any:
    try:
        value = await (function(**arguments) if asynchronous else function_calls.call_in_thread(function, arguments))
        if asyncio.iscoroutine(value):  # a plain function that made a coroutine, such as a lambda
            value = await value
        return value
    except (SystemExit, KeyboardInterrupt) as error:
        raise _process_exit(error) from None


def _process_exit(error: BaseException) -> Exception:
    """The error of a function that raised SystemExit or KeyboardInterrupt, which would end the whole device."""
    exit_error = RuntimeError(f"the function tried to end the process: {type(error).__name__} {error}".rstrip())
    return exit_error.with_traceback(error.__traceback__)


def arguments_of(
    signature: function_calls.Signature, inputs: Mapping[str, Any], current: CurrentRun, function: Callable[..., Any]
) -> dict[str, Any]:
    """The keyword arguments of one call: inputs by name, and ``run``. Raises TypeError that names the missing ones."""
    if signature.everything or "results" in signature.names:  # rare, on the hot path of every run
        results, others = _split_results(inputs)
        inputs = {"results": results, **results, **others} if "results" in signature.names else {**results, **others}
    arguments = dict(inputs) if signature.everything else {n: inputs[n] for n in signature.names if n in inputs}
    if "run" in signature.names:
        arguments["run"] = current
    if signature.takes_logger and "logger" not in arguments:
        arguments["logger"] = current.logger
    if current.tick is not None and "tick" in signature.names:
        arguments.setdefault("tick", current.tick)
    absent = [name for name in signature.names if name not in arguments and name not in signature.optional]
    if absent:
        called = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{called} needs {', '.join(map(repr, absent))}, which the input of the run does not have")
    return arguments


def _split_results(inputs: Mapping[str, Any]) -> tuple[JsonObject, JsonObject]:
    """The results of earlier tasks by their names, and the other inputs."""
    of_tasks = inputs.get(OF_TASKS)
    if type(of_tasks) is not list or not all(type(name) is str for name in of_tasks):
        return dict(inputs), {}  # there is no such list, or an input happens to have its name
    results = {name.removeprefix(RESULT_OF): inputs[name] for name in of_tasks if name in inputs}
    return results, {name: value for name, value in inputs.items() if name not in of_tasks and name != OF_TASKS}
