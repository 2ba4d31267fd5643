"""What commands share: options, opening a fleet, finding runs and workflows, printing, and short forms of values.

Commands that only read never create a store: a mistyped name is an error and leaves no empty file. Importing this
module is cheap: asyncio, stores and their drivers are imported when a store is opened.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from asterism.base.text import clean, json_text
from asterism.cli.option_types import Function, duration_option, number_option, option
from asterism.core.record import Record

if TYPE_CHECKING:
    from rich.text import Text

    from asterism.api.documents import Page
    from asterism.api.system import System
    from asterism.fleet.fleet import Fleet

Value = TypeVar("Value")

HOW_TO_CREATE_A_STORE = (
    "`asterism store init`, `workflow add`, `schedule add`, `device join`, `series claim`, `serve` or "
    "`run --store URL` creates it; --store names another one"
)
"""Every command in it creates a store; a plain ``asterism run`` needs none."""


class CommandGroup(click.Group):
    """A group that lists its commands in the order of their definition, and completes names in a shell."""

    def command(  # type: ignore[override]
        self, name: str | None = None, **terms: Any
    ) -> Callable[[Callable[..., Any]], click.Command]:
        """As of click, with what the function says: the first word of its name is the name of the command, unless one
        is given, an ``async`` function whose first parameter is ``system`` or ``fleet`` gets one, as with
        ``on_system``, and a parameter without an option is an argument."""

        def add(function: Callable[..., Any]) -> click.Command:
            command = name or function.__name__.partition("_")[0]
            return super(CommandGroup, self).command(command, **terms)(_with_arguments(_with_place(function)))

        return add

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is not None and ctx.resilient_parsing:  # a shell asks what it can complete
            from asterism.cli.completion_commands import complete_names

            complete_names(command, ctx)
        return command


def options(*several: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Several options as one decorator, for commands that share them. The help lists them in this order."""

    def decorate(function: Function) -> Function:
        for add in reversed(several):
            function = add(function)
        return function

    return decorate


def section(title: str, several: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Options that the help of a ``SectionedCommand`` lists under a title of their own."""

    def decorate(function: Function) -> Function:
        others = list(getattr(function, "__click_params__", ()))
        function = several(function)
        for parameter in vars(function)["__click_params__"]:
            if parameter not in others:
                vars(parameter)["section"] = title
        return function

    return decorate


class SectionedCommand(click.Command):
    """A command whose help lists some options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                records.setdefault(vars(parameter).get("section", "Options"), []).append(record)
        for title, listed in records.items():
            with formatter.section(title):
                formatter.write_dl(listed)


json_option = option("--json", "Print JSON.", to="as_json")

store_option = option(
    "--store URL",
    "sqlite:///file.db, postgresql://…, or a server: https://… or its name; default: $ASTERISM_STORE, or a file "
    "in your data directory.",
    envvar="ASTERISM_STORE",
)


def reason_option(use: str = "left as a notice") -> Callable[[Function], Function]:
    """The option of commands that change something. ``use`` says what becomes of the reason."""
    return option("--reason TEXT", f"The reason, {use}.", default="")


story_reason_option = reason_option("for the story")

fleet_options = options(store_option, json_option)
"""The options of every command on a store."""

STORE_PAUSE = 1.0
"""How long to wait before the next try to reach a store, in seconds."""

RECONNECT = (0.25, 5.0)
"""The first and the longest pause before a system that is out of reach is asked again, in seconds."""

store_wait_option = duration_option(
    "--store-wait", "60s", help="How long to wait at the start for a store that cannot be reached; 0s: not at all."
)

log_options = options(
    option("-f --follow", "Print new lines as they come, until the end. Ctrl-C stops it."),
    duration_option("--since", help="Only lines of this last time, such as 10m."),
    number_option("--attempt", least=1, help="Only this attempt, counted from 1."),
    option("--times", "Begin each line with its time and stream."),
)
"""The options of the commands that print logs."""


def refuse_options(why: str, *names: str) -> None:
    """Raise UsageError for the first of these parameters that is given on the command line: it would have no effect.
    ``why`` continues the sentence that begins with the option."""
    for parameter in click.get_current_context().command.params:
        if parameter.name in names and is_given(parameter.name or ""):
            raise click.UsageError(f"{parameter.opts[-1]} {why}")


def is_given(name: str) -> bool:
    """Whether an option is on the command line, and has not its default or a value of the environment."""
    from click.core import ParameterSource

    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def same_system(url: str) -> str:
    """The option that lets an advised command find the store or the server of this one: empty unless --store was given
    to it."""
    import shlex

    return f" --store {shlex.quote(url)}" if is_given("store") else ""


def with_fleet(
    url: str | None, use: Callable[[Fleet], Awaitable[Value]], *, create: bool = False, wait: float = 0.0
) -> Value:
    """Open the fleet of a store, use it, and close it. With ``create`` a missing store is created. ``wait`` is how long
    to wait for a store that cannot be reached, in seconds.

    Raises StoreNotFound with a hint if there is no store."""
    return run_interruptible(_used(_reached_fleet(url, create, wait), use))


async def _used(opening: Awaitable[Any], use: Callable[[Any], Awaitable[Value]]) -> Value:
    async with await opening as place:
        return await use(place)


async def _reached_fleet(url: str | None, create: bool, wait: float) -> Fleet:
    """Open the fleet of a store, and try again for ``wait`` seconds while the store cannot be reached."""
    refuse_server(url, "This command needs the store itself: --store sqlite:///file.db or postgresql://…")
    if wait <= 0:
        return await open_fleet(url, create=create)
    import asyncio

    from asterism.base.durations import format_duration
    from asterism.store.store_errors import StoreUnavailable

    now = asyncio.get_running_loop().time
    until, said = now() + wait, False
    while True:
        try:
            fleet = await open_fleet(url, create=create)
        except StoreUnavailable as error:
            if now() >= until:
                raise
            if not said:
                note(f"The store cannot be reached; trying again for {format_duration(wait)}: {error}")
            said = True
            await asyncio.sleep(min(STORE_PAUSE, max(0.0, until - now())))
        else:
            if said:
                note("The store can be reached again.")
            return fleet


def with_system(store: str | None, use: Callable[[System], Awaitable[Value]], *, create: bool = False) -> Value:
    """Open a store or a server, use it, and close it. With ``create`` a missing store is created."""
    return run_interruptible(_used(open_system(store, create=create), use))


async def open_system(store: str | None, *, create: bool = False) -> System:
    """A store, or a server if it is the address of one. Raises as ``open_fleet`` does."""
    url = server_of(store)
    if url is not None:
        from asterism.api.client import AsyncClient

        return AsyncClient(url)
    from asterism.api.system import LocalSystem

    return LocalSystem(await open_fleet(store, create=create))


async def ask_again(ask: Callable[[], Awaitable[Value]], what: str = "") -> Value:
    """What ``ask`` returns. While the system is out of reach, says so once and asks again, until Ctrl-C: for commands
    that follow something, and know where they were. ``what`` is what cannot be read, if not the system as a whole."""
    import asyncio

    from asterism.api.client_errors import OUT_OF_REACH
    from asterism.core.backoff import retry_delay

    failures = 0
    while True:
        try:
            return await ask()
        except OUT_OF_REACH as error:
            failures += 1
            if failures == 1:
                again = f"{what} cannot be read: {error}. Trying again."
                note(again if what else f"{out_of_reach(error)}; trying again")
        await asyncio.sleep(retry_delay(failures, *RECONNECT))


def out_of_reach(error: Exception) -> str:
    """That a system is out of reach, as a sentence without its end."""
    from asterism.store.store_errors import StoreUnavailable

    what = "store" if isinstance(error, StoreUnavailable) else "server"
    return f"The {what} cannot be reached: {error}"


DEFAULT_SERVER = "http://127.0.0.1:7400"
"""Where `asterism serve` listens."""


def server_of(store: str | None) -> str | None:
    """The address of the server that ``--store`` names; None if it names a store. Raises UnusableSecret."""
    if store is None or store.lower().startswith(("sqlite:", "postgresql:", "postgres:", "memory:")):
        return None
    from asterism.api.server_logins import server_url

    return server_url(store)


def refuse_server(store: str | None, why: str) -> None:
    """Raise UsageError if ``--store`` is the address of a server. ``why`` says what to do instead."""
    if server_of(store) is not None:
        raise click.UsageError(f"{store} is a server. {why}")


async def open_fleet(url: str | None, *, create: bool = False) -> Fleet:
    """Open the fleet of a store for a command. Raises as ``with_fleet`` does."""
    if url is not None and url.lower().startswith("memory:"):
        raise click.UsageError(
            "A store in memory ends with its process, so commands cannot share it; use sqlite:///file.db."
        )
    from asterism.fleet.fleet import Fleet
    from asterism.store.store_errors import StoreNotFound

    try:
        return await Fleet.open(url, by=current_user(), create=create)
    except StoreNotFound as error:
        raise StoreNotFound(f"{error}; {HOW_TO_CREATE_A_STORE}") from None


# -- commands ----------------------------------------------------------------------------------------------------------


class Answer(Record):
    """What a command prints: ``document`` with --json, otherwise ``text``: as it is, or the lines for the width of the
    terminal; and then ``notes``, to standard error. ``code`` is the exit code."""

    document: Any
    text: str | Callable[[int | None], Iterable[Text]] | None = None
    notes: Sequence[str] = ()
    code: int = 0

    def print(self, as_json: bool) -> int:
        """Returns the exit code."""
        if as_json:
            print_json(self.document)
            return self.code
        if self.text and isinstance(self.text, str):
            click.echo(self.text)
        elif callable(self.text):
            from asterism.cli.tables import print_lines

            print_lines(self.text)
        for line in self.notes:
            note(line)
        return self.code


def view(place: str, *about: Any) -> Callable[[int | None], Iterable[Text]]:
    """The lines that a function makes of what is shown, and of the width of the terminal, such as
    ``run.run_views:details_lines``. It is imported when they are printed: views need rich."""
    from importlib import import_module
    from operator import attrgetter

    module, _, name = place.partition(":")
    return lambda width: attrgetter(name)(import_module(f"asterism.cli.{module}"))(*about, width)


def listed(page: Page[Any], table: str, empty: str, notes: Sequence[str] = ()) -> Answer:
    """The items of a page in a table, which is named as for ``view``; or ``empty``, which says how to make some."""
    if not page.items:
        return Answer(page.items, notes=[empty])
    return Answer(page.items, view(f"{table}.lines", page.items, page.now or 0.0), notes)


Command = Callable[[Callable[..., Any]], Callable[..., int]]


def _with_place(function: Callable[..., Any]) -> Callable[..., Any]:
    place = next(iter(inspect.signature(function).parameters), "")
    if not inspect.iscoroutinefunction(function) or place not in ("system", "fleet"):
        return function
    options = vars(function).pop("__click_params__", [])  # the help lists them before --store and --json
    command = on_system()(function) if place == "system" else on_fleet()(function)
    vars(command)["__click_params__"] += options
    return command


def _with_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    declared = {"system", "fleet", *(option.name for option in vars(function).get("__click_params__", ()))}
    for name, parameter in reversed(list(inspect.signature(function).parameters.items())):
        if name not in declared and parameter.kind is not parameter.VAR_KEYWORD:
            function = click.argument(name, required=not parameter.annotation.endswith("| None"))(function)
    return function


def on_system(*, create: bool = False) -> Command:
    """Makes a function a command with --store and --json. With ``create`` a missing store is created.

    An ``async`` function gets the store or the server, and the parameters of the command. Any other function gets the
    parameters alone, checks them before a store is opened, and returns the function that gets the system. Either
    returns an Answer, or prints by itself and returns the exit code or nothing. It gets ``as_json`` and ``store`` if
    it has such parameters."""
    return partial(_command, with_system, create)


def on_fleet(*, create: bool = False) -> Command:
    """The same for a command that needs the store itself: the function gets its fleet."""
    return partial(_command, with_fleet, create)


def _command(opened: Callable[..., int], create: bool, function: Callable[..., Any]) -> Callable[..., int]:
    wanted = inspect.signature(function).parameters.keys() & {"store", "as_json"}

    @fleet_options
    @wraps(function)
    def command(store: str | None, as_json: bool, **parameters: Any) -> int:
        parameters |= {name: value for name, value in (("store", store), ("as_json", as_json)) if name in wanted}
        use = partial(function, **parameters) if inspect.iscoroutinefunction(function) else function(**parameters)

        async def answer(system: Any) -> int:
            result = await use(system)
            return result.print(as_json) if isinstance(result, Answer) else result or 0

        return opened(store, answer, create=create)

    return command


def run_interruptible(work: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine. The first Ctrl-C cancels it between two steps of its loop; the second one interrupts any step.

    asyncio's own handler would cancel within a step, and a future that is about to get its result would complain."""
    import asyncio
    import signal

    from asterism.base.operating_system import add_signal_handler, remove_signal_handler

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(work)

        def interrupt() -> None:
            remove_signal_handler(loop, signal.SIGINT)
            task.cancel()

        add_signal_handler(loop, signal.SIGINT, interrupt)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def current_user() -> str:
    """The name of the user, for stories."""
    import getpass

    try:
        name = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name
        return "user"
    return name if name.isprintable() and name else "user"


def print_json(document: Any) -> None:
    """Print one JSON document, in ASCII where the terminal cannot show other letters."""
    click.echo(json_text(document, encoding=sys.stdout.encoding))


def note(text: str) -> None:
    """Print a note to standard error, apart from the answer on standard output."""
    click.echo(clean(text), err=True)


# -- short forms -------------------------------------------------------------------------------------------------------


def format_time(at: float | None) -> str:
    """A timestamp in local time: ``2026-03-01 14:05:09``; empty for None."""
    return "" if at is None else _format(at, "%Y-%m-%d %H:%M:%S")


def format_clock(at: float) -> str:
    """The time of day of a timestamp, in local time: ``14:05:09``."""
    return _format(at, "%H:%M:%S")


def _format(at: float, form: str) -> str:
    try:
        return time.strftime(form, time.localtime(at))
    except (OverflowError, OSError, ValueError):  # outside of the calendar
        return f"{at:.0f}"


def format_size(number: float) -> str:
    """A number of bytes: ``64 KiB``, ``10 MiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"
