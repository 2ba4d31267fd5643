"""Actions: a function, a command, an HTTP request, work for an agent or for a plug-in, executed in one way anywhere.

``ACTIONS`` has what executes each kind, those of this package and those of plug-ins (``plugin_actions.py``). It gets an
``Attempt``: the action of a task or a workflow, its inputs, and what the place does in its own way. An orchestrator
(``LocalDevice``) and a device of a fleet (``fleet/device/executor.py``) derive their attempts from it.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from asterism.base.plugins import Registry
from asterism.core.errors import TooLarge
from asterism.core.json_values import JsonObject, SizeLimit
from asterism.core.plan.task import kind_of, plugin_name
from asterism.core.record import Record, Struct, replace
from asterism.core.schedule.tick_values import VARIABLES
from asterism.execution import command_inputs, task_inputs
from asterism.execution.command_inputs import InputVariable
from asterism.execution.http_requests import RequestJudge, send_request
from asterism.execution.processes import EXHAUSTED, CommandFailed, Commands, own_part
from asterism.execution.task_inputs import MissingInput, References, ResolvedInputs, call_apart
from asterism.execution.working_folder import WorkFiles

if TYPE_CHECKING:
    from asterism.core.plan.task import Task
    from asterism.core.run.work import Work
    from asterism.execution.process_guard import Admission


class CommandFiles(Record):
    """The files of a command while it runs, in ``folder`` if it has any: the variables that name them, what records its
    output, and what its process does before it becomes the command."""

    variables: Mapping[str, str]
    hear: Callable[[int, bytes], None]
    folder: Path | None = None
    admission: Admission | None = None

    @contextmanager
    def undone_by(self, command: Sequence[str]) -> Iterator[Path | None]:
        """The folder of the files, with what ``Command.undo`` is in it. Raises DeviceTrouble."""
        with ExitStack() as undo:
            folder = self.folder
            if command:
                with own_part("the command that ends the work could not be recorded"):
                    folder = folder or undo.enter_context(command_inputs.private_folder())
                    (folder / UNDO).write_bytes(b"\0".join(map(os.fsencode, command)))
            yield folder


UNDO = "undo"
"""The file in the folder of an execution that has the words of ``Command.undo``, with a NUL character between them. The
guard (``guard_main.py``) and the next session of a device (``process_records.py``) run it."""

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

    def __init__(self, action: Task | Work, resolved: ResolvedInputs, commands: Commands) -> None:
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

    def fill(self, text: str) -> str:
        """A text with the inputs in place of ``{name}``. Raises MissingInput."""
        return task_inputs.fill_template(text, self.resolved.inputs)

    def secret(self, name: str) -> str:
        """A secret that the plug-in has declared. Raises MissingInput."""
        value = self.resolved.mask.values.get(name)
        if value is None:
            raise MissingInput(f"the environment has no secret {name!r}, or the plug-in does not declare it")
        return value

    def note(self, text: str) -> None:
        """Record a line in the log of the attempt, with secrets masked."""
        self.hear(2, f"{self.resolved.mask.text(text)}\n".encode(errors="replace"))

    async def run(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Any:
        """Run a program as the work of this attempt, as the command of a task is run: with its inputs, in its working
        directory, killed with it. ``environment`` are more variables. Returns its output, parsed if it is JSON. Raises
        as ``run_command`` does."""

        def prepare(texts: Mapping[str, str]) -> Command:
            self.check_variables()
            variables = command_inputs.passable(argv, {**self.environment(texts), **(environment or {})})
            return Command([*argv], None, variables, self.directory())

        return await run_program(self, prepare)

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
    files, kind = attempt.work_files, action_kind(attempt.action)
    if kind is None:
        return await attempt.call()
    return await (kind.run(attempt) if files is None else files.execute(attempt, kind.run))


def action_kind(action: Task | Work) -> ActionKind | None:
    """What executes an action; None for a task without one. Raises PluginProblem."""
    kind = kind_of(action)
    if kind == "plugin":
        assert action.plugin is not None
        kind = plugin_name(action.plugin)
    return None if kind is None else ACTIONS.load(kind)


async def run_command(attempt: Attempt) -> Any:
    """Run the command of an action and return its output, parsed if it is JSON. Raises as ``run_program`` does."""
    return await run_program(attempt, lambda texts: prepare_command(attempt, texts))


class Command(Record):
    """A command that is ready to run. ``executable`` is the file to execute if that is not the first word. ``complete``
    returns its words when the files of the attempt are there. ``undo`` is a command that ends what its process leaves
    behind outside of itself: it runs if the process is killed because this one died or was frozen."""

    argv: list[str]
    executable: str | None
    environment: dict[str, str]
    cwd: str | None
    undo: tuple[str, ...] = ()
    complete: Callable[[CommandFiles], list[str]] | None = None


def prepare_command(attempt: Attempt, texts: Mapping[str, str]) -> Command:
    """The command of an action; ``texts`` are its inputs as a command sees them. Raises TooLarge, and what the place
    raises for what it does not allow or have."""
    argv, executable = attempt.words()
    attempt.check_variables()
    environment = command_inputs.passable(argv, attempt.environment(texts))
    return Command(argv, executable, environment, attempt.directory())


async def run_program(attempt: Attempt, prepare: Callable[[Mapping[str, str]], Command]) -> Any:
    """Run a program and return its output, parsed if it is JSON. ``prepare`` gets the inputs as texts. Raises as
    ``Commands.run`` does, and TooLarge for words and variables that cannot be passed to it."""
    texts = await call_apart(command_inputs.input_texts, attempt.resolved.inputs)
    with own_part("its command could not be prepared", EXHAUSTED):
        command = prepare(texts)
    async with attempt.files(texts, command.cwd) as files:
        try:
            with files.undone_by(command.undo) as folder:
                return await attempt.commands.run(
                    command.argv if command.complete is None else command.complete(replace(files, folder=folder)),
                    {**command.environment, **files.variables},
                    command.cwd,
                    executable=command.executable,
                    heard=files.hear,
                    admission=files.admission,
                    key=attempt.key,
                    lease=attempt.lease,
                    result_limit=await attempt.limit(),
                    folder=None if folder is None else str(folder),
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


async def send(attempt: Attempt) -> Any:
    """Send the request and return the body of the answer. Raises as ``send_request`` does."""
    request = attempt.filled_request()
    headers = attempt.headers(request.get("headers") or {})
    return await send_request(
        request, attempt.resolved.mask, await attempt.limit(), headers=headers, judge=attempt.judge
    )


# -- kinds -------------------------------------------------------------------------------------------------------------


class ActionKind(Protocol):
    """What executes a kind of action, and what it says about itself: the secrets that it reads on the device, whether
    it starts processes, and whether it uses the network."""

    @property
    def secrets(self) -> tuple[str, ...]: ...
    @property
    def starts_processes(self) -> bool: ...
    @property
    def uses_network(self) -> bool: ...

    async def run(self, attempt: Attempt, /) -> Any: ...


class BuiltInKind(Struct):
    """A kind of action that this package has."""

    run: Callable[[Attempt], Awaitable[Any]]
    starts_processes: bool = False
    uses_network: bool = False
    secrets: tuple[str, ...] = ()


CALL = BuiltInKind(lambda attempt: attempt.call())
COMMAND = BuiltInKind(run_command, starts_processes=True)
REQUEST = BuiltInKind(send, uses_network=True)
AGENT = BuiltInKind(lambda attempt: attempt.run_agent(), starts_processes=True, uses_network=True)

ACTIONS: Registry[ActionKind] = Registry(
    "asterism.actions",
    {
        "call": f"{__name__}:CALL",
        "argv": f"{__name__}:COMMAND",
        "shell": f"{__name__}:COMMAND",
        "http": f"{__name__}:REQUEST",
        "agent": f"{__name__}:AGENT",
        "container": "asterism.execution.containers:Container",
    },
)
"""What executes each kind of action."""
