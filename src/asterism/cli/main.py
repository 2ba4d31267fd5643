"""The command ``asterism``.

Exit codes: 0, 1, 2 and 130 say how a plan ended (completed, failed, partially failed, cancelled); 130 also that a
constellation was left, to be resumed, and 1 that an edit was rejected. Of the commands on a fleet those that wait for
runs exit with 1 if one failed, and 130 says that they were interrupted. 64 says that the command, the plan or the store
was not usable, 69 that the store is out of reach; why stands on the standard error stream.

A command is imported when it is asked for: what runs plans is of no use to who lists runs, and both take their time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NamedTuple

import click

from asterism import __version__
from asterism.base.safe_text import clean, clean_error, clean_streams, clean_streams_for_good
from asterism.core.errors import AsterismError
from asterism.store.store_errors import StoreError, StoreMissing, StoreUnavailable

UNUSABLE = 64
OUT_OF_REACH = 69
CANCELLED = 130
NOBODY_READS = 141


class Line(NamedTuple):
    """A command in the list of all: its name, what it is for, which list it stands in, and which module it is in, if
    not in one of its own name."""

    name: str
    help: str
    about: str = "fleets"
    module: str = ""


LINES = (
    Line("run", "Run a plan file to its end.", "plans", "run_command"),
    Line("check", "Report every mistake in a plan file, with line numbers.", "plans", "check_command"),
    Line("show", "Draw a plan in the terminal.", "plans", "show_command"),
    Line("schema", "Print the JSON Schema of plan files.", "plans", "schema_command"),
    Line("resume", "Go on with a constellation that was left, or paused.", "constellations", "plan_commands"),
    Line("standby", "Wait, and take over a constellation when nobody runs it.", "constellations", "plan_commands"),
    Line("pause", "Start nothing more of a constellation until it is resumed.", "constellations", "plan_commands"),
    Line("cancel", "End a constellation that nobody wants any more.", "constellations", "plan_commands"),
    Line("list", "List the constellations of a store.", "constellations", "plan_commands"),
    Line("story", "Tell everything that happened to a constellation, or one task.", "constellations", "plan_commands"),
    Line("edit", "Edit a constellation that nobody runs, all or nothing.", "constellations", "plan_commands"),
    Line("series", "One active issue per series: claim, status, release and more.", "series", "series_commands"),
    Line("workflow", "What runs execute: add, list, show.", "fleets", "workflow_commands"),
    Line("device", "What executes runs: join, list, drain, scores.", "fleets", "device_commands"),
    Line("runs", "Pieces of work: create, watch, list, show and more.", "fleets", "runs_commands"),
    Line("why", "Say why a run is not running.", "fleets", "why_command"),
    Line("monitor", "Watch over the devices of a fleet, and do no work.", "fleets", "monitor_command"),
    Line("peer", "Devices with a store each: invite, accept, sync, serve, list.", "fleets", "peer_commands"),
    Line("store", "Where everything is kept: check, backup, restore, info.", "fleets", "store_commands"),
    Line("fleet", "What holds for the whole fleet: show, set.", "fleets", "fleet_commands"),
)


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name, each imported from its module when it is asked for."""

    def __init__(self) -> None:
        self._known: dict[str, click.Command | None] = {line.name: None for line in LINES}
        self._modules = {line.name: line.module or line.name for line in LINES}

    def __getitem__(self, name: str) -> click.Command:
        known = self._known[name]
        if known is None:
            module = import_module(f"asterism.cli.{self._modules[name]}")
            known = getattr(module, name, None) or getattr(module, f"{name}_")  # list is Python's own
            self._known[name] = known
        return known

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._known[name] = command

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class CommandLine(click.Group):
    """A group whose mistakes never look like the end of a plan: click's own code for them is 2."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with clean_streams():
            return self._main(*args, **kwargs)

    def _main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.ClickException as error:
            if not hasattr(error, "several_lines"):
                vars(error)["message"] = clean_error(error.message)  # which nobody else may assign
            error.show()
            sys.exit(UNUSABLE)
        except StoreError as error:  # one sentence, with the name of a file or a server in it
            click.echo(f"Error: {clean(str(error))}", err=True)
            sys.exit(OUT_OF_REACH if isinstance(error, StoreUnavailable | StoreMissing) else UNUSABLE)
        except (AsterismError, OSError) as error:
            # mistakes in a file have a line each, which was cleaned
            told = str(error) if hasattr(error, "mistakes") else clean_error(str(error))
            click.echo(f"Error: {told}", err=True)
            sys.exit(UNUSABLE)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(CANCELLED)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # a level higher, click would make it the end of a failed plan
            from asterism.cli.screen import forget_output

            forget_output(sys.stdout)
            return NOBODY_READS

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """In several lists, without importing any of them."""
        for about in dict.fromkeys(line.about for line in LINES):
            with formatter.section(f"Commands for {about}"):
                formatter.write_dl([(line.name, line.help) for line in LINES if line.about == about])


@click.group(cls=CommandLine, commands=_Commands(), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="asterism", message="%(prog)s %(version)s")
def commands() -> None:
    """Run plans that change while they run, and work on fleets of devices."""


def main() -> None:
    """The entry point. A letter that the terminal cannot show is told by its number, and ends no command. Nothing that
    is printed acts on the terminal, not even the traceback of a mistake of ours."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    clean_streams_for_good()
    commands()
