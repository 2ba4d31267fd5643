"""One execution of a run on a device: what is executed, what it is told, and how it is stopped.

Whatever is executed is judged by the device's policy after all of it is filled in, and told which run and which epoch
it works for. Commands get that as variables: ``ASTERISM_RUN``, ``ASTERISM_EPOCH``, ``ASTERISM_DEVICE``,
``ASTERISM_SESSION``; how far the attempt before had come as ``ASTERISM_STEP`` and ``ASTERISM_TOTAL`` (empty if it had
not said); the input as JSON in the file ``$ASTERISM_INPUT``, however large it is; and they tell how far they are by
writing ``3/10`` or ``3`` into the file ``$ASTERISM_PROGRESS``. Requests get the headers ``Asterism-Run`` and
``Asterism-Epoch``, functions a parameter ``run`` if they have one.

Inputs are variables, too: ``ASTERISM_INPUT_<name>``, and under their bare names where the author of the work or the
policy asks for it (base/task_inputs.py).

Results are data, and leave as they are. Whatever is said about an execution is text, and leaves through its mask.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from asterism.base import task_inputs
from asterism.base.extras import install_hint
from asterism.base.processes import EXHAUSTED, OUTPUT_LIMIT, CommandFailed, Commands, own_part
from asterism.base.secret_mask import Mask, environment_mask, short_secret_warning
from asterism.base.task_inputs import LONGEST_VARIABLE, ResolvedInputs
from asterism.core.errors import AsterismError, DeviceTrouble, DeviceUnavailable, NotJson
from asterism.core.json_values import plain_json
from asterism.core.run.run import Progress, Run
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.device_requests import request
from asterism.fleet.device.functions import Calls, CurrentRun
from asterism.fleet.device.output import TAIL, Watch
from asterism.fleet.device.process_records import ProcessRecords, store_mark
from asterism.fleet.device.run_inputs import bare, fill, is_secret, request_terms, secrets_of, stands_for_itself
from asterism.fleet.policy.policy import DevicePolicy, PolicyForbids

log = logging.getLogger("asterism.device")


PROBE = 30.0
"""How long an empty command may take, in seconds."""


class LimitReached(AsterismError, TimeoutError):
    """The execution took longer than the limit of its workflow and was stopped."""


class RunWork(NamedTuple):
    """One execution, as the agent hands it over. ``given`` is the input. The two functions are called on the event
    loop."""

    run: Run
    workflow: Workflow
    given: Mapping[str, Any]
    on_progress: Callable[[Progress], None]
    on_output: Callable[[str], None]
    lease: float | None = None
    """How long the device is sure of the run, in seconds from now."""


@dataclass(frozen=True)
class _Command:
    argv: list[str]
    executable: str | None
    environment: dict[str, str]
    cwd: str | None


class Executor(Protocol):
    """What executes; DeviceExecutor is the real one."""

    def objection(self, workflow: Workflow) -> str | None: ...

    def check(self, work: RunWork) -> str | None: ...

    def judges_each(self, workflow: Workflow, given: Any) -> bool:
        """Whether ``check`` may refuse a run with this input although ``objection`` does not refuse its workflow. Only
        looks at what it is given, and may be called in any thread."""
        ...

    async def execute(self, work: RunWork) -> Any: ...

    async def probe(self) -> None:
        """Do what a device does for any work, without any. Raises DeviceTrouble if it cannot."""
        ...

    def allow(self, run_id: str, seconds: float) -> None:
        """Called with every heartbeat: the device is sure of the run for so much longer."""
        ...

    def close(self) -> None: ...


class DeviceExecutor:
    """Executes for one session of a device. ``store`` is its store's address: strays are told apart by it."""

    def __init__(self, policy: DevicePolicy, *, device: str, session: str, grace: float = 5.0, store: str = "") -> None:
        self.policy, self.device, self.session = policy, device, session
        self._commands = Commands(grace)
        self._calls = Calls(policy, grace)
        self._records = ProcessRecords(device, session, store)
        self._watches: set[Watch] = set()
        self._read: frozenset[str] = frozenset()  # the secrets that work has asked for in this session
        self._warn(filter(policy.holds_secret, os.environ))

    def _warn(self, names: Iterable[str]) -> None:
        for warning in (short_secret_warning(name, os.environ[name]) for name in names):
            if warning is not None:
                log.warning("%s", warning)

    def belong_to(self, store: str) -> None:
        """Whose device this is, once that is known: strays are told apart by it."""
        self._records.store = store_mark(store)

    @property
    def lingering(self) -> int:
        """How many functions go on although they were told to stop."""
        return self._calls.lingering

    # -- whether -----------------------------------------------------------------------------------------------------

    def objection(self, workflow: Workflow) -> str | None:
        """Why this device will never execute a workflow, in words; None if it would."""
        if workflow.http is not None and find_spec("httpx") is None:
            return f"HTTP requests need httpx on this device: {install_hint('http')}"
        return self.policy.objection(workflow)

    def check(self, work: RunWork) -> str | None:
        """Why this device will not execute this very run, with its input filled in; None if it would. What would be a
        failure of the work is none of its business. Starts nothing, changes nothing, and may be called in any
        thread."""
        if self.policy.everything and work.workflow.call is not None and stands_for_itself(work.workflow, work.given):
            return None  # there is nothing to judge, and this is on the way of every run
        why = self.objection(work.workflow)
        if why is not None:
            return why
        try:
            with self._mask(work) as mask:
                self._allow(work)
                self._judge(work, fill(work.workflow, work.given, mask))
        except (PolicyForbids, DeviceUnavailable) as error:
            return str(error)
        except Exception:
            return None
        return None

    def judges_each(self, workflow: Workflow, given: Any) -> bool:
        """Not a function with an input that stands for itself: what is judged of it is known from its workflow."""
        return workflow.call is None or not stands_for_itself(workflow, given)

    def _allow(self, work: RunWork) -> None:
        """Ask the policy for all that can be told before an expression of the work is evaluated. Raises PolicyForbids,
        and DeviceUnavailable for what is not on this device."""
        flow = work.workflow
        if self.policy.everything:
            return
        why = self.policy.objection(flow)
        if why is not None:
            raise PolicyForbids(why)
        if not isinstance(work.given, Mapping):
            return  # which fails before anything is evaluated
        known = bare(work.given)
        if flow.http is not None:
            if not _names_a_secret(flow.http["url"], known):  # such an address is judged once it is filled in
                self.policy.url(task_inputs.fill_template(flow.http["url"], known, task_inputs.url_quoted))
        elif flow.argv is not None and not _names_a_secret(flow.argv[0], known):
            self.policy.command(task_inputs.fill_template(flow.argv[0], known))

    def _judge(self, work: RunWork, resolved: ResolvedInputs) -> None:
        """Raises PolicyForbids, and DeviceUnavailable for what is not on this device."""
        flow = work.workflow
        self.policy.workflow(flow.name)
        if flow.http is not None:
            terms = request_terms(flow, resolved)
            self.policy.headers(terms.get("headers") or ())
            self.policy.url(terms["url"])
        elif flow.call is not None:
            self.policy.call(flow.call)
        else:
            argv, program = self._argv(flow, resolved)
            self.policy.variables(resolved.environment)
            self.policy.directory(flow.cwd)
            self._check_inputs(flow, resolved)
            if program is None:
                _check_command(argv[0], {**os.environ, **resolved.environment})

    # -- how ---------------------------------------------------------------------------------------------------------

    async def execute(self, work: RunWork) -> Any:
        """The result, which is JSON. Raises whatever went wrong: PolicyForbids (with ``begun`` False, nothing has
        happened), DeviceUnavailable if the device lacks what it takes and nothing has happened, DeviceTrouble if it
        could not do its own part, LimitReached, CommandFailed, RequestFailed, NotJson, or what a function raised.

        When cancelled, the work is stopped: the group of a command with SIGTERM, then with SIGKILL after the grace
        period, or at once if cancelled again."""
        with self._mask(work) as mask:
            self._allow(work)
            if stands_for_itself(work.workflow, work.given):
                resolved = ResolvedInputs(dict(work.given), {}, mask)
            else:
                with own_part("the run could not be prepared", EXHAUSTED):
                    resolved = fill(work.workflow, work.given, mask)
            limit = work.workflow.limit
            value = await (self._begin(work, resolved) if limit is None else self._within(limit, work, resolved))
            return _sendable(value)

    def _mask(self, work: RunWork) -> Mask:
        """The mask for whatever is said about an execution. Raises PolicyForbids and DeviceUnavailable."""
        names = secrets_of(work.workflow, work.given, self.policy)
        if new := names - self._read:
            self._read |= new
            self._warn(new)
        read = self._read
        return environment_mask(names, lambda name: name in read or self.policy.holds_secret(name))

    async def _within(self, seconds: float, work: RunWork, resolved: ResolvedInputs) -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._begin(work, resolved, limit.expired)
        except TimeoutError:
            if limit.expired():
                raise LimitReached(f"it took longer than its limit of {seconds:g} s and was stopped") from None
            raise

    async def _begin(self, work: RunWork, resolved: ResolvedInputs, expired: Callable[[], bool] | None = None) -> Any:
        self.policy.workflow(work.workflow.name)
        if work.workflow.call is not None:
            current = CurrentRun(work.run, work.on_progress, expired)
            self.policy.call(work.workflow.call)
            return await self._calls.call(work.workflow.call, resolved.inputs, current)
        if work.workflow.http is not None:
            headers = {"Asterism-Run": work.run.id, "Asterism-Epoch": str(work.run.epoch)}
            return await request(request_terms(work.workflow, resolved), headers, self.policy, resolved.mask)
        with own_part("its command could not be prepared", EXHAUSTED):
            command = self._command(work, resolved)
        return await self._run(work, command, resolved)

    async def probe(self) -> None:
        """All that a device does for a command, with one that does nothing. Raises DeviceTrouble."""
        with self._corner({}, None) as (_, files, in_child):
            environment = {**self._records.marks(), **files}
            try:
                await self._commands.run(["/bin/sh", "-c", ":"], environment, in_child=in_child, lease=PROBE)
            except (CommandFailed, OSError, subprocess.SubprocessError) as error:
                raise DeviceTrouble(f"not even an empty command ends well: {error}") from error

    def allow(self, run_id: str, seconds: float) -> None:
        """The device is sure of a run for so much longer: its command may go on, even if we are frozen meanwhile."""
        self._commands.allow(run_id, seconds)

    def look(self) -> None:
        """Tell what is new of every command, now rather than in a moment."""
        for watch in list(self._watches):
            watch.look()

    def close(self) -> None:
        """End what was started to look after child processes, and leave nothing behind."""
        self._commands.close()
        self._records.close()

    # -- commands ----------------------------------------------------------------------------------------------------

    def _argv(self, flow: Workflow, resolved: ResolvedInputs) -> tuple[list[str], str | None]:
        """The words of a command, and the file to execute if the policy has a say in it."""
        if flow.shell is not None:
            self.policy.shell()
            return ["/bin/sh", "-c", flow.shell], None
        assert flow.argv is not None
        argv = [task_inputs.fill_template(word, resolved.inputs) for word in flow.argv]
        program = self.policy.command(argv[0])
        return (argv, None) if program is None else ([program.name, *argv[1:]], program.file)

    def _command(self, work: RunWork, resolved: ResolvedInputs) -> _Command:
        argv, executable = self._argv(work.workflow, resolved)
        environment = self._environment(work, resolved)
        _check_words(argv, environment)
        if executable is None:
            _check_command(argv[0], environment)
        return _Command(argv, executable, environment, self.policy.directory(work.workflow.cwd))

    def _environment(self, work: RunWork, resolved: ResolvedInputs) -> dict[str, str]:
        run, last = work.run, work.run.progress
        own = {
            **self._records.marks(),
            "ASTERISM_RUN": run.id,
            "ASTERISM_EPOCH": str(run.epoch),
            "ASTERISM_STEP": "" if last is None else str(last.step),
            "ASTERISM_TOTAL": "" if last is None or last.total is None else str(last.total),
        }
        device = {name: value for name, value in os.environ.items() if self.policy.passes(name)}
        self.policy.variables(resolved.environment)
        self._check_inputs(work.workflow, resolved)
        bare = dict(task_inputs.bare_variables(resolved.inputs, partial(self._wants, work.workflow)))
        return {
            **bare,
            **device,
            **resolved.environment,
            **dict(task_inputs.prefixed_variables(resolved.inputs)),
            **own,
        }

    def _wants(self, workflow: Workflow, name: str) -> bool:
        """Whether an input is to be a variable under its bare name: the policy lists it, or there is none and the line
        has it."""
        if not self.policy.everything:
            return self.policy.may_be_given(name)
        return workflow.shell is not None and task_inputs.mentions_name(workflow.shell, name)

    def _check_inputs(self, workflow: Workflow, resolved: ResolvedInputs) -> None:
        """An input that the line counts on and that cannot be its variable is refused, rather than be silently
        another: the policy does not list it, or the device has a variable of that name, which no run replaces."""
        line = workflow.shell or ""
        task_inputs.check_shell_line(line, resolved.inputs, resolved.environment)
        for name in resolved.inputs:
            if task_inputs.refers_to_variable(line, name) and name not in resolved.environment:
                self.policy.counts_on(name)
                if name in os.environ and self.policy.passes(name):
                    raise DeviceUnavailable(
                        f"this device has a variable {name!r} of its own, and an input does not replace it; "
                        f"{task_inputs.variable_advice(name)}"
                    )

    async def _run(self, work: RunWork, command: _Command, resolved: ResolvedInputs) -> Any:
        mask = resolved.mask
        with self._corner(work.given, command.cwd) as (progress, files, in_child):
            watch = Watch(progress, mask, work.on_output, work.on_progress)
            self._watches.add(watch)
            try:
                return await self._commands.run(
                    command.argv,
                    {**command.environment, **files},
                    command.cwd,
                    executable=command.executable,
                    heard=watch.hear,
                    in_child=in_child,
                    key=work.run.id,
                    lease=work.lease,
                )
            except CommandFailed as error:
                said, cut = error.output[-2 * TAIL :], max(watch.heard.values()) > OUTPUT_LIMIT
                said = mask.tail(said, cut=cut or len(said) < len(error.output))
                failed = CommandFailed(error.code, said[-TAIL:])
            except OSError as error:
                if error.errno == errno.E2BIG:
                    raise AsterismError(
                        f"the words and variables of the command are too long together; {_INSTEAD}"
                    ) from None
                raise
            except subprocess.SubprocessError:  # the child looked where it was before it became the command
                raise AsterismError("the command was not started: its directory has become another one") from None
            finally:
                self._watches.discard(watch)
                watch.close()
        raise failed  # not where the other was caught, which would stay its context, with all of the output

    @contextlib.contextmanager
    def _corner(
        self, given: Mapping[str, Any], cwd: str | None
    ) -> Iterator[tuple[Path, dict[str, str], Callable[[], None]]]:
        """What a command needs of us, for as long as it runs: the file for its progress, the variables that name its
        files, and what its process does first. Raises DeviceTrouble."""
        with contextlib.ExitStack() as undo:
            with own_part("the files of the run could not be written"):
                desk = self._records.make_directory()
                undo.callback(shutil.rmtree, desk, ignore_errors=True)
                ticket, in_child = self._records.admit(None if self.policy.everything else cwd)
                undo.callback(self._records.finished, ticket)
                progress, file = desk / "progress", desk / "input.json"
                _write_input(file, given)
                progress.touch(mode=0o600)
            yield progress, {"ASTERISM_PROGRESS": str(progress), "ASTERISM_INPUT": str(file)}, in_child


_INSTEAD = "let it read its input from the file $ASTERISM_INPUT"


def _check_words(argv: list[str], environment: Mapping[str, str]) -> None:
    """Says what no command can be given, before the system says it less clearly."""
    named = {f"word {index} of the command": word for index, word in enumerate(argv, 1)}
    for what, text in {**named, **{f"the variable {name}": value for name, value in environment.items()}}.items():
        if "\0" in text:
            raise AsterismError(f"{what} has a NUL character in it, which no command can be given")
        if len(text) * 4 > LONGEST_VARIABLE and len(text.encode(errors="replace")) > LONGEST_VARIABLE:
            raise AsterismError(f"{what} has more than {LONGEST_VARIABLE:,} bytes; {_INSTEAD}")


def _check_command(word: str, environment: Mapping[str, str]) -> None:
    """Raises DeviceUnavailable for a command that is nowhere on the path: another device may have it."""
    if "/" not in word and shutil.which(word, path=environment.get("PATH") or os.defpath) is None:
        raise DeviceUnavailable(f"there is no command {word!r} on this device")


def _names_a_secret(text: str, given: Mapping[str, Any]) -> bool:
    return any(is_secret(given.get(name)) for name in task_inputs.names_in(text))


def _write_input(path: Path, given: Mapping[str, Any]) -> None:
    """Secrets stay what they are there: names."""
    path.write_text(json.dumps(plain_json(bare(given), "the input")), encoding="ascii")


def _sendable(value: Any) -> Any:
    """A result as JSON. Raises NotJson for what cannot be stored or sent."""
    value = plain_json(value, "the result")
    if value is None or type(value) in (bool, float):
        return value
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError as error:  # half of a surrogate pair, or a number of more digits than Python prints
        raise NotJson(f"the result cannot be written as JSON: {error}") from None
    return value
