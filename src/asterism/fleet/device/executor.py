"""The executor of a device: executes a run as a command, a request, a function, work for an agent or for a plug-in.

The device policy judges what is to be executed after every input is filled in. Every execution knows for which run and
which epoch it works. A command gets that as variables: ``ASTERISM_RUN``, ``ASTERISM_ATTEMPT``, ``ASTERISM_EPOCH``,
``ASTERISM_DEVICE`` and ``ASTERISM_SESSION``; in a plan also ``ASTERISM_PLAN``, ``ASTERISM_TASK`` and its tick; the
progress of the attempt before as ``ASTERISM_STEP`` and ``ASTERISM_TOTAL`` (empty if there is none); the input as JSON
in the file ``$ASTERISM_INPUT``, and each named value of it in the file
``$ASTERISM_INPUT_FILE_<name>``, however large they are. It reports progress by writing ``3/10`` or ``3`` into the file
``$ASTERISM_PROGRESS``. A request gets the headers ``Asterism-Run`` and ``Asterism-Epoch``, a function the parameter
``run`` if it has one.

Inputs are variables, too: ``ASTERISM_INPUT_<name>``, and under their bare names where the author of the work or the
device policy asks for it (execution/task_inputs.py).

A result is data and leaves as it is. Any text about an execution is masked: secrets do not leave the device in it.

The span of a run on a device: below the span that created the run, and current while the work is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from asterism.base import operating_system, trace_context
from asterism.base.content_store import ContentAccess
from asterism.base.secret_mask import Mask, environment_mask, environment_secrets, short_secret_warning
from asterism.base.startup import install_hint
from asterism.core.errors import AsterismError, DeviceTrouble, DeviceUnavailable, NotJson, error_text
from asterism.core.json_values import SizeLimit, plain_json
from asterism.core.run.run import Progress, Run
from asterism.core.run.run_label import plan_variables
from asterism.core.run.transitions import attempt_of
from asterism.core.run.work import Work
from asterism.core.schedule.tick_values import TICK_INPUT, read_tick, tick_variables
from asterism.execution import command_inputs, task_inputs
from asterism.execution.actions import Attempt, CommandFiles, execute_action
from asterism.execution.artifacts import ArtifactProblem, Artifacts
from asterism.execution.plugin_actions import device_objection
from asterism.execution.process_guard import Admission
from asterism.execution.processes import EXHAUSTED, OUTPUT_LIMIT, CommandFailed, Commands, own_part
from asterism.execution.task_inputs import References, ResolvedInputs, call_apart, is_secret
from asterism.execution.working_folder import WorkFiles
from asterism.fleet.device.agent_work import AgentProcesses, AgentRunner, AgentWork
from asterism.fleet.device.functions import CurrentRun, FunctionRunner
from asterism.fleet.device.output_watcher import TAIL, OutputWatcher, RunOutput
from asterism.fleet.device.process_records import ProcessRecords, store_mark
from asterism.fleet.device.run_inputs import (
    RunReferences,
    bare,
    files_of,
    fill,
    secrets_of,
    stands_for_itself,
)
from asterism.fleet.ledger import blob_of
from asterism.fleet.policy.device_policy import DevicePolicy, PolicyForbids
from asterism.fleet.policy.judged_requests import PolicyJudge
from asterism.fleet.settings import Settings

log = logging.getLogger("asterism.device")

PROBE_TIMEOUT = 30.0
"""How long an empty command may take, in seconds."""


class LimitReached(AsterismError, TimeoutError):
    """The execution took longer than the limit of its workflow and was stopped."""


async def default_limit() -> SizeLimit:
    return Settings().value_limit


async def no_artifacts() -> ContentAccess:
    raise ArtifactProblem("files of tasks do not reach this device")


class RunWork(NamedTuple):
    """One execution. ``input`` is the input of the run. The two functions are called on the event loop."""

    run: Run
    input: Mapping[str, Any]
    on_progress: Callable[[Progress], None]
    on_output: Callable[[str], None]
    lease: float | None = None
    """How long the run is certainly this device's, in seconds from now."""

    output: RunOutput | None = None
    """What keeps the output; None if it is not kept."""

    value_limit: Callable[[], Awaitable[SizeLimit]] = default_limit
    """How large the result may be."""

    artifacts: Callable[[], Awaitable[ContentAccess]] = no_artifacts
    """Opens the place where the files of tasks are kept."""

    on_files: Callable[[str], None] = lambda manifest: None
    """Called with the hash of the manifest when the files of the run are kept."""

    attempt: int = 0
    """The number of the execution, if the record of the run does not tell it."""


class Executor(Protocol):
    """What executes the runs of a device; see DeviceExecutor."""

    def objection(self, run: Run) -> str | None:
        """Why the device never executes runs of this kind; None if it does."""

    def check(self, run: Run) -> str | None:
        """Why the device does not execute a run with its input; None if it does. An input that is stored as a blob is
        judged just before the execution. Starts and changes nothing, and may be called in any thread."""

    def judges_each(self, run: Run) -> bool:
        """Whether ``check`` may refuse a run although ``objection`` does not refuse its kind. May be called in any
        thread."""

    async def execute(self, work: RunWork) -> Any:
        """Execute a run and return its result. When cancelled, stop the work; when cancelled again, at once."""

    async def probe(self) -> None:
        """Do what a device does for any run, without one. Raises DeviceTrouble if it cannot."""

    def allow(self, run_id: str, seconds: float) -> None:
        """The lease on a run was renewed: its execution may continue for so many seconds, even while this process is
        frozen."""

    def close(self) -> None: ...


class DeviceExecutor:
    """Executes the runs of one session of a device. ``store`` identifies its store, to tell orphan processes apart.
    ``agent`` does work for an agent; a device without one refuses it."""

    def __init__(
        self,
        policy: DevicePolicy,
        *,
        device: str,
        session: str,
        grace: float = 5.0,
        store: str = "",
        agent: AgentRunner | None = None,
    ) -> None:
        self.policy, self.device, self.session = policy, device, session
        self._agent = agent
        self._agent_processes: dict[str, AgentProcesses] = {}  # by the id of the run
        self._commands = Commands(grace)
        self._functions = FunctionRunner(policy, grace)
        self._records = ProcessRecords(device, session, store)
        self._secrets_read: frozenset[str] = frozenset()  # those that runs have asked for in this session
        self._warn_of_short_secrets(filter(policy.holds_secret, os.environ))

    def _warn_of_short_secrets(self, names: Iterable[str]) -> None:
        for warning in (short_secret_warning(name, os.environ[name]) for name in names):
            if warning is not None:
                log.warning("%s", warning)

    def set_store(self, store: str) -> None:
        """Set the identity of the store, once it is known; it tells orphan processes apart."""
        self._records.store = store_mark(store)

    @property
    def lingering(self) -> int:
        """How many functions are still running although their runs were stopped."""
        return self._functions.lingering

    # -- whether a run is executed -----------------------------------------------------------------------------------

    def objection(self, run: Run) -> str | None:
        work = run.work
        if work.http is not None and find_spec("httpx") is None:
            return f"HTTP requests need httpx on this device: {install_hint('http')}"
        if work.agent is not None and self._agent is None:
            return "this device has no agent: join it with --agent"
        why = self.policy.objection(run)  # first: what it does not allow is not imported
        return why if why is not None or work.plugin is None else device_objection(work.plugin)

    def check(self, run: Run) -> str | None:
        """Judges the run with its input filled in. An error that would be a failure of the work is not an objection."""
        work, run_input = run.work, run.input
        constant = stands_for_itself(work, run_input)
        if self.policy.everything and work.call is not None and constant:
            return None  # the usual case, on the hot path of every run
        why = self.objection(run)
        if why is not None or blob_of(run_input) is not None:
            return why
        try:
            _refuse_secret_inputs(work, run_input)
            with self._mask(work, run_input, constant) as mask:
                if not self.policy.everything:
                    self._judge_early(run, run_input)
                JudgedAttempt(run, fill(work, run_input, mask), self._commands, self.policy).judge_work()
        except (PolicyForbids, DeviceUnavailable) as error:
            return str(error)
        except Exception:
            return None
        return None

    def judges_each(self, run: Run) -> bool:
        """A function with an input of constants is judged by its work alone."""
        return run.work.call is None or not stands_for_itself(run.work, run.input)

    def _judge_early(self, run: Run, run_input: Any) -> None:
        """Judge all that is known before an expression of the work is evaluated. Raises PolicyForbids, and
        DeviceUnavailable for what this device does not have."""
        why, work = self.policy.objection(run), run.work
        if why is not None:
            raise PolicyForbids(why)
        if not isinstance(run_input, Mapping):
            return  # fails before anything is evaluated
        known = bare(run_input)
        if work.http is not None:
            if not _names_a_secret(work.http["url"], known):  # such an address is judged once it is filled in
                self.policy.url(task_inputs.fill_template(work.http["url"], known, task_inputs.url_quoted))
        elif work.argv is not None and not _names_a_secret(work.argv[0], known):
            self.policy.command(task_inputs.fill_template(work.argv[0], known))

    # -- execution ---------------------------------------------------------------------------------------------------

    async def execute(self, work: RunWork) -> Any:
        """Execute a run and return its result, which is JSON. Raises PolicyForbids (if its ``begun`` is False, nothing
        was executed), DeviceUnavailable if the device lacks what it takes and nothing was executed, DeviceTrouble if it
        could not do its own part, LimitReached, CommandFailed, RequestFailed, NotJson, or what a function raised.

        When cancelled, the process group of a command gets SIGTERM, then SIGKILL after the grace period, or at once if
        cancelled again."""
        if not is_traced(work.run):
            return await self._execute(work)
        with run_span(work.run, self.device) as run:
            return await self._execute(work._replace(run=run))

    async def _execute(self, work: RunWork) -> Any:
        terms = work.run.work
        constant = stands_for_itself(terms, work.input)
        _refuse_secret_inputs(terms, work.input)
        with self._mask(terms, work.input, constant) as mask:
            if work.output is not None:
                work.output.mask = mask
            if not self.policy.everything:
                self._judge_early(work.run, work.input)
            if constant:
                resolved = ResolvedInputs(dict(work.input), {}, mask)
            else:
                with own_part("the run could not be prepared", EXHAUSTED):
                    resolved = fill(terms, work.input, mask)
            limit = terms.timeout
            value = await (self._begin(work, resolved) if limit is None else self._within(limit, work, resolved))
            return await call_apart(_sendable, value)

    def _mask(self, work: Work, run_input: Any, constant: bool) -> Mask:
        """The mask for all text about an execution. ``constant`` says that the input holds no reference. Raises
        PolicyForbids and DeviceUnavailable."""
        if constant and work.http is None and work.plugin is None:  # the usual case, on the hot path of every run
            return Mask(more=lambda: environment_secrets(self._is_secret))
        names = secrets_of(work, run_input, self.policy)
        if new := names - self._secrets_read:
            self._secrets_read |= new
            self._warn_of_short_secrets(new)
        return environment_mask(names, self._is_secret)

    def _is_secret(self, name: str) -> bool:
        """Whether a variable holds a secret that a run has asked for, or that the device policy names."""
        return name in self._secrets_read or self.policy.holds_secret(name)

    async def _within(self, seconds: float, work: RunWork, resolved: ResolvedInputs) -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._begin(work, resolved, limit.expired)
        except TimeoutError:
            if limit.expired():
                raise LimitReached(f"it exceeded its limit of {seconds:g} s and was stopped") from None
            raise

    async def _begin(self, work: RunWork, resolved: ResolvedInputs, expired: Callable[[], bool] | None = None) -> Any:
        if not self.policy.everything:
            self.policy.workflow(work.run.workflow)
            self.policy.call(work.run.work.call)
            self.policy.plugin(work.run.work.plugin)
        attempt = RunAttempt(self, work, resolved, expired)
        if (outputs := work.run.work.outputs) is not None:
            artifacts = Artifacts(await work.artifacts())
            attempt.work_files = WorkFiles(artifacts, files_of(work.input), outputs, work.on_files, expired)
        return await execute_action(attempt)

    async def probe(self) -> None:
        """Run an empty command with all that a device does for a command. Raises DeviceTrouble."""
        with self._run_files({}, None) as (_, files, admission):
            environment = {**self._records.marks(), **files}
            try:
                empty = operating_system.EMPTY_COMMAND
                await self._commands.run(empty, environment, admission=admission, lease=PROBE_TIMEOUT)
            except (CommandFailed, OSError) as error:
                raise DeviceTrouble(f"an empty command fails: {error}") from error

    def allow(self, run_id: str, seconds: float) -> None:
        self._commands.allow(run_id, seconds)
        if run_id in self._agent_processes:
            self._agent_processes[run_id].allow(seconds)

    def close(self) -> None:
        """End the guard of the child processes, and remove the process records."""
        self._commands.close()
        self._records.close()

    # -- processes ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _admitted(self, cwd: str | None) -> Iterator[Admission]:
        """Record a process of an agent for as long as it runs. Raises DeviceTrouble."""
        with own_part("a process of the agent could not be recorded"):
            admission = self._records.admit(None if self.policy.everything else cwd)
        try:
            yield admission
        finally:
            self._records.finished(admission.ticket)

    @contextlib.contextmanager
    def _run_files(
        self, run_input: Mapping[str, Any], cwd: str | None
    ) -> Iterator[tuple[Path, dict[str, str], Admission]]:
        """The files of a command for as long as it runs. Yields the file for its progress, the variables that name its
        files, and what its process does first. Raises DeviceTrouble."""
        with contextlib.ExitStack() as undo:
            with own_part("the files of the run could not be written"):
                directory = self._records.make_directory()
                undo.callback(shutil.rmtree, directory, ignore_errors=True)
                admission = self._records.admit(None if self.policy.everything else cwd)
                undo.callback(self._records.finished, admission.ticket)
                progress, file = directory / "progress", directory / "input.json"
                _write_input(file, run_input)
                progress.touch(mode=0o600)
            yield progress, {"ASTERISM_PROGRESS": str(progress), "ASTERISM_INPUT": str(file)}, admission


class JudgedAttempt(Attempt):
    """An action on a device, which its device policy judges."""

    inputs_win = False  # the device has a variable of that name, which no run replaces
    action: Work

    def __init__(self, run: Run, resolved: ResolvedInputs, commands: Commands, policy: DevicePolicy) -> None:
        super().__init__(run.work, resolved, commands)
        self._workflow, self.policy, self.judge = run.workflow, policy, PolicyJudge(policy)

    def judge_work(self) -> None:
        """Judge all that is known before the execution. Raises PolicyForbids, and DeviceUnavailable for what this
        device does not have."""
        self.policy.workflow(self._workflow)
        if self.action.http is not None:
            http_request = self.filled_request()
            self.policy.headers(http_request.get("headers") or ())
            self.policy.url(http_request["url"])
        elif self.action.call is not None:
            self.policy.call(self.action.call)
        elif self.action.agent is not None or self.action.plugin is not None:
            self.policy.plugin(self.action.plugin)
            self.policy.variables(self.resolved.environment)
            self.directory()
        else:
            self.words()
            self.check_variables()
            self.directory()

    def references(self) -> References:
        return RunReferences(self.resolved.inputs, self.resolved.mask)

    def words(self) -> tuple[list[str], str | None]:
        if self.action.shell is not None:
            self.policy.shell()
        argv, _ = super().words()
        if self.action.shell is not None:
            return argv, None
        program = self.policy.command(argv[0])
        if program is not None:
            return [program.name, *argv[1:]], program.file
        path = {**self.inherited(), **self.resolved.environment}.get("PATH") or os.defpath
        if "/" not in argv[0] and shutil.which(argv[0], path=path) is None:  # another device may have it
            raise DeviceUnavailable(f"there is no command {argv[0]!r} on this device")
        return argv, None

    def directory(self) -> str | None:
        if self.folder is not None:
            return str(self.folder)
        if self.action.outputs is not None:  # a new and empty folder of the device, made just before the execution
            return None
        return self.policy.directory(self.action.cwd)

    def inherited(self) -> Mapping[str, str]:
        return {name: value for name, value in os.environ.items() if self.policy.passes(name)}

    def is_bare(self, name: str) -> bool:
        """The device policy lists the name, or allows everything and the shell line mentions it."""
        return super().is_bare(name) if self.policy.everything else self.policy.may_be_given(name)

    def check_variables(self) -> None:
        """Refuse variables that the device policy does not allow, and a shell line that uses the variable of an input
        which cannot be set: the device policy does not list it, or the device has a variable of that name."""
        self.policy.variables(self.resolved.environment)
        super().check_variables()
        line = self.action.shell or ""
        for name in self.resolved.inputs:
            if task_inputs.refers_to_variable(line, name) and name not in self.resolved.environment:
                self.policy.counts_on(name)
                if name in os.environ and self.policy.passes(name):
                    raise DeviceUnavailable(
                        f"this device has a variable {name!r} of its own, which an input does not replace; "
                        f"{task_inputs.variable_advice(name)}"
                    )


class RunAttempt(JudgedAttempt):
    """The work of a run on its device."""

    def __init__(
        self, executor: DeviceExecutor, work: RunWork, resolved: ResolvedInputs, expired: Callable[[], bool] | None
    ) -> None:
        super().__init__(work.run, resolved, executor._commands, executor.policy)
        self._executor, self._work, self._expired = executor, work, expired
        self.key, self.lease = work.run.id, work.lease
        self._tick = read_tick(self.resolved.inputs.pop(TICK_INPUT, None))
        self._watcher: OutputWatcher | None = None

    def identity(self) -> dict[str, str]:
        run, last = self._work.run, self._work.run.progress
        return {
            **self._executor._records.marks(),
            "ASTERISM_RUN": run.id,
            **plan_variables(run),
            "ASTERISM_ATTEMPT": str(self._work.attempt or attempt_of(run)),
            "ASTERISM_EPOCH": str(run.epoch),
            **tick_variables(self._tick),
            "ASTERISM_STEP": "" if last is None else str(last.step),
            "ASTERISM_TOTAL": "" if last is None or last.total is None else str(last.total),
            **({} if run.traceparent is None else {trace_context.VARIABLE: run.traceparent}),
        }

    def headers(self, own: Mapping[str, str]) -> Mapping[str, str]:
        run = self._work.run
        span = {} if run.traceparent is None else {trace_context.HEADER: run.traceparent}
        return {"Asterism-Run": run.id, "Asterism-Epoch": str(run.epoch), **span}

    async def limit(self) -> SizeLimit:
        return await self._work.value_limit()

    async def call(self) -> Any:
        work = self._work
        call = work.run.work.call
        assert call is not None
        current = CurrentRun(work.run, work.on_progress, self._expired, work.output, self._tick, work.attempt)
        inputs = self.resolved.inputs if self.folder is None else {"folder": self.folder, **self.resolved.inputs}
        return await self._executor._functions.call(call, inputs, current)

    def make_folder(self) -> Path:
        return self._executor._records.make_directory().resolve()

    @contextlib.asynccontextmanager
    async def files(self, texts: Mapping[str, str], cwd: str | None) -> AsyncIterator[CommandFiles]:
        work = self._work
        with self._executor._run_files(work.input, cwd) as (progress, variables, admission):
            with own_part("the inputs of the run could not be written"):
                variables |= await call_apart(command_inputs.write_inputs, texts, progress.parent)
            self._watcher = OutputWatcher(progress, self.resolved.mask, work.on_output, work.on_progress, work.output)
            try:
                yield CommandFiles(variables, self._watcher.hear, progress.parent, admission)
            finally:
                self._watcher.close()

    def hear(self, pipe: int, data: bytes) -> None:
        """Also what is heard while no program runs, such as a note of a plug-in."""
        recorder = None if self._work.output is None else self._work.output.recorder()
        if self._watcher is not None:
            self._watcher.hear(pipe, data)
        elif recorder is not None:
            recorder.hear(pipe, data)

    def failure(self, error: CommandFailed) -> CommandFailed:
        """With the end of the output, and secrets masked in it."""
        assert self._watcher is not None
        tail, cut = error.output[-2 * TAIL :], max(self._watcher.heard.values()) > OUTPUT_LIMIT
        tail = self.resolved.mask.tail(tail, cut=cut or len(tail) < len(error.output))
        return CommandFailed(error.code, tail[-TAIL:])

    async def run_agent(self) -> Any:
        executor, work = self._executor, self._work
        if executor._agent is None:
            raise PolicyForbids("this device has no agent")
        self.policy.variables(self.resolved.environment)
        processes = AgentProcesses(self.commands, work.run.id, work.lease, executor._admitted)
        texts = await call_apart(command_inputs.input_texts, self.resolved.inputs)
        async with self.files(texts, None) as files:
            executor._agent_processes[work.run.id] = processes
            try:
                return await executor._agent.execute(self._agent_work(texts, processes, files))
            finally:
                del executor._agent_processes[work.run.id]

    def _agent_work(self, texts: Mapping[str, str], processes: AgentProcesses, files: CommandFiles) -> AgentWork:
        agent = self.action.agent or {}
        return AgentWork(
            run=self._work.run,
            description=agent["description"],
            tips=tuple(agent.get("tips", ())),
            result=agent.get("result"),
            inputs=self.resolved.inputs,
            cwd=os.path.realpath(self.directory() or os.getcwd()),
            environment=command_inputs.passable((), {**self.environment(texts), **files.variables}),
            policy=self.policy,
            mask=self.resolved.mask,
            processes=processes,
            write=files.hear,
            report=self._work.on_progress,
        )


def _refuse_secret_inputs(work: Work, run_input: Any) -> None:
    """Raise PolicyForbids for a secret among the inputs of an agent: it would leave the device in a prompt."""
    if work.agent is not None and isinstance(run_input, Mapping) and any(map(is_secret, run_input.values())):
        raise PolicyForbids("a secret cannot be an input of an agent; give it to the agent's own process with env")


def _names_a_secret(text: str, run_input: Mapping[str, Any]) -> bool:
    return any(is_secret(run_input.get(name)) for name in task_inputs.names_in(text))


def _write_input(path: Path, run_input: Mapping[str, Any]) -> None:
    """Secrets are written as names, not as values."""
    path.write_text(json.dumps(plain_json(bare(run_input), "the input")), encoding="ascii")


def _sendable(value: Any) -> Any:
    """A result as JSON. Raises NotJson for a value that cannot be stored or sent."""
    value = plain_json(value, "the result")
    if value is None or type(value) in (bool, float):
        return value
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError as error:  # half of a surrogate pair, or a number with more digits than Python prints
        raise NotJson(f"the result cannot be written as JSON: {error}") from None
    return value


# -- run trace ---------------------------------------------------------------------------------------------------------


def is_traced(run: Run) -> bool:
    """Whether there is a trace to continue, or may be one to begin."""
    return run.traceparent is not None or "opentelemetry.trace" in sys.modules


@contextmanager
def run_span(run: Run, device: str) -> Iterator[Run]:
    """Yields the run with the span that its work belongs to. Without a tracer on this device that is the span of its
    creator."""
    tracer = trace_context.tracer()
    context = trace_context.remote_context(run.traceparent)
    if tracer is None:
        with trace_context.attached(context):
            yield run
        return
    from opentelemetry.trace import SpanKind, set_span_in_context

    attributes: dict[str, str | int] = {
        "asterism.run": run.id,
        "asterism.workflow": run.workflow,
        "asterism.epoch": run.epoch,
        "asterism.device": device,
    }
    span = tracer.start_span(f"run {run.workflow}", context, SpanKind.CONSUMER, attributes)
    try:
        with trace_context.attached(set_span_in_context(span)):
            yield run.changed(traceparent=trace_context.traceparent_of(span.get_span_context()))
    except BaseException as error:
        trace_context.set_error(span, error_text(error))
        raise
    finally:
        span.end()
