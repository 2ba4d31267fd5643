"""``asterism device``: run, list, drain and compare devices; ``asterism monitor``: a device that executes no runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean
from asterism.cli.cli_context import (
    DEFAULT_SERVER,
    Answer,
    CommandGroup,
    fleet_options,
    is_given,
    listed,
    on_system,
    options,
    reason_option,
    refuse_options,
    refuse_server,
    server_of,
    store_wait_option,
    view,
)
from asterism.cli.option_types import Function, capability_option, duration_option, number_option, option, pair_option

if TYPE_CHECKING:
    from asterism.api.system import System


@click.group(cls=CommandGroup)
def device() -> None:
    """Run and manage devices: join, list, show, drain, scores."""


def _policy_option(meaning: str) -> Callable[[Function], Function]:
    text = f"Device policy file: {meaning}; default: ~/.config/asterism/policy.yaml."
    return option("--device-policy FILE", text, to="policy")


_process_options = options(store_wait_option, fleet_options)
"""The options of a process that works until a signal."""


@device.command()
@capability_option("--can", "A capability that workflows may need, such as gpu; separate several with commas.")
@number_option("--slots", 1, least=1, help="Maximum number of runs at once.")
@number_option("--backlog", 0, least=0, help="How many more runs to claim in advance.")
@pair_option("--label labels", "A label in the device's profile.")
@option("--accepts EXPR", "Which runs the device accepts, in CEL over run and device.")
@option("--hands-back EXPR", "When the device hands all its runs back, in CEL over its profile.")
@_policy_option("what the device may execute")
@option("--peer NAME|URL", "Sync with this peer; see `asterism peer`.", to="peers", multiple=True)
@option("--listen HOST:PORT", "Answer peers at this address, such as 0.0.0.0:7420.")
@option("--replace", "Take over the name of a device on another machine.")
@option("--no-monitor", "Never become the coordinator, which monitors the devices.")
@duration_option("--every", "5s", positive=True, help="How often the coordinator checks the devices.")
@duration_option("--heartbeat", "30s", help="Heartbeat interval while the device is idle.")
@duration_option("--heartbeat-timeout", "90s", help="The device counts as lost after this time without a heartbeat.")
@duration_option(
    "--drain-for", "60s", help="How long running work may take to finish when the device is asked to leave."
)
@option(
    "--agent COMMAND|URL", "The agent of the device: a command that speaks ACP, or the URL of an agent that speaks A2A."
)
@option("--model NAME", "A language model with tools as the agent of the device, such as anthropic:MODEL.")
@option("--server URL", "Join through this server; the device needs no store.")
@option("--code CODE", "One-time code of `asterism device invite`, for the first time; - reads it from stdin.")
@option("--fingerprint SHA256", "Trust the server's certificate with this fingerprint, and no other.")
@_process_options
def join(
    name: str,
    store_wait: float,
    store: str | None,
    as_json: bool,
    labels: tuple[tuple[str, str], ...],
    drain_for: float,
    server: str | None,
    code: str | None,
    fingerprint: str | None,
    **option_values: Any,
) -> int:
    """Join a fleet and execute its runs, until Ctrl-C or SIGTERM.

    The first signal lets running work finish within --drain-for and then hands it back; the second hands it back at
    once; the third ends the process. Without a device policy file the device executes every workflow in the store:
    everyone who can write to the store can run commands on this machine. The log goes to standard error.

    \b
    asterism device join kitchen-pc --can gpu --slots 2
    asterism device join laptop --hands-back 'battery < 0.2 && !plugged'
    asterism device join lab-1 --server https://host:7400 --code CODE
    asterism device join coder --agent claude-code-acp --device-policy coder.yaml

    With --agent the device also does tasks for agents. What an ACP agent asks for is refused unless the device policy
    file allows it; what it does in its own process is not judged.

    With --server the device reaches its fleet through a server (`asterism serve`) and has no access to the store. The
    first time it shows the code of `asterism device invite`, and makes a key of its own; after that it needs none."""
    from asterism.cli.fleet.device_process import DeviceOptions, join_fleet, join_server

    if option_values["heartbeat_timeout"] < 2 * option_values["heartbeat"]:
        raise click.UsageError(
            "--heartbeat-timeout must be at least twice --heartbeat, or one late heartbeat counts as a loss."
        )
    if option_values["agent"] is not None and option_values["model"] is not None:
        raise click.UsageError("A device has one agent: give --agent or --model.")
    if option_values["no_monitor"]:
        refuse_options("has no effect with --no-monitor: the device never becomes the coordinator.", "every")
    if server is not None:
        refuse_options(
            "has no effect with --server: only devices with the store monitor the others.",
            "no_monitor",
            "every",
        )
        refuse_options("has no effect with --server: the device reaches its server whenever it is there.", "store_wait")
    no_monitor, every = option_values.pop("no_monitor"), option_values.pop("every")
    wanted = DeviceOptions(name, labels=dict(labels), monitor_every=None if no_monitor else every, **option_values)
    if server is not None:
        if is_given("store") or wanted.peers or wanted.listen is not None:
            raise click.UsageError("A device with --server has no store: leave --store, --peer and --listen out.")
        return join_server(server, _read_code(code), fingerprint, wanted, drain_for=drain_for, as_json=as_json)
    if code is not None or fingerprint is not None:
        raise click.UsageError("--code and --fingerprint belong to --server URL.")
    refuse_server(store, f"A device joins through it with: asterism device join {clean(name)} --server {store}")
    return join_fleet(store, wanted, drain_for=drain_for, as_json=as_json, create=True, wait=store_wait)


def _read_code(code: str | None) -> str | None:
    """The code of an option. ``-`` reads it from standard input, where it may be part of a command line: so it appears
    neither in the process list nor in the history of a shell."""
    if code != "-":
        return code
    import re
    import sys

    match = re.search(r"astc_[A-Za-z0-9_-]+", sys.stdin.readline(10_000))
    if match is None:
        raise click.UsageError("There is no code on standard input (it begins with astc_).")
    return match[0]


@device.command()
async def list_(system: System) -> Answer:
    """List the devices of the fleet. A star marks the coordinator.

    Devices that left recently are listed, too. SLOTS is the number of used slots and of all slots. LOAD, RANK and
    QUALITY (of the connection to the store) are between 0 and 1. BEAT is the age of the last heartbeat."""
    empty = "No device has joined. Start one with: asterism device join NAME"
    return listed(await system.list_devices(), "fleet.fleet_views:DEVICE_TABLE", empty)


@device.command()
async def show(system: System, name: str) -> Answer:
    """Show a device, the runs that it holds, and its latest runs."""
    details = await system.show_device(name)
    return Answer(details, view("fleet.fleet_views:device_lines", details))


@device.command()
@reason_option()
async def drain(system: System, name: str, reason: str) -> Answer:
    """Ask a device to finish its runs, take no more, and leave."""
    device = await system.drain_device(name, reason)
    if device.state == "silent":
        seconds = f"{device.heartbeat_timeout:g} s"
        text = f"{name} has sent no heartbeat for longer than {seconds}; it leaves when it comes back."
    else:
        runs = {0: "no runs", 1: "1 run"}.get(device.used, f"{device.used} runs")
        text = f"{name} was asked to leave; it has {runs} to finish."
    return Answer(device, text)


@device.command()
@click.argument("subject", metavar="WORKFLOW|RUN")
async def scores(system: System, subject: str) -> Answer:
    """Show which device would get a run, and why.

    Every candidate has its score and the four parts of the score (load, connection, rank, capability). The other
    devices have the reason why they are not candidates. A star marks the device that would be chosen now. For a run,
    the scores at its assignment follow."""
    answer = await system.score_devices(subject)
    return Answer(answer, view("fleet.fleet_views:scores_lines", answer))


@device.command(short_help="Print a command with which a machine joins.")
@option(
    "--name PATTERN",
    "The name of the machine, or a pattern of new names, such as 'lab-*'.",
    to="pattern",
    required=True,
)
@capability_option("--can", "A capability that it may declare; separate several with commas.  [default: any]")
@option("--server URL", f"Address of the server; default: that of --store, or {DEFAULT_SERVER}.")
@option("--tls-cert FILE", "Own certificate of the server, to pin.", type=click.Path(exists=True))
@reason_option()
@on_system(create=True)
async def invite(
    system: System,
    pattern: str,
    can: tuple[str, ...],
    server: str | None,
    tls_cert: str | None,
    reason: str,
    store: str | None,
) -> Answer:
    """Print the command with which one machine can join through the server.

    \b
    asterism device invite --can gpu --name 'lab-*' --server https://host:7400

    The code in it works once, within 10 minutes, and for no name that another device has or had. The machine makes a
    key of its own and gets no access to the store. With --tls-cert the machine trusts exactly this certificate, for a
    server whose certificate nobody else signed."""
    import shlex

    from asterism.fleet.policy.rule_patterns import is_pattern
    from asterism.gateway.gateway_transport import server_url

    url = server_url(server or server_of(store) or DEFAULT_SERVER)
    pin = None if tls_cert is None else _fingerprint(tls_cert)
    invitation = await system.invite_device(pattern, list(can), reason)
    code = invitation.code
    name = "NAME" if is_pattern(pattern) else pattern
    pinned = "" if pin is None else f" --fingerprint {pin}"
    able = f" --can {shlex.quote(','.join(sorted(can)))}" if can else ""
    line = f"asterism device join {shlex.quote(name)}{able} --server {url} --code {code}{pinned}"
    named = f", with a name like {pattern} for NAME" if name == "NAME" else ""
    document = {"code": code, "server": url, "name": pattern, "can": sorted(can) or None, "fingerprint": pin}
    return Answer(
        {**document, "seconds": invitation.seconds, "command": line},
        line,
        [f"Run this on the machine within 10 minutes{named}; the code works once."],
    )


def _fingerprint(path: str) -> str:
    """The fingerprint of the first certificate in a PEM file."""
    from pathlib import Path

    from asterism.base.https_session import pem_fingerprint

    try:
        return pem_fingerprint(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path} is not a certificate in PEM: {error}", param_hint="--tls-cert") from None


@device.command()
@reason_option()
async def revoke(system: System, name: str, reason: str) -> Answer:
    """Revoke the key of a device that joined through the server.

    It is refused from now on and stops its work with its next heartbeat. Its runs go to other devices when its time has
    run out. The name can be enrolled again with a new code."""
    return Answer(await system.revoke_device(name, reason), f"Revoked {clean(name)}.")


@click.command()
@click.argument("name", required=False)
@duration_option("--every", "5s", positive=True, help="How often to check the devices.")
@duration_option("--heartbeat", "30s", help="Heartbeat interval.")
@duration_option("--heartbeat-timeout", "90s", help="The monitor counts as lost after this time without a heartbeat.")
@_policy_option("which commands and URLs may receive notices")
@option(
    "--listen HOST:PORT",
    "Serve the metrics of the fleet at http://HOST:PORT/metrics, without encryption, to everybody who reaches it; "
    "port 0 for any free one.",
)
@_process_options
def monitor(
    name: str | None,
    every: float,
    listen: str | None,
    store_wait: float,
    store: str | None,
    as_json: bool,
    **option_values: Any,
) -> int:
    """Monitor the devices of a fleet without executing runs.

    The fleet elects a coordinator among its devices and monitors. The coordinator takes runs from lost devices, assigns
    waiting runs, and fails runs that no device can execute in time. Start a monitor if the devices of a fleet come and
    go; a fleet can have several. A monitor also runs the plans that schedules create. The default NAME is
    monitor-HOSTNAME."""
    refuse_server(store, "A monitor needs the store itself: start it with --store sqlite:///file.db or postgresql://…")
    import platform

    from asterism.base.listen_address import parse_listen_address
    from asterism.cli.fleet.device_process import DeviceOptions, join_fleet
    from asterism.core.run.session import plain_device_name

    device_name = name or plain_device_name(f"monitor-{platform.node() or 'local'}")
    address = None if listen is None else parse_listen_address(listen, None, None, behind_proxy=True)
    wanted = DeviceOptions(device_name, slots=0, monitor_every=every, metrics=address, runs_plans=True, **option_values)
    return join_fleet(store, wanted, drain_for=0.0, as_json=as_json, create=False, wait=store_wait)
