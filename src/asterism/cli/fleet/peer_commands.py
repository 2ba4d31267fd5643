"""``asterism peer``: exchange runs with stores on other machines."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean, plural
from asterism.cli.cli_context import Answer, CommandGroup, fleet_options, note, on_fleet, with_fleet
from asterism.cli.option_types import duration_option, option

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet

MAX_INVITATION_CHARS = 10_000
"""How many characters of standard input are read for an invitation."""

UNREACHABLE = 75
"""The exit code if a peer does not answer."""


@click.group(cls=CommandGroup)
def peer() -> None:
    """Exchange runs with stores on other machines.

    Each machine keeps its own store and works while it is offline. Two stores become peers by an invitation and then
    sync their runs, once or continuously. After a sync both stores agree which device owns each run."""


@peer.command()
@option("--url URL", "Address of this store for the peer.  [default: https://, this host name and port 7420]")
@option("--as NAME", "Name of this store at the peer.  [default: the host in the URL]", to="called")
@duration_option("--valid", "24h", help="Lifetime of the invitation.")
@on_fleet(create=True)
def invite(name: str, url: str | None, called: str | None, valid: float, store: str | None, as_json: bool) -> Any:
    """Invite another store, and print the invitation.

    The invitation is one line for `asterism peer accept -` on the other machine. Keep it secret: the first store that
    uses it becomes the peer NAME. It works once. To replace an unused invitation, invite NAME again.

    \b
    asterism peer invite laptop --url https://kitchen-pc:7420
    asterism peer invite laptop | ssh laptop asterism peer accept -"""
    from asterism.cli.fleet.peer_actions import invite_peer, local_url, name_from_url

    address = local_url(url)
    own_name = called or name_from_url(address)
    options: dict[str, Any] = {"valid": valid, "store_option": store, "as_json": as_json}
    return partial(invite_peer, name=name, url=address, own_name=own_name, **options)


@peer.command()
@option("--name NAME", "Name of the peer here.  [default: the name in the invitation]")
@fleet_options
def accept(invitation: str, name: str | None, store: str | None, as_json: bool) -> int:
    """Accept an invitation, and sync with the store that wrote it.

    With - the invitation is read from standard input, which keeps it out of the process list and the shell history; on
    a terminal it is prompted for and not shown.

    Afterwards this store can call the peer with `peer sync`, or continuously with `device join --peer`. If the peer
    cannot be reached now, the invitation is kept for the next sync, and the exit code is 75."""
    from asterism.peers.invitations import parse_invitation

    parsed = parse_invitation(_invitation_from_stdin() if invitation == "-" else invitation)
    peer_name = name or parsed.name

    async def accept_and_sync(fleet: Fleet) -> None:
        from asterism.cli.fleet.peer_actions import accept_invitation

        await accept_invitation(fleet, parsed, peer_name, as_json=as_json)
        note(f"{peer_name} is now a peer, at {parsed.url}.")

    advice = f"The invitation is kept. Try again with: asterism peer sync {peer_name}"
    return _with_reachable_peer(store, accept_and_sync, create=True, advice=advice)


@peer.command()
@click.argument("words", metavar="[STORE] PEER", nargs=-1)
@fleet_options
def sync(words: tuple[str, ...], store: str | None, as_json: bool) -> int:
    """Sync with a peer once.

    STORE is a file such as laptop.db, or a URL. PEER is the name or the address of a peer whose invitation was
    accepted. The command prints what each side sent, received and refused, and why a device here lost a run. The exit
    code is 75 if the peer cannot be reached.

    \b
    asterism peer sync laptop.db https://kitchen-pc:7420"""
    if len(words) not in (1, 2):
        raise click.UsageError("Give a PEER, or a STORE and a PEER: asterism peer sync laptop.db kitchen-pc")
    wanted = words[-1]
    if len(words) == 1 and Path(wanted).is_file():
        raise click.UsageError(f"{wanted} is a store: give a PEER as well (`asterism peer list` lists them).")

    async def sync_once(fleet: Fleet) -> None:
        from asterism.cli.fleet.peer_actions import sync_with

        await sync_with(fleet, wanted, as_json=as_json)

    return _with_reachable_peer(words[0] if len(words) == 2 else store, sync_once)


@peer.command()
async def list_(fleet: Fleet) -> Answer:
    """List the peers of a store.

    HEARD is the time since the last contact, STORE the start of the store id. A peer without an ADDRESS calls this
    store and cannot be called."""
    from asterism.cli.fleet.peer_actions import peer_statuses, peers_table

    peers = await peer_statuses(fleet)
    document = [peer.to_json() for peer in peers]
    if not peers:
        return Answer(document, notes=["There are no peers. Invite one with: asterism peer invite NAME"])
    return Answer(document, lambda width: peers_table(peers, fleet.store.clock(), width))


@peer.command()
@option("--adopt", "Run its unfinished runs here.")
async def remove(fleet: Fleet, name: str, adopt: bool) -> Answer:
    """Remove a peer.

    This store stops answering and calling it, and keeps the records that it sent. Unfinished runs that the peer manages
    or created are held and listed; --adopt runs them here, now or in a later call. Runs that a device here has started
    continue, and are listed as still running."""
    from asterism.peers.private_files import TokenFile
    from asterism.peers.takeover import remove_peer

    removed = await remove_peer(fleet, name, adopt=adopt)
    TokenFile(fleet.store).remove(name)
    listed = {"held": removed.held, "adopted": removed.adopted, "running": removed.running}
    lines = [
        f"Removed peer {name}. Remove this store on the other machine as well.",
        *(clean(f"held: {run.id} ({run.workflow}, {run.status})") for run in removed.held),
        *(clean(f"still running: {run.id} ({run.workflow}, on {run.device})") for run in removed.running),
    ]
    notes = []
    if removed.running:
        notes.append("Stop a run with: asterism runs cancel ID")
    if removed.held:
        notes.append(f"Run them here with: asterism peer remove {shlex.quote(name)} --adopt")
    if removed.adopted:
        notes.append(f"Adopted {plural(len(removed.adopted), 'run')}.")
    document = {"removed": name, **{what: [run.id for run in runs] for what, runs in listed.items()}}
    return Answer(document, "\n".join(lines), notes)


@peer.command()
@option("--listen HOST:PORT", "Address to listen on.", default="127.0.0.1:7420")
@fleet_options
def serve(listen: str, store: str | None, as_json: bool) -> int:
    """Answer peers until Ctrl-C or SIGTERM, without executing runs.

    The default address accepts connections from this machine only; 0.0.0.0:7420 accepts them from any. Requests without
    a valid token are refused. `device join --listen` answers peers while it works, `asterism serve --peers` beside the
    API."""

    async def answer(fleet: Fleet) -> int:
        from asterism.cli.fleet.peer_actions import serve_until_signal

        return await serve_until_signal(fleet, listen, as_json=as_json)

    from asterism.cli.fleet.device_process import log_to_stderr

    with log_to_stderr(as_json=as_json):
        return with_fleet(store, answer)


@peer.command()
async def keep(fleet: Fleet, run: str) -> Answer:
    """Repeat a run that a device here lost to a peer.

    Creates a new run that only the device that lost RUN can execute, and prints its id. The new run continues from that
    device's progress and refers to RUN, which does not change."""
    from asterism.api.local.run_handlers import run_document
    from asterism.fleet.run_queries import find_run

    old = await find_run(fleet, run)
    new = await fleet.keep_mine(old.id)
    note = f"Only {new.pinned} can take it. It is independent of {old.id}."
    return Answer(await run_document(fleet, new), new.id, [note])


def _invitation_from_stdin() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Invitation", hide_input=True, err=True))
    return sys.stdin.read(MAX_INVITATION_CHARS)


def _with_reachable_peer(
    store: str | None, use: Callable[[Fleet], Awaitable[None]], *, create: bool = False, advice: str = ""
) -> int:
    """The exit code of an action that needs the peer. ``advice`` is printed if the peer is unreachable."""
    from asterism.peers.exchange import PeerUnreachable

    try:
        with_fleet(store, use, create=create)
    except PeerUnreachable as error:
        note(f"Error: {error}")
        if advice:
            note(advice)
        return UNREACHABLE
    return 0
