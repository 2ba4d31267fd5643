"""The command ``asterism``: the list of all commands, exit codes, and errors as messages.

Exit codes: 0, 1, 2 and 130 are the result of a plan (completed, failed, partially failed, cancelled). 130 also means
that Ctrl-C stopped the command, and 1 that an edit was rejected or a run failed that the command waited for. 64 means
that the command, the plan file or the store cannot be used, 69 that the store or the server cannot be reached now;
standard error says why. 141 means that the reader of standard output has gone away.

The module of a command is imported when the command is used: most commands need neither the orchestrator nor rich.
To add a command group, write a module ``<noun>_commands.py`` and add a line to ``_SECTIONS``.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from asterism import __version__
from asterism.api.client_errors import ServerUnreachable, TryLater
from asterism.base.startup import collect_rarely
from asterism.base.text import clean, clean_error, clean_streams, clean_streams_for_good
from asterism.cli.cli_context import CommandGroup
from asterism.core.errors import AsterismError
from asterism.store.store_errors import StoreError, StoreMissing, StoreUnavailable

UNUSABLE = 64
OUT_OF_REACH = 69
CANCELLED = 130
READER_GONE = 141


class CommandEntry(NamedTuple):
    """A command in the list of all: its name, its one-line help, its section of the list, and its module."""

    name: str
    help: str
    section: str
    module: str


_SECTIONS = {
    "Start here": {
        "demo.demo_commands:demo": "Run the demonstration: an editor repairs a release while it runs.",
    },
    "Plan files": {
        "plan.plan_file_commands:run": "Run the plan in a plan file, or the Python plan at module:plan.",
        "plan.plan_file_commands:check": "Report every mistake in a plan file, with line numbers.",
        "plan.plan_file_commands:show": "List the tasks of a plan file, or of the Python plan at module:plan.",
        "plan.plan_file_commands:schema": "Print the JSON Schema of plan files.",
    },
    "Plans in a store": {
        "plan.plan_commands:plan": "Manage plans: list, show, story, why, edit, pause, resume and more.",
        "plan.plan_commands:resume": "Resume a plan that was stopped or paused.",
    },
    "Fleets": {
        "run.runs_commands:runs": "Create and manage runs: create, list, show, why, watch and more.",
        "run.runs_commands:batch": "Manage runs with a common name: show, wait, cancel, retry, results.",
        "run.workflow_commands:workflow": "Define what runs execute: add, list, show, remove.",
        "run.schedule_commands:schedule": "Create runs or plans at given times: add, list, show and more.",
        "fleet.fleet_commands:limit": "Limit what all plans and runs use at a time, or how often.",
        "fleet.fleet_commands:event": "Send events that plans wait for, and list them.",
        "fleet.device_commands:device": "Run and manage devices: join, list, show, drain, scores.",
        "fleet.fleet_commands:fleet": "Show and change the settings of a fleet; print its metrics.",
        "fleet.device_commands:monitor": "Monitor the devices of a fleet without executing runs.",
        "fleet.fleet_commands:top": "Watch plans, runs and devices in the terminal.",
        "fleet.fleet_commands:notice": "List and follow the notices of a fleet.",
        "fleet.audit_commands:audit": "List and export who changed what, and who was refused it.",
        "fleet.serve_commands:serve": "Serve a store over HTTP: API, page and devices.",
        "fleet.serve_commands:mcp": "Let an MCP client read, run and edit plans.",
        "fleet.access_commands:login": "Log in to a server, so that commands reach it.",
        "fleet.access_commands:logout": "Revoke the token of a login, and forget it.",
        "fleet.access_commands:whoami": "Show which server commands reach, as whom, and until when.",
        "fleet.access_commands:token": "Manage access to the server: create, list, revoke, login.",
        "fleet.peer_commands:peer": "Exchange runs with stores on other machines.",
        "store_commands:store": "Create, inspect and back up a store: init, info, check and more.",
        "plugin_commands:plugins": "List the plug-ins of this machine, and what each may do.",
    },
    "Series": {
        "series.series_commands:series": "Keep one issue of a series active: claim, status, release and more.",
    },
    "Shell": {
        "completion_commands:completion": "Print the script that completes commands and names in a shell.",
    },
}
"""The sections of the list: the module and the name of each command, with its help."""

COMMANDS = tuple(
    CommandEntry(name, help, section, module)
    for section, entries in _SECTIONS.items()
    for (module, _, name), help in ((place.partition(":"), help) for place, help in entries.items())
)

ALIASES = {
    f"{name}s": name for name in ("plan", "workflow", "schedule", "event", "device", "notice", "token", "peer", "limit")
}
"""The plural of a noun is accepted, and listed nowhere."""


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name, each imported from its module on first use."""

    def __init__(self) -> None:
        self._modules = {entry.name: entry.module for entry in COMMANDS}
        self._loaded: dict[str, click.Command | None] = dict.fromkeys(self._modules)

    def __getitem__(self, name: str) -> click.Command:
        command = self._loaded[name]
        if command is None:
            command = getattr(import_module(f"asterism.cli.{self._modules[name]}"), name)
            self._loaded[name] = command
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


class CommandLine(CommandGroup):
    """The group of all commands. An error never exits with 2, click's own code: that is a result of a plan."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with clean_streams():
            self.execute(*args, **kwargs)

    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Run the command of the arguments, print its error, and exit with its code."""
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.ClickException as error:
            if not hasattr(error, "several_lines"):
                vars(error)["message"] = clean_error(error.message)  # the attribute is read-only
            error.show()
            sys.exit(UNUSABLE)
        except StoreError as error:  # one sentence that may quote the name of a file or server
            click.echo(f"Error: {clean(str(error))}", err=True)
            sys.exit(OUT_OF_REACH if isinstance(error, StoreUnavailable | StoreMissing) else UNUSABLE)
        except (ServerUnreachable, TryLater) as error:
            click.echo(f"Error: {clean(str(error))}", err=True)
            sys.exit(OUT_OF_REACH)
        except (AsterismError, OSError) as error:
            # the mistakes of a file have a line each, already cleaned
            message = str(error) if hasattr(error, "mistakes") else clean_error(str(error))
            click.echo(f"Error: {message}", err=True)
            sys.exit(UNUSABLE)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(CANCELLED)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # one level higher, click would exit with 1, the result of a failed plan
            from asterism.cli.screen import forget_output

            forget_output(sys.stdout)
            return READER_GONE

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        words = [ALIASES.get(args[0], args[0]), *args[1:]]
        if self.get_command(ctx, words[0]) is None:
            groups = {name: self.get_command(ctx, name) for name in ("plan", "runs")}
            meant = [name for name, group in groups.items() if words[0] in getattr(group, "commands", ())]
            if meant:
                commands = ", or: ".join(shlex.join(["asterism", name, *words]) for name in meant)
                ctx.fail(f"There is no command {words[0]!r}. Use: {commands}")
        return super().resolve_command(ctx, words)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete the name of a command, without importing any of them."""
        items = [CompletionItem(entry.name, help=entry.help) for entry in COMMANDS if entry.name.startswith(incomplete)]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, without importing any of them."""
        for section in dict.fromkeys(entry.section for entry in COMMANDS):
            with formatter.section(section):
                formatter.write_dl([(entry.name, entry.help) for entry in COMMANDS if entry.section == section])


@click.group(cls=CommandLine, commands=_Commands(), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="asterism", message="%(prog)s %(version)s")
def commands() -> None:
    """Run plans that change while they run, and distribute work over fleets of devices."""


def main() -> None:
    """The entry point of the process.

    A letter that the terminal cannot show is escaped and ends no command. Nothing that is printed acts on the terminal,
    not even the traceback of a bug."""
    collect_rarely()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    clean_streams_for_good()
    commands.execute()
