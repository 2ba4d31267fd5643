"""One execution of a run on a device: what is executed, what it is told, and how it is stopped.

Whatever is executed is judged by the device's policy after all of it is filled in, and told which run and which epoch
it works for. Commands get that as variables: ``ASTERISM_RUN``, ``ASTERISM_EPOCH``, ``ASTERISM_DEVICE``,
``ASTERISM_SESSION``; how far the attempt before had come as ``ASTERISM_STEP`` and ``ASTERISM_TOTAL`` (empty if it had
not said); the input as JSON in the file ``$ASTERISM_INPUT``, however large it is; and they tell how far they are by
writing ``3/10`` or ``3`` into the file ``$ASTERISM_PROGRESS``. Requests get the headers ``Asterism-Run`` and
``Asterism-Epoch``, functions a parameter ``run`` if they have one.

Inputs are variables too, each under its own name. With a policy only those that it lists: a name such as ``LD_PRELOAD``
means something to the system.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from asterism.core.errors import AsterismError, DeviceUnavailable, NotJson
from asterism.core.extras import extra_advice
from asterism.core.jsonable import plain
from asterism.core.run import Progress, Run
from asterism.core.workflow import Workflow
from asterism.runtime import inputs
from asterism.runtime.devices import hide_in
from asterism.runtime.fleet.calling import Calls, CurrentRun
from asterism.runtime.fleet.filling import bare, fill, request_terms, stands_for_itself
from asterism.runtime.fleet.lives import Life, mark
from asterism.runtime.fleet.policy import Policy, PolicyForbids
from asterism.runtime.fleet.requesting import request
from asterism.runtime.fleet.watching import TAIL, Veil, Watch
from asterism.runtime.inputs import Resolved
from asterism.runtime.processes import OUTPUT_LIMIT, CommandFailed, Commands

LONGEST = 128 * 1024 - 1
"""How long one word or variable of a command may be, in bytes: Linux takes no longer one."""


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
    """What executes; Executors is the real one."""

    def objection(self, workflow: Workflow) -> str | None: ...

    def check(self, work: RunWork) -> str | None: ...

    async def execute(self, work: RunWork) -> Any: ...

    def allow(self, run_id: str, seconds: float) -> None:
        """Called with every heartbeat: the device is sure of the run for so much longer."""
        ...

    def close(self) -> None: ...


class Executors:
    """Executes for one session of a device. ``store`` is its store's address: strays are told apart by it."""

    def __init__(self, policy: Policy, *, device: str, session: str, grace: float = 5.0, store: str = "") -> None:
        self.policy, self.device, self.session = policy, device, session
        self._commands = Commands(grace)
        self._calls = Calls(policy, grace)
        self._life = Life(device, session, store)
        self._watches: set[Watch] = set()

    def belong_to(self, store: str) -> None:
        """Whose device this is, once that is known: strays are told apart by it."""
        self._life.store = mark(store)

    @property
    def lingering(self) -> int:
        """How many functions go on although they were told to stop."""
        return self._calls.lingering

    # -- whether -----------------------------------------------------------------------------------------------------

    def objection(self, workflow: Workflow) -> str | None:
        """Why this device will never execute a workflow, in words; None if it would."""
        if workflow.http is not None and find_spec("httpx") is None:
            return f"HTTP requests need httpx on this device: {extra_advice('http')}"
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
        resolved = Resolved({}, {}, frozenset())
        try:
            resolved = fill(work.workflow, work.given, self.policy)
            self._judge(work, resolved)
        except (PolicyForbids, DeviceUnavailable) as error:
            return str(resolved.hide(str(error)))
        except Exception:
            return None
        return None

    def _judge(self, work: RunWork, resolved: Resolved) -> None:
        """Raises PolicyForbids, and DeviceUnavailable for what is not on this device."""
        flow = work.workflow
        self.policy.workflow(flow.name)
        if flow.http is not None:
            terms = request_terms(flow, resolved, self.policy)
            self.policy.headers(terms.get("headers") or ())
            self.policy.url(terms["url"])
        elif flow.call is not None:
            self.policy.call(flow.call)
        else:
            argv, program = self._argv(flow, resolved)
            self.policy.variables(resolved.environment)
            self.policy.directory(flow.cwd)
            given = dict(self._variables(flow, resolved))
            if program is None:
                _check_command(argv[0], {**os.environ, **given, **resolved.environment})

    # -- how ---------------------------------------------------------------------------------------------------------

    async def execute(self, work: RunWork) -> Any:
        """The result, which is JSON. Raises whatever went wrong: PolicyForbids (with ``begun`` False, nothing has
        happened), DeviceUnavailable if the device lacks what it takes and nothing has happened, LimitReached,
        CommandFailed, RequestFailed, NotJson, or what a function raised.

        When cancelled, the work is stopped: the group of a command with SIGTERM, then with SIGKILL after the grace
        period, or at once if cancelled again."""
        resolved = fill(work.workflow, work.given, self.policy)
        try:
            limit = work.workflow.limit
            value = await (self._begin(work, resolved) if limit is None else self._within(limit, work, resolved))
            return resolved.hide(_sendable(value))
        except BaseException as error:
            if resolved.secrets:
                hide_in(error, resolved)
            raise

    async def _within(self, seconds: float, work: RunWork, resolved: Resolved) -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._begin(work, resolved, limit.expired)
        except TimeoutError:
            if limit.expired():
                raise LimitReached(f"it took longer than its limit of {seconds:g} s and was stopped") from None
            raise

    async def _begin(self, work: RunWork, resolved: Resolved, expired: Callable[[], bool] | None = None) -> Any:
        self.policy.workflow(work.workflow.name)
        if work.workflow.call is not None:
            current = CurrentRun(work.run, work.on_progress, expired)
            self.policy.call(work.workflow.call)
            return await self._calls.call(work.workflow.call, resolved.inputs, current)
        if work.workflow.http is not None:
            headers = {"Asterism-Run": work.run.id, "Asterism-Epoch": str(work.run.epoch)}
            return await request(request_terms(work.workflow, resolved, self.policy), headers, self.policy)
        return await self._run(work, self._command(work, resolved), resolved)

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
        self._life.close()

    # -- commands ----------------------------------------------------------------------------------------------------

    def _argv(self, flow: Workflow, resolved: Resolved) -> tuple[list[str], str | None]:
        """The words of a command, and the file to execute if the policy has a say in it."""
        if flow.shell is not None:
            self.policy.shell()
            return ["/bin/sh", "-c", flow.shell], None
        assert flow.argv is not None
        argv = [inputs.template(word, resolved.inputs) for word in flow.argv]
        program = self.policy.command(argv[0])
        return (argv, None) if program is None else ([program.name, *argv[1:]], program.file)

    def _command(self, work: RunWork, resolved: Resolved) -> _Command:
        argv, executable = self._argv(work.workflow, resolved)
        environment = self._environment(work, resolved)
        _check_words(argv, environment)
        if executable is None:
            _check_command(argv[0], environment)
        return _Command(argv, executable, environment, self.policy.directory(work.workflow.cwd))

    def _environment(self, work: RunWork, resolved: Resolved) -> dict[str, str]:
        run, last = work.run, work.run.progress
        own = {
            **self._life.marks(),
            "ASTERISM_RUN": run.id,
            "ASTERISM_EPOCH": str(run.epoch),
            "ASTERISM_STEP": "" if last is None else str(last.step),
            "ASTERISM_TOTAL": "" if last is None or last.total is None else str(last.total),
        }
        device = {name: value for name, value in os.environ.items() if self.policy.passes(name)}
        given = dict(self._variables(work.workflow, resolved))
        self.policy.variables(resolved.environment)
        return {**device, **given, **resolved.environment, **own}

    def _variables(self, workflow: Workflow, resolved: Resolved) -> Iterator[tuple[str, str]]:
        """The inputs that become variables. What cannot be one, or is too long, is in ``$ASTERISM_INPUT`` all the
        same; what the policy does not list is refused if the workflow counts on it."""
        for name, value in resolved.inputs.items():
            if not name or "=" in name or "\0" in name:
                continue
            if not self.policy.may_set(name):
                if workflow.shell is not None and re.search(rf"\$\{{?[#!]?{re.escape(name)}\b", workflow.shell):
                    self.policy.variables([name])
                continue
            text = inputs.as_text(value)
            if "\0" not in text and len(name) + 1 + len(text.encode(errors="replace")) <= LONGEST:
                yield name, text

    async def _run(self, work: RunWork, command: _Command, resolved: Resolved) -> Any:
        desk = self._life.desk()
        veil = Veil(resolved)
        progress, given = desk / "progress", desk / "input.json"
        ticket, in_child = self._life.admit(None if self.policy.everything else command.cwd)
        watch = Watch(progress, veil, work.on_output, work.on_progress)
        self._watches.add(watch)
        try:
            _write_input(given, work.given)
            progress.touch(mode=0o600)
            files = {"ASTERISM_PROGRESS": str(progress), "ASTERISM_INPUT": str(given)}
            value = await self._commands.run(
                command.argv,
                {**command.environment, **files},
                command.cwd,
                executable=command.executable,
                heard=watch.hear,
                in_child=in_child,
                key=work.run.id,
                lease=work.lease,
            )
            return veil.over(value, cut=watch.heard[1] > OUTPUT_LIMIT) if isinstance(value, str) else value
        except CommandFailed as error:
            said = veil.over(error.output, cut=max(watch.heard.values()) > OUTPUT_LIMIT)
            raise CommandFailed(error.code, said[-TAIL:]) from None
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise AsterismError(
                    f"the words and variables of the command are too long together; {_INSTEAD}"
                ) from None
            raise
        except subprocess.SubprocessError:  # what the child did before it became the command went wrong
            raise AsterismError(
                "the command was not started: its directory has become another one, or its start could not be noted"
            ) from None
        finally:
            self._watches.discard(watch)
            watch.close()
            self._life.finished(ticket)
            shutil.rmtree(desk, ignore_errors=True)


_INSTEAD = "let it read its input from the file $ASTERISM_INPUT"


def _check_words(argv: list[str], environment: Mapping[str, str]) -> None:
    """Says what no command can be given, before the system says it less clearly."""
    named = {f"word {index} of the command": word for index, word in enumerate(argv, 1)}
    for what, text in {**named, **{f"the variable {name}": value for name, value in environment.items()}}.items():
        if "\0" in text:
            raise AsterismError(f"{what} has a NUL character in it, which no command can be given")
        if len(text) * 4 > LONGEST and len(text.encode(errors="replace")) > LONGEST:
            raise AsterismError(f"{what} has more than {LONGEST:,} bytes; {_INSTEAD}")


def _check_command(word: str, environment: Mapping[str, str]) -> None:
    """Raises DeviceUnavailable for a command that is nowhere on the path: another device may have it."""
    if "/" not in word and shutil.which(word, path=environment.get("PATH") or os.defpath) is None:
        raise DeviceUnavailable(f"there is no command {word!r} on this device")


def _write_input(path: Path, given: Mapping[str, Any]) -> None:
    """Secrets stay what they are there: names."""
    path.write_text(json.dumps(plain(bare(given), "the input")), encoding="ascii")


def _sendable(value: Any) -> Any:
    """A result as JSON. Raises NotJson for what cannot be stored or sent."""
    value = plain(value, "the result")
    if value is None or type(value) in (bool, float):
        return value
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError as error:  # half of a surrogate pair, or a number of more digits than Python prints
        raise NotJson(f"the result cannot be written as JSON: {error}") from None
    return value
