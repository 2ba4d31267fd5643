"""How a command gets at a fleet: the options that all of them take, the store they open, and the runs they mean.

Who only looks, or asks something of what is there, makes no store: a mistyped name is told, and leaves no empty file
behind. Importing this is quick: stores and their drivers are imported when one is opened.
"""

from __future__ import annotations

import asyncio
import getpass
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from asterism.base.safe_text import clean, json_text

if TYPE_CHECKING:
    from asterism.core.run.run import Run
    from asterism.core.run.workflow import Workflow
    from asterism.fleet.fleet import Fleet

Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])

MOST_CANDIDATES = 10
FEWEST = 4
"""How many letters of an id it takes: fewer are soon in some id or other."""

SHORT = 8
"""How many letters of a run's id are shown where there is little room: the last ones, which are chance."""

MAKES_ONE = "the first `asterism workflow add` or `asterism device join` makes it; --store names another"
"""How a store comes into being, for whoever named one that is not there."""


class CommandGroup(click.Group):
    """A group that lists its commands in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


class NotOneRun(click.ClickException):
    """What was given as a run stands for none, or for several."""


def options(*several: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Several options as one decorator, for commands that share them; they are listed in this order."""

    def decorate(function: Function) -> Function:
        for option in reversed(several):
            function = option(function)
        return function

    return decorate


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

fleet_options = options(
    click.option(
        "--store",
        metavar="URL",
        envvar="ASTERISM_STORE",
        help="sqlite:///file.db or postgresql://…; $ASTERISM_STORE if left out, or a file in your data directory.",
    ),
    json_option,
)
"""What every command on a fleet takes."""


def with_fleet(url: str | None, use: Callable[[Fleet], Awaitable[Value]], *, create: bool = False) -> Value:
    """Open the fleet of a store, use it, and close it. A store that is not there is made with ``create``; otherwise
    StoreMissing is raised, with how one comes into being."""
    if url is not None and url.lower().startswith("memory:"):
        raise click.UsageError(
            "A store in memory lasts as long as one process, so commands cannot share it; use sqlite:///file.db."
        )

    async def main() -> Value:
        async with await _opened(url, create) as fleet:
            return await use(fleet)

    return run_command(main())


def run_command(work: Coroutine[Any, Any, Value]) -> Value:
    """The first Ctrl-C cancels the work, between two steps of its loop; the second ends it wherever it is.

    asyncio's own answer cancels within a step, and a future that was about to be given its result complains.
    """

    async def main() -> Value:
        loop, command = asyncio.get_running_loop(), asyncio.current_task()
        assert command is not None

        def interrupted() -> None:
            loop.remove_signal_handler(signal.SIGINT)
            command.cancel()

        loop.add_signal_handler(signal.SIGINT, interrupted)
        return await work

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _opened(url: str | None, create: bool) -> Fleet:
    from asterism.fleet.fleet import Fleet
    from asterism.store.store_errors import StoreMissing

    try:
        return await Fleet.open(url, by=whoami(), create=create)
    except StoreMissing as error:
        if create or "there is no store" not in str(error):  # but a wrong address, a refused login, a driver
            raise
        raise StoreMissing(f"{error}; {MAKES_ONE}") from None


def whoami() -> str:
    """Who acts, for the stories."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name
        return "user"
    return name if name.isprintable() and name else "user"


def tell_json(document: Any) -> None:
    """One JSON document. Where the terminal cannot show a letter, none beyond ASCII is used."""
    click.echo(json_text(document, encoding=sys.stdout.encoding))


def note(text: str) -> None:
    """Something to know beside the answer: it does not get in the way of whoever reads the answer."""
    click.echo(clean(text), err=True)


# -- runs and workflows by what people type ----------------------------------------------------------------------------


async def find_run(fleet: Fleet, text: str) -> Run:
    """The run that has this id, or the only one that has it as a part of its id. Raises NotOneRun."""
    from asterism.store.protocol import Query

    wanted = text.strip().lower()
    if not wanted:
        raise NotOneRun("a run is named by its id or a part of it, not by nothing")
    exact = await fleet.store.run(wanted)
    if exact is not None:
        return exact
    if len(wanted) < FEWEST:
        raise NotOneRun(f"{text!r} is too little of an id to go by: give at least {FEWEST} letters of it")
    found = await fleet.runs(Query(id_like=wanted, newest=True, limit=MOST_CANDIDATES + 1))
    if not found:
        raise NotOneRun(f"there is no run with {text!r} in its id; `asterism runs list` shows those there are")
    if len(found) == 1:
        return found[0]
    more = f"\n  and more than {MOST_CANDIDATES} in all" if len(found) > MOST_CANDIDATES else ""
    lines = "".join(f"\n  {run.id}  {run.workflow}  {run.reported_status}" for run in found[:MOST_CANDIDATES])
    raise NotOneRun(f"{text!r} is in the ids of several runs; give more of the id:{lines}{more}")


async def find_runs(fleet: Fleet, texts: tuple[str, ...]) -> list[Run]:
    """Each once, in the order in which they were named."""
    found = [await find_run(fleet, text) for text in texts]
    return list({run.id: run for run in found}.values())


async def find_workflow(fleet: Fleet, text: str) -> Workflow:
    """The latest version of a name, or ``NAME@VERSION``. Raises UnknownWorkflow."""
    from asterism.fleet.workflows import UnknownWorkflow

    name, at, version = text.rpartition("@")
    try:
        return await fleet.workflows.latest(text)
    except UnknownWorkflow:
        if not at or not name or not (version.isascii() and version.isdigit()):
            raise
    return await fleet.workflows.get(name, int(version))


def short(run_id: str) -> str:
    return run_id[-SHORT:]
