"""``asterism device``: what executes runs.

``asterism monitor``: watch over a fleet and do no work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from asterism.cli.cli_context import (
    CommandGroup,
    Function,
    find_run,
    find_workflow,
    fleet_options,
    print_json,
    with_fleet,
)
from asterism.cli.option_types import capabilities, duration, pair, positive_duration

if TYPE_CHECKING:
    from asterism.core.run.run import Run
    from asterism.fleet.fleet import Fleet


@click.group(cls=CommandGroup)
def device() -> None:
    """Run and manage devices: join, list, drain, scores."""


def _time(name: str, default: str, meaning: str) -> Callable[[Function], Function]:
    return click.option(name, type=duration, default=default, show_default=True, metavar="DURATION", help=meaning)


@device.command()
@click.argument("name")
@click.option(
    "--can",
    multiple=True,
    callback=capabilities,
    metavar="WORD",
    help="A capability, such as gpu, that workflows may need; several with commas.",
)
@click.option("--slots", type=click.IntRange(min=1), default=1, show_default=True, help="How many runs at once.")
@click.option(
    "--backlog", type=click.IntRange(min=0), default=0, show_default=True, help="How many more to claim in advance."
)
@click.option("--label", "labels", type=pair, multiple=True, metavar="NAME=VALUE", help="Part of the device's profile.")
@click.option("--accepts", metavar="EXPR", help="Which runs it will have: CEL over run and device.")
@click.option("--hands-back", metavar="EXPR", help="When it gives all work back: CEL over its profile.")
@click.option("--policy", metavar="FILE", help="What it may execute; asterism/policy.yaml in your configuration.")
@click.option(
    "--peer", "peers", multiple=True, metavar="NAME|URL", help="Stay in touch with this peer; see `asterism peer`."
)
@click.option("--listen", metavar="HOST:PORT", help="Answer peers that call, such as 0.0.0.0:7420.")
@click.option("--replace", is_flag=True, help="Take the name from a device elsewhere that has it.")
@click.option("--no-monitor", is_flag=True, help="Never watch over the others.")
@click.option(
    "--monitor-every",
    type=duration,
    callback=positive_duration,
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="How often to watch over the others, if elected.",
)
@_time("--heartbeat", "30s", "How often to say that it lives, while it has no work.")
@_time("--timeout", "90s", "After how long without a heartbeat it counts as gone.")
@_time("--drain-for", "60s", "How long runs may take to finish when it is asked to leave.")
@fleet_options
def join(
    name: str, store: str | None, as_json: bool, labels: tuple[tuple[str, str], ...], drain_for: float, **terms: Any
) -> int:
    """Join a fleet and execute its runs, until Ctrl-C or SIGTERM.

    A first signal lets what runs finish, for a while, and then hands it back; a second one hands it back at once; a
    third ends the device. Without a policy file it executes whatever the store says: whoever can write to the store can
    run commands here. What it does is told on the standard error stream.

    \b
    asterism device join kitchen-pc --can gpu --slots 2
    asterism device join laptop --hands-back 'battery < 0.2 && !plugged'"""
    from asterism.cli.device_process import DeviceOptions, join_fleet

    if terms["timeout"] < 2 * terms["heartbeat"]:
        raise click.UsageError("--timeout is at least twice --heartbeat, or one late heartbeat would count as a loss.")
    no_monitor, every = terms.pop("no_monitor"), terms.pop("monitor_every")
    wanted = DeviceOptions(name, labels=dict(labels), monitor_every=None if no_monitor else every, **terms)
    return join_fleet(store, wanted, drain_for=drain_for, as_json=as_json, create=True)


@device.command("list")
@fleet_options
def list_(store: str | None, as_json: bool) -> None:
    """List the devices that are there, or were lately. A star marks the coordinator.

    SLOTS says how many are in use; LOAD and RANK are between 0 and 1, and so is QUALITY, that of the connection to the
    store; BEAT is how long ago the store heard of it."""

    async def tell(fleet: Fleet) -> None:
        from asterism.cli.fleet_json import device_json
        from asterism.cli.fleet_tables import devices_table
        from asterism.cli.screen import print_lines

        outlook, coordinator = await fleet.placer(fresh=True), await fleet.coordinator()
        found, now, ranks = await fleet.devices(), fleet.store.clock(), outlook.ranks
        if as_json:
            print_json([device_json(one, now, ranks.get(one.device, 0.0), coordinator) for one in found])
        elif found:
            print_lines(lambda width: devices_table(found, now, ranks, coordinator, width))
        else:
            click.echo("No device has joined yet: asterism device join NAME")

    with_fleet(store, tell)


@device.command()
@click.argument("name")
@fleet_options
def drain(name: str, store: str | None, as_json: bool) -> None:
    """Ask a device to finish what it does, take nothing more, and leave."""

    async def ask(fleet: Fleet) -> None:
        from asterism.cli.fleet_json import device_json, state_of

        asked, now = await fleet.drain(name), fleet.store.clock()
        if as_json:
            ranks = (await fleet.placer(fresh=True)).ranks
            print_json(device_json(asked, now, ranks.get(name, 0.0), await fleet.coordinator()))
        elif state_of(asked, now) == "silent":
            click.echo(
                f"{name} has not been heard of for {now - asked.beat_at:.0f} s; if it comes back, it will leave."
            )
        else:
            runs = {0: "nothing to finish", 1: "1 run to finish"}.get(asked.used, f"{asked.used} runs to finish")
            click.echo(f"{name} was asked to leave; it has {runs}.")

    with_fleet(store, ask)


@device.command()
@click.argument("subject", metavar="WORKFLOW|RUN")
@fleet_options
def scores(subject: str, store: str | None, as_json: bool) -> None:
    """Show which device would get a run, and why.

    Every candidate has its score in its four parts (load, connection, rank, capability); the others have the reason why
    they are none. A star marks the device that would be chosen now. For a run the scores of its assignment are shown,
    too."""

    async def tell(fleet: Fleet) -> None:
        from asterism.cli.device_scores import scores as scores_of
        from asterism.cli.device_scores import scores_lines

        run = await _meant(fleet, subject)
        flow = await (fleet.workflows.get(run.workflow, run.version) if run else find_workflow(fleet, subject))
        found = await scores_of(fleet, flow, run)
        kept = dict(run.scores) if run is not None else None
        if as_json:
            told = {"workflow": flow.name, "version": flow.version, "strategy": flow.strategy}
            now = [one.to_json() for one in found]
            print_json({**told, "run": run.id if run is not None else None, "devices": now, "assignment": kept})
            return
        from asterism.cli.screen import print_lines

        print_lines(lambda width: scores_lines(flow, run, found, width))

    with_fleet(store, tell)


async def _meant(fleet: Fleet, subject: str) -> Run | None:
    """The run, or None if it is a workflow. Raises AmbiguousRun if it is neither."""
    from asterism.cli.cli_context import AmbiguousRun
    from asterism.fleet.workflows import UnknownWorkflow

    try:
        await find_workflow(fleet, subject)
    except UnknownWorkflow:
        try:
            return await find_run(fleet, subject)
        except AmbiguousRun as error:
            raise AmbiguousRun(f"there is no workflow {subject!r}, and as a run: {error.message}") from None
    return None


@click.command()
@click.argument("name", required=False)
@click.option(
    "--every",
    type=duration,
    callback=positive_duration,
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="How often to look.",
)
@click.option(
    "--heartbeat",
    type=duration,
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="How often to say it lives.",
)
@click.option(
    "--timeout", type=duration, default="90s", show_default=True, metavar="DURATION", help="When it counts as gone."
)
@click.option("--policy", metavar="FILE", help="Whom it may tell; asterism/policy.yaml in your configuration.")
@fleet_options
def monitor(name: str | None, every: float, store: str | None, as_json: bool, **terms: Any) -> int:
    """Watch over the devices of a fleet without doing work.

    Every device can do that beside its work, and one is elected to. This is for fleets whose devices come and go: it
    takes away what has run out, hands out what waits, and gives up what nobody can do. Several at once do no harm. NAME
    is monitor- and the name of this machine if left out."""
    import platform

    from asterism.cli.device_process import DeviceOptions, join_fleet

    given = name or f"monitor-{platform.node() or 'local'}"
    wanted = DeviceOptions(given, slots=0, monitor_every=every, **terms)
    return join_fleet(store, wanted, drain_for=0.0, as_json=as_json, create=False)
