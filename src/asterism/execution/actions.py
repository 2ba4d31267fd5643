"""Actions: a function, a command, an HTTP request or work for an agent, executed in one way wherever that happens.

``ACTIONS`` has what executes each kind; a new kind is a line there and a function. It gets an ``Attempt``: the action
of a task or a workflow, its inputs, and what the place does in its own way. An orchestrator (``LocalDevice``) and a
device of a fleet (``fleet/device/executor.py``) derive their attempts from it.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asterism.core.errors import TooLarge
from asterism.core.json_values import JsonObject, SizeLimit
from asterism.core.schedule.tick_values import VARIABLES
from asterism.execution import command_inputs, task_inputs
from asterism.execution.command_inputs import InputVariable
from asterism.execution.http_requests import RequestJudge, send_request
from asterism.execution.processes import EXHAUSTED, CommandFailed, Commands, own_part
from asterism.execution.task_inputs import References, ResolvedInputs, call_apart
from asterism.execution.working_folder import WorkFiles

if TYPE_CHECKING:
    from asterism.core.plan.task import Task
    from asterism.core.run.workflow import Workflow
    from asterism.execution.process_guard import Admission


@dataclass(frozen=True, slots=True)
class CommandFiles:
    """The files of a command while it runs, in ``folder`` if it has any: the variables that name them, what records its
    output, and what its process does before it becomes the command."""

    variables: Mapping[str, str]
    hear: Callable[[int, bytes], None]
    folder: Path | None = None
    admission: Admission | None = None


OF_OTHER_WORK = ("ASTERISM_PLAN", "ASTERISM_TASK", *VARIABLES.values())
"""Variables that say for what a command works. A process that is itself a task of a plan does not pass its own on."""


class Attempt:
    """One execution of an action. Every method says what holds in a process that may do everything; a place overrides
    what it does in another way."""

    inputs_win = True
    """Whether an input replaces a variable of this process with the same name."""

    key: str | None = None
    lease: float | None = None
    judge: RequestJudge | None = None
    """What judges the addresses of a request."""

    work_files: WorkFiles | None = None
    """The files of a task that has a working folder of its own; it is ``folder`` then, below ``root``."""

    folder: Path | None = None
    root: Path | None = None

    def __init__(self, action: Task | Workflow, resolved: ResolvedInputs, commands: Commands) -> None:
        self.action, self.resolved, self.commands = action, resolved, commands

    def identity(self) -> dict[str, str]:
        """The variables that tell a command for what it works."""
        return {}

    def headers(self, own: Mapping[str, str]) -> Mapping[str, str]:
        """The headers that tell a server the same; ``own`` are those of the action."""
        return {}

    async def limit(self) -> SizeLimit:
        """How large the result may be."""
        raise NotImplementedError

    def references(self) -> References:
        """What the references of a request stand for."""
        raise NotImplementedError

    def words(self) -> tuple[list[str], str | None]:
        """The words of the command, and the file to execute if that is not the first word. Raises what judges them."""
        if self.action.shell is not None:
            return ["/bin/sh", "-c", self.action.shell], None
        return [task_inputs.fill_template(word, self.resolved.inputs) for word in self.action.argv or ()], None

    def directory(self) -> str | None:
        """The working directory; None for that of this process. Raises what judges it."""
        return self.action.cwd if self.folder is None else str(self.folder)

    def make_folder(self) -> Path:
        """A new folder for all files of this execution. Raises OSError."""
        return Path(tempfile.mkdtemp(prefix="asterism-")).resolve()

    def inherited(self) -> Mapping[str, str]:
        """The variables of this process that a command gets."""
        return os.environ

    def is_bare(self, name: str) -> bool:
        """Whether an input becomes a variable under its bare name."""
        return task_inputs.mentions_name(self.action.shell or "", name)

    def check_variables(self) -> None:
        """Refuse a shell line that uses a variable which cannot be set. Raises MissingInput."""
        task_inputs.check_shell_line(self.action.shell or "", self.resolved.inputs, self.resolved.environment)

    @asynccontextmanager
    async def files(self, texts: Mapping[str, str], cwd: str | None) -> AsyncIterator[CommandFiles]:
        """The files of a command in ``cwd`` for as long as it runs; ``texts`` are its inputs. Raises DeviceTrouble."""
        with ExitStack() as undo:
            if not texts:
                yield CommandFiles({}, self.hear, self.root)
                return
            with own_part("the inputs of the command could not be written"):
                folder = self.root or undo.enter_context(command_inputs.private_folder())
                variables = await call_apart(command_inputs.write_inputs, texts, folder)
            yield CommandFiles(variables, self.hear, folder)

    def hear(self, pipe: int, data: bytes) -> None:
        """Record output of a command; ``pipe`` is 1 or 2."""

    def failure(self, error: CommandFailed) -> CommandFailed:
        """The error of a command, as it may leave this place."""
        return error

    async def call(self) -> Any:
        """Call the function."""
        raise NotImplementedError

    async def run_agent(self) -> Any:
        """Let an agent do the work."""
        raise NotImplementedError

    def environment(self, texts: Mapping[str, str]) -> dict[str, str | InputVariable]:
        """The variables of a process that executes the action."""
        work = self.action.shell or " ".join(self.action.argv or ())
        bare = command_inputs.bare_variables(texts, work, self.is_bare)
        inherited = {**self.inherited()}
        for name in OF_OTHER_WORK:
            inherited.pop(name, None)
        variables: dict[str, str | InputVariable] = {**bare, **inherited, **(bare if self.inputs_win else {})}
        return {
            **variables,
            **self.resolved.environment,
            **command_inputs.prefixed_variables(texts, work),
            **self.identity(),
        }

    def filled_request(self) -> JsonObject:
        """The request of the action, with its references and inputs filled in."""
        request: JsonObject = self.references().deep(dict(self.action.http or {}))
        request["url"] = task_inputs.fill_template(request["url"], self.resolved.inputs, task_inputs.url_quoted)
        return request


async def execute_action(attempt: Attempt) -> Any:
    """Execute an action and return its result. Raises what its kind raises."""
    files = attempt.work_files
    for kind, execute in ACTIONS.items():
        if getattr(attempt.action, kind) is not None:
            return await (execute(attempt) if files is None else files.execute(attempt, execute))
    return await attempt.call()


async def run_command(attempt: Attempt) -> Any:
    """Run a command and return its output, parsed if it is JSON. Raises as ``Commands.run`` does, and TooLarge for
    words and variables that cannot be passed to it."""
    texts = await call_apart(command_inputs.input_texts, attempt.resolved.inputs)
    with own_part("its command could not be prepared", EXHAUSTED):
        command = prepare_command(attempt, texts)
    async with attempt.files(texts, command.cwd) as files:
        try:
            return await attempt.commands.run(
                command.argv,
                {**command.environment, **files.variables},
                command.cwd,
                executable=command.executable,
                heard=files.hear,
                admission=files.admission,
                key=attempt.key,
                lease=attempt.lease,
                result_limit=await attempt.limit(),
                folder=None if files.folder is None else str(files.folder),
            )
        except CommandFailed as error:
            failed = attempt.failure(error)
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            raise TooLarge(
                "the words and variables of the command are too long; let it read the file $ASTERISM_INPUT"
            ) from None
    raise failed  # outside the handler: the first error, with all of the output, would stay its context


@dataclass(frozen=True, slots=True)
class Command:
    """A command that is ready to run. ``executable`` is the file to execute if that is not the first word."""

    argv: list[str]
    executable: str | None
    environment: dict[str, str]
    cwd: str | None


def prepare_command(attempt: Attempt, texts: Mapping[str, str]) -> Command:
    """The command of an action; ``texts`` are its inputs as a command sees them. Raises TooLarge, and what the place
    raises for what it does not allow or have."""
    argv, executable = attempt.words()
    attempt.check_variables()
    environment = command_inputs.passable(argv, attempt.environment(texts))
    return Command(argv, executable, environment, attempt.directory())


async def send(attempt: Attempt) -> Any:
    """Send the request and return the body of the answer. Raises as ``send_request`` does."""
    request = attempt.filled_request()
    headers = attempt.headers(request.get("headers") or {})
    return await send_request(
        request, attempt.resolved.mask, await attempt.limit(), headers=headers, judge=attempt.judge
    )


ACTIONS: dict[str, Callable[[Attempt], Awaitable[Any]]] = {
    "call": lambda attempt: attempt.call(),
    "argv": run_command,
    "shell": run_command,
    "http": send,
    "agent": lambda attempt: attempt.run_agent(),
}
"""What executes each kind of action."""
