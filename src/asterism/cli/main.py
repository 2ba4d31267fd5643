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


class CommandEntry(NamedTuple):
    """A command in the list of all: its name, its one-line help, its section of the list, and its module."""

    name: str
    help: str
    section: str
    module: str


PLAN_FILES, PLANS, FLEETS, SERIES = "Plan files", "Plans in a store", "Fleets", "Series"

COMMANDS = (
    CommandEntry("run", "Run the plan in a plan file.", PLAN_FILES, "run_command"),
    CommandEntry("check", "Report every mistake in a plan file, with line numbers.", PLAN_FILES, "plan_file_commands"),
    CommandEntry("show", "Draw the plan in a plan file.", PLAN_FILES, "plan_file_commands"),
    CommandEntry("schema", "Print the JSON Schema of plan files.", PLAN_FILES, "plan_file_commands"),
    CommandEntry("plan", "Manage plans: list, show, story, why, edit, pause, resume and more.", PLANS, "plan_commands"),
    CommandEntry("resume", "Resume a plan that was stopped or paused.", PLANS, "plan_commands"),
    CommandEntry("runs", "Create and manage runs: create, list, show, why, watch and more.", FLEETS, "runs_commands"),
    CommandEntry("workflow", "Define what runs execute: add, list, show.", FLEETS, "workflow_commands"),
    CommandEntry("device", "Run and manage devices: join, list, drain, scores.", FLEETS, "device_commands"),
    CommandEntry("fleet", "Show and change the settings of a fleet.", FLEETS, "fleet_commands"),
    CommandEntry("monitor", "Watch over the devices of a fleet without doing work.", FLEETS, "monitor_command"),
    CommandEntry("peer", "Connect stores: invite, accept, sync, serve, list, remove.", FLEETS, "peer_commands"),
    CommandEntry("store", "Inspect and back up a store: info, check, backup, restore.", FLEETS, "store_commands"),
    CommandEntry("series", "One active issue per series: claim, status, release and more.", SERIES, "series_commands"),
)


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name, each imported from its module when it is asked for."""

    def __init__(self) -> None:
        self._known: dict[str, click.Command | None] = {entry.name: None for entry in COMMANDS}
        self._modules = {entry.name: entry.module for entry in COMMANDS}

    def __getitem__(self, name: str) -> click.Command:
        known = self._known[name]
        if known is None:
            module = import_module(f"asterism.cli.{self._modules[name]}")
            known = getattr(module, name)
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
        for section in dict.fromkeys(entry.section for entry in COMMANDS):
            with formatter.section(section):
                formatter.write_dl([(entry.name, entry.help) for entry in COMMANDS if entry.section == section])


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
