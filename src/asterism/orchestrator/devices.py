"""Devices of an orchestrator: the ``Device`` protocol, and ``LocalDevice``, which is this process."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from asterism.base.log_recorder import LogRecorder
from asterism.base.secret_mask import Mask, environment_mask, secrets_of_task
from asterism.base.trace_context import HEADER, VARIABLE, current_traceparent
from asterism.core.errors import AsterismError
from asterism.core.json_values import NOTHING, RESULT_LIMIT, SizeLimit, plain_json
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.status import FAILED
from asterism.core.plan.task import Task
from asterism.core.plan.task_files import files_of_inputs, makers_of
from asterism.core.record import Struct
from asterism.core.schedule.tick_values import Tick, TickValues, tick_variables
from asterism.execution import function_calls
from asterism.execution.actions import Attempt, execute_action
from asterism.execution.artifacts import Artifacts
from asterism.execution.function_calls import Signature, attempt_logger, record_traceback
from asterism.execution.function_modules import load_function
from asterism.execution.plugin_actions import plugin_secrets
from asterism.execution.processes import Commands
from asterism.execution.task_inputs import MissingInput, References, ResolvedInputs, call_apart
from asterism.execution.working_folder import InputFiles, WorkFiles

if TYPE_CHECKING:
    from asterism.orchestrator.result import PlanLogs

log = logging.getLogger("asterism.device")


class Work(Struct, eq=False):
    """One execution of a task, as a device receives it. An orchestrator makes it (``Active`` in roster.py)."""

    task: Task
    """The task, as it was when it started."""

    plan: Constellation
    epoch: int
    """The number of this execution, unique in the plan."""

    attempt: int
    logs: PlanLogs | None
    """Where the output of the execution is kept; None if it is not, and after the end."""

    log: LogRecorder | None = None
    """The recorder of the execution, once it has printed something."""

    artifacts: Artifacts | None = None
    """Where the files of a task are kept, if it has any."""

    files: str | None = None
    """The files that the execution has made: the device sets it to the hash of their manifest."""

    expired: TimeoutError | None = None
    """The error of an execution that was told to stop since its time is up, and whose files are kept."""

    @property
    def constellation(self) -> str:
        """The id of the plan."""
        return self.plan.id

    @property
    def results(self) -> Mapping[str, Any]:
        """The results of the tasks that this task depends on, by id."""
        raise NotImplementedError

    @property
    def tick(self) -> TickValues:
        """The values of the tick of the plan; empty if it has none."""
        return self.plan.tick

    def recorder(self) -> LogRecorder | None:
        """What records the output of this execution; None if it is not kept."""
        logs = self.logs
        if logs is None:
            return None
        if self.log is None:
            self.log = logs.recorder(self.task.id, self.epoch, self.attempt)
        return self.log

    def heard(self, pipe: int, data: bytes) -> None:
        """Record output of a command; ``pipe`` is 1 or 2."""
        recorder = self.recorder()
        if recorder is not None:
            recorder.hear(pipe, data)


@runtime_checkable
class Device(Protocol):
    """What executes tasks for an orchestrator."""

    @property
    def id(self) -> str:
        """The name of the device, unique in its orchestrator. It does not change. Raises nothing."""

    @property
    def can(self) -> frozenset[str]:
        """Its capabilities: a task is given to it only if these include everything that the task ``needs``. Raises
        nothing."""

    @property
    def slots(self) -> int | None:
        """How many tasks it executes at once, 1 or more; None for no limit. Raises nothing."""

    def execute(self, work: Work) -> Awaitable[Any]:
        """Execute a task once; usually an ``async def``.

        ``work`` is the task, with the results that it depends on and the number of this execution. Returns the result
        of the task. Raises DeviceUnavailable if the task was not begun, so that another device may take it; DeviceLost
        if its end is unknown; any other exception is a failure of the task. When cancelled, it stops the work and
        raises CancelledError; the orchestrator waits for that no longer than its ``grace``."""


class LocalDevice:
    """This process as a device: runs coroutines on the loop, plain functions in threads, commands as child processes.

    ``run`` is called with the Work of each task that has no action of its own, or that is work for an agent. With
    ``json_results`` a result that is not JSON fails its task, as on a device that has to send it. ``grace`` is how many
    seconds a command has to stop when asked. ``result_limit`` is how large the output of a command, the answer to a
    request, or with ``json_results`` any result, may be, in bytes: a larger one fails its task."""

    def __init__(
        self,
        id: str,
        slots: int | None = None,
        can: Iterable[str] = (),
        *,
        run: Callable[[Work], Any] | None = None,
        json_results: bool = False,
        grace: float = 5.0,
        result_limit: int = RESULT_LIMIT,
    ) -> None:
        if type(result_limit) is not int or result_limit < 0:
            raise ValueError(f"device {id!r}: result_limit must be a number of bytes, 0 or more, not {result_limit!r}")
        if slots is not None and slots < 1:
            raise ValueError(f"device {id!r}: slots must be 1 or more, or None for no limit, not {slots}")
        self.id, self.slots, self.can = id, slots, frozenset(can)
        self.json_results = json_results
        self._run = run
        self._read: set[str] = set()  # names of secrets that tasks have referred to
        self._warned: set[str] = set()
        self._commands = Commands(grace)
        self._limit = SizeLimit(result_limit, "asterism run --result-limit SIZE, or LocalDevice(result_limit=…)")

    def __repr__(self) -> str:
        return f"LocalDevice({self.id!r}, slots={self.slots}, can={sorted(self.can)})"

    def execute(self, work: Work) -> Awaitable[Any]:
        task = work.task
        simple = task.call is not None and not (task.inputs or task.env or task.outputs)
        execution = self._function(work, NOTHING) if simple else self._with_inputs(work)
        return self._json_result(execution, f"the result of task {task.id!r}") if self.json_results else execution

    async def _json_result(self, execution: Awaitable[Any], what: str) -> Any:
        """The result of an execution as JSON. Raises NotJson and TooLarge."""
        plain = await call_apart(plain_json, await execution, what)
        if type(plain) is str:
            self._limit.check(len(plain.encode(errors="replace")), what)
        elif isinstance(plain, dict | list):
            self._limit.check(await call_apart(_json_size, plain), what)
        return plain

    async def _with_inputs(self, work: Work) -> Any:
        task = work.task
        names = secrets_of_task(task) | {*plugin_secrets(task.plugin)}
        self._read |= names
        with environment_mask(names, self._read.__contains__) as mask:
            self._warn(mask)
            references = References(work.results, mask, work.plan.nodes)
            inputs = {name: references.fill(value, name) for name, value in task.inputs.items()}
            resolved = ResolvedInputs(inputs, references.environment(task.env), mask)
            return await execute_action(_LocalAttempt(self, work, resolved, references))

    async def _function(self, work: Work, inputs: Mapping[str, Any]) -> Any:
        try:
            call = work.task.call
            if call is None:
                value: Any = None if self._run is None else self._run(work)
                if hasattr(value, "__await__"):
                    value = await value
            else:
                if isinstance(call, str):
                    call = load_function(call)
                signature = function_calls.signature(call)
                arguments = self._arguments(signature, work, inputs) if signature.takes_anything else {}
                value = await (
                    call(**arguments) if signature.asynchronous else function_calls.call_in_thread(call, arguments)
                )
            if type(value) is CoroutineType:  # a plain function that returned a coroutine, such as a lambda
                value = await value
        except BaseException as error:  # before its text is masked, which may need another error
            record_traceback(work, error)
            raise
        return value

    def _warn(self, mask: Mask) -> None:
        """Log each secret that is too short to be masked everywhere, once."""
        for warning in mask.warnings():
            if warning not in self._warned:
                self._warned.add(warning)
                log.warning("%s", warning)

    def _arguments(self, signature: Signature, work: Work, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if signature.takes_logger and "logger" not in inputs and "logger" not in work.results:
            inputs = {**inputs, "logger": attempt_logger(work.task.id, work)}
        if work.tick and "tick" in signature.names and "tick" not in inputs and "tick" not in work.results:
            inputs = {**inputs, "tick": Tick(work.tick)}
        return signature.arguments(work.task.id, work.results, inputs)

    def close(self) -> None:
        """End the guard of the child processes."""
        self._commands.close()


class _LocalAttempt(Attempt):
    """The action of a task in this process."""

    action: Task

    def __init__(self, device: LocalDevice, work: Work, resolved: ResolvedInputs, references: References) -> None:
        super().__init__(work.task, resolved, device._commands)
        self._device, self._work, self._references = device, work, references
        self.hear = work.heard  # type: ignore[method-assign]
        if work.artifacts is not None:
            self.work_files = WorkFiles(
                work.artifacts, input_files(work), work.task.outputs, self._kept, lambda: work.expired is not None
            )

    def _kept(self, manifest: str) -> None:
        self._work.files = manifest

    def identity(self) -> dict[str, str]:
        work, span = self._work, current_traceparent()
        return {
            "ASTERISM_PLAN": work.constellation,
            "ASTERISM_TASK": work.task.id,
            "ASTERISM_ATTEMPT": str(work.attempt),
            "ASTERISM_EPOCH": str(work.epoch),
            **tick_variables(work.tick),
            **({} if span is None else {VARIABLE: span}),
        }

    def headers(self, own: Mapping[str, str]) -> Mapping[str, str]:
        return span_headers(own)

    async def limit(self) -> SizeLimit:
        return self._device._limit

    def references(self) -> References:
        return self._references

    async def call(self) -> Any:
        inputs = self.resolved.inputs
        if self.folder is not None:
            inputs = {"folder": self.folder, **inputs}
        return await self._device._function(self._work, inputs)

    async def run_agent(self) -> Any:
        if self._device._run is None:
            raise AsterismError(
                f"device {self._device.id!r} has no agent for task {self.action.id!r}; pass a function as run="
            )
        return await self.call()


def input_files(work: Work) -> dict[str, InputFiles]:
    """The inputs of a task that are files of others: of a group that failed in part, those of the elements that have
    some. Raises MissingInput if nobody has made any."""
    inputs = {}
    for name, reference in files_of_inputs(work.task.inputs).items():
        makers = [*makers_of(work.plan.nodes, reference.task)]
        manifests = tuple(maker.files for maker in makers if maker.files is not None)
        unmade = [maker.id for maker in makers if maker.files is None and maker.status is not FAILED]
        if unmade or (makers and not manifests):
            text = f"task {(unmade or [reference.task])[0]!r} has no files, since it has not completed"
            raise MissingInput(f"input {name!r}: {text}")
        inputs[name] = InputFiles(manifests, reference.output)
    return inputs


def span_headers(own: Mapping[str, str]) -> dict[str, str]:
    """The current span as a header, if there is one and a task sets no such header itself."""
    span = current_traceparent()
    return {} if span is None or any(name.lower() == HEADER for name in own) else {HEADER: span}


def _json_size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":")))
