"""``asterism completion``: the script with which a shell completes commands, options and names."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from asterism.base.text import clean

if TYPE_CHECKING:
    from asterism.store.protocol import Store

PROGRAM = "asterism"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands and names in a shell.

    It completes commands, options, files, and the names of plans, tasks, runs, devices, workflows, series and peers
    in the store. Load it when the shell starts:

    \b
    bash   in ~/.bashrc:  eval "$(asterism completion bash)"
    zsh    in ~/.zshrc:   eval "$(asterism completion zsh)"
    fish   once:          asterism completion fish > ~/.config/fish/completions/asterism.fish

    bash has to be 4.4 or later. In zsh the line comes after compinit."""
    from click.shell_completion import ShellComplete, get_completion_class

    from asterism.cli.main import commands

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    script = completion_class(commands, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE")
    # that of bash itself would start a bash, to look at its version
    click.echo(ShellComplete.source(script).rstrip())


# -- names -------------------------------------------------------------------------------------------------------------


Names = dict[str, str]
"""Names, each with a few words about it."""

Reader = Callable[["Store", click.Context, str], Awaitable[Names]]
"""Reads the names in a store; it may leave out those that do not begin with the text that was typed."""

TIMEOUT = 2.0
"""How long a shell waits for names, in seconds."""

MOST_RUNS = 50
"""How many runs are offered: the newest."""

LONGEST_HELP = 60

_HARMLESS = re.compile(r"[\w@%+./][\w@%+./-]*")
"""Names that a shell takes as they are. ``:`` and ``=`` separate words in bash, ``,`` separates fields in fish."""


def complete_names(command: click.Command, context: click.Context) -> None:
    """Let the parameters of a command that name something in a store be completed with the names there. ``context`` is
    that of the group of the command."""
    group = context.info_name if context.parent is not None else None
    takes_file = any(parameter.metavar == "PLAN.YAML" for parameter in command.params if parameter.name == "plan")
    for parameter in command.params:
        if takes_file and parameter.metavar == "TASK":
            parameter.shell_complete = partial(_complete_file_tasks)  # type: ignore[method-assign]
            continue
        if group is None and command.name == "logout" and parameter.name == "name":
            parameter.shell_complete = partial(_complete_logins)  # type: ignore[method-assign]
            continue
        read = _kind_of(command, group, parameter)
        if read is not None:
            parameter.shell_complete = partial(_complete, read)  # type: ignore[method-assign]


def _kind_of(command: click.Command, group: str | None, parameter: click.Parameter) -> Reader | None:
    """Which names a parameter takes."""
    if isinstance(parameter, click.Option):
        return _of_option(parameter, group)
    words = (parameter.metavar or str(parameter.name)).upper()
    if "WORKFLOW|RUN" in words:
        return _workflows_and_runs
    if re.search(r"\bRUN\b", words):
        return _runs
    if words == "WORKFLOW":
        return _workflows
    if words == "TASK":
        return _tasks
    if words == "ID" and group == "token":
        return _credentials
    if parameter.name == "name" and group is None:
        return _plans if command.name == "resume" else None
    return _BY_GROUP.get(group) if parameter.name == "name" else None


def _of_option(option: click.Option, group: str | None) -> Reader | None:
    if option.metavar == "TASK":
        return _tasks
    if "--series" in option.opts:
        return _issue_series if group == "series" else _run_series
    return next((_BY_OPTION[name] for name in option.opts if name in _BY_OPTION), None)


def _complete(read: Reader, context: click.Context, incomplete: str) -> list[CompletionItem[str]]:
    return _items(_ask(context, lambda store: read(store, context, incomplete)), incomplete)


def _items(names: Names, incomplete: str) -> list[CompletionItem[str]]:
    return [
        CompletionItem(name, help=clean(about)[:LONGEST_HELP] or None)
        for name, about in names.items()
        if name.startswith(incomplete) and _HARMLESS.fullmatch(name)
    ]


def _complete_file_tasks(context: click.Context, incomplete: str) -> list[CompletionItem[str]]:
    """The tasks of the plan file that the command line names; nothing if it cannot be used."""
    from asterism.planfile import load
    from asterism.planfile.parameters import GivenParameters

    try:
        plan = load(str(_argument(context, "plan")), params=GivenParameters(required=False)).constellation
    except Exception:  # the shell shows no names, whatever is wrong
        return []
    return _items({node.id: node.task.description or "" for node in plan.nodes.values()}, incomplete)


def _complete_logins(context: click.Context, incomplete: str) -> list[CompletionItem[str]]:
    """The servers that the user has logged in to; nothing if the file cannot be read."""
    from asterism.api.server_logins import ServerLogins

    try:
        return _items({login.name: login.url for login in ServerLogins().all()}, incomplete)
    except Exception:  # the shell shows no names, whatever is wrong
        return []


def _argument(context: click.Context, name: str) -> str | None:
    """The first argument of the command. Before the value of an option is complete, click has not named it yet."""
    return context.params.get(name) or next(iter(context.args), None)


def _ask(context: click.Context, question: Callable[[Store], Awaitable[Names]]) -> Names:
    """The answer of the store that the command line names; nothing if there is none, and nothing is printed."""
    import asyncio
    import contextlib
    import io

    from asterism.store.url import open_store

    url = context.params.get("store")
    elsewhere = context.params.get("remote") or context.params.get("github")
    if elsewhere or (isinstance(url, str) and url.lower().startswith("memory:")):
        return {}

    async def answer() -> Names:
        async with asyncio.timeout(TIMEOUT):
            store = await open_store(url, create=False)
            try:
                return await question(store)
            finally:
                await store.close()

    with contextlib.redirect_stderr(io.StringIO()):
        try:
            return asyncio.run(answer())
        except Exception:  # the shell shows no names, whatever is wrong
            return {}


# -- what is in a store ------------------------------------------------------------------------------------------------


async def _plans(store: Store, context: click.Context, incomplete: str) -> Names:
    from asterism.durable.journal_store import read_heads

    return {head.name: "" for head in await read_heads(store)}


async def _tasks(store: Store, context: click.Context, incomplete: str) -> Names:
    from asterism.durable.journal_store import load

    stored_plan = await load(store, str(_argument(context, "name")))
    return {node.id: str(node.status) for node in stored_plan.plan.nodes.values()}


async def _runs(store: Store, context: click.Context, incomplete: str) -> Names:
    """The short ids of runs, and the whole ones where their beginning was typed."""
    from asterism.base.text import short
    from asterism.store.protocol import Query

    typed = incomplete.lower() or None
    runs = await store.find(Query(id_like=typed, newest=True, limit=MOST_RUNS))
    whole = typed is not None and any(run.id.startswith(typed) for run in runs)
    return {run.id if whole else short(run.id): f"{run.workflow}, {run.reported_status}" for run in runs}


async def _devices(store: Store, context: click.Context, incomplete: str) -> Names:
    from asterism.fleet.joinable_devices import state_of

    return {session.device: state_of(session, store.clock()) for session in await store.sessions()}


async def _workflows(store: Store, context: click.Context, incomplete: str) -> Names:
    from asterism.fleet.workflows import Workflows

    return dict.fromkeys(await Workflows(store).names(), "")


async def _workflows_and_runs(store: Store, context: click.Context, incomplete: str) -> Names:
    return await _workflows(store, context, incomplete) | await _runs(store, context, incomplete)


async def _issue_series(store: Store, context: click.Context, incomplete: str) -> Names:
    from asterism.series.store_register import StoreRegister

    return dict.fromkeys(await StoreRegister(store).names(), "")


async def _run_series(store: Store, context: click.Context, incomplete: str) -> Names:
    from asterism.store.protocol import Query

    runs = await store.find(Query(newest=True, limit=MOST_RUNS))
    return {run.series: "" for run in runs if run.series is not None}


async def _peers(store: Store, context: click.Context, incomplete: str) -> Names:
    from asterism.peers.registry import PeerRegistry

    return {peer.name: "" for peer in await PeerRegistry(store).all()}


async def _schedules(store: Store, context: click.Context, incomplete: str) -> Names:
    from asterism.fleet.scheduled_work import REMOVED, SCHEDULES

    return _keys(
        (register for register in await store.registers(SCHEDULES) if REMOVED not in register.value), SCHEDULES
    )


async def _batches(store: Store, context: click.Context, incomplete: str) -> Names:
    return {part.batch: "" for part in await store.batches()}


async def _limits(store: Store, context: click.Context, incomplete: str) -> Names:
    from asterism.store.protocol import LIMITS

    return _keys(await store.registers(LIMITS), LIMITS)


async def _credentials(store: Store, context: click.Context, incomplete: str) -> Names:
    from asterism.api.credentials import Credentials

    return {
        credential.id: f"{credential.name}, {credential.state(store.clock())}"
        for credential in await Credentials(store).all()
    }


def _keys(registers: Iterable[Any], prefix: str) -> Names:
    return {register.key.removeprefix(prefix): "" for register in registers}


_BY_GROUP: dict[str | None, Reader] = {
    "plan": _plans,
    "device": _devices,
    "workflow": _workflows,
    "series": _issue_series,
    "peer": _peers,
    "schedule": _schedules,
    "batch": _batches,
    "limit": _limits,
}
"""What the argument NAME of the commands of a group names."""

_BY_OPTION: dict[str, Reader] = {
    "--device": _devices,
    "--to": _devices,
    "--workflow": _workflows,
    "--peer": _peers,
    "--batch": _batches,
}
"""What an option names."""
