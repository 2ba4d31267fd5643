"""``asterism peer``: devices that have a store each."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from asterism.base.text import clean
from asterism.cli.cli_context import find_run, fleet_options, note, tell_json, with_fleet
from asterism.cli.option_types import duration

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet

LONGEST_LINE = 10_000
"""How many characters of the standard input are read for an invitation."""

UNREACHABLE = 75
"""The exit code for a peer that does not answer just now."""


@click.group()
def peer() -> None:
    """Devices with a store each: invite, accept, sync, serve, list.

    Two stores that invited each other exchange their runs, now and then or all the time. Whichever device has a run,
    whatever happens while they are apart: after they have met it is one."""


@peer.command()
@click.argument("name")
@click.option("--url", metavar="URL", help="Where it reaches this store; https:// and the name of this machine.")
@click.option("--as", "called", metavar="NAME", help="What it will call this store; the machine in the URL.")
@click.option(
    "--valid", type=duration, default="24h", show_default=True, metavar="DURATION", help="How long it may take to come."
)
@fleet_options
def invite(name: str, url: str | None, called: str | None, valid: float, store: str | None, as_json: bool) -> None:
    """Invite the store of another device, and print the invitation.

    It is one line for `asterism peer accept -` on the other machine, and a secret: the first store that uses it is NAME
    from then on. It can be used once. Somebody who was invited and never came can be invited anew.

    \b
    asterism peer invite laptop --url https://kitchen-pc:7420
    asterism peer invite laptop | ssh laptop asterism peer accept -"""
    from asterism.cli.peer_invitation import address_here, name_in

    address = address_here(url)
    mine = called or name_in(address)

    async def write(fleet: Fleet) -> None:
        from asterism.cli.peer_invitation import invited

        await invited(fleet, name, address, mine, valid, as_json=as_json, said=store)

    with_fleet(store, write, create=True)


@peer.command()
@click.argument("invitation")
@click.option("--name", metavar="NAME", help="What it is called here; as it calls itself if left out.")
@fleet_options
def accept(invitation: str, name: str | None, store: str | None, as_json: bool) -> int:
    """Accept an invitation, and meet whoever wrote it.

    With - it is read from the standard input, so that it stands neither in the list of processes nor in the history of
    a shell; on a terminal it is asked for and not shown.

    From then on this store can call that one: with `peer sync`, or all the time with `device join --peer`. If it cannot
    be reached just now, the invitation is kept for the next meeting, and the exit code is 75."""
    from asterism.peers.invitations import parse

    wanted = parse(_pasted() if invitation == "-" else invitation)
    called = name or wanted.name

    async def meet(fleet: Fleet) -> None:
        from asterism.cli.peer_calls import accept_invitation

        await accept_invitation(fleet, wanted, called, as_json=as_json)
        note(f"{called} is a peer now, at {wanted.url}.")

    after = f"The invitation is kept: `asterism peer sync {called}` tries again."
    return _reaching(store, meet, create=True, after=after)


@peer.command()
@click.argument("words", metavar="[STORE] PEER", nargs=-1)
@fleet_options
def sync(words: tuple[str, ...], store: str | None, as_json: bool) -> int:
    """Meet a peer once, until neither side has anything left to say.

    STORE is a file such as laptop.db, or a URL; PEER the name or the address of a peer whose invitation was accepted.
    What was sent, taken and refused on either side is told, and of each run that a device here has lost why. The exit
    code is 75 if the peer cannot be reached.

    \b
    asterism peer sync laptop.db https://kitchen-pc:7420"""
    if len(words) not in (1, 2):
        raise click.UsageError("Give a PEER, or a STORE and a PEER: asterism peer sync laptop.db kitchen-pc")
    wanted = words[-1]
    if len(words) == 1 and Path(wanted).is_file():
        raise click.UsageError(f"{wanted} is a store. Which PEER? `asterism peer list` shows those there are.")

    async def meet(fleet: Fleet) -> None:
        from asterism.cli.peer_calls import sync as sync_with

        await sync_with(fleet, wanted, as_json=as_json)

    return _reaching(words[0] if len(words) == 2 else store, meet)


@peer.command("list")
@fleet_options
def list_(store: str | None, as_json: bool) -> None:
    """List the peers of a store.

    HEARD says how long ago; STORE is the beginning of the id of a peer's store; one without an ADDRESS calls, and
    cannot be called from here."""

    async def tell(fleet: Fleet) -> None:
        from asterism.cli.peer_views import known_peers, peers_table
        from asterism.cli.text_output import say_lines

        found = await known_peers(fleet)
        if as_json:
            tell_json([one.to_json() for one in found])
        elif found:
            say_lines(lambda width: peers_table(found, fleet.store.clock(), width))
        else:
            note("There are no peers yet: asterism peer invite NAME")

    with_fleet(store, tell)


@peer.command()
@click.argument("name")
@click.option("--adopt", is_flag=True, help="Run here what was left to it, or came from it, and has not ended.")
@fleet_options
def remove(name: str, adopt: bool, store: str | None, as_json: bool) -> None:
    """Remove a peer: it is neither answered nor called any more. What it told stays.

    Runs that were left to it, or came from it, and have not ended are held and listed. They run here only with --adopt,
    which can also be given later. What a device here has started goes on, and is listed as still running."""

    async def forget(fleet: Fleet) -> None:
        from asterism.peers.private_files import Tokens
        from asterism.peers.removal import remove as remove_peer

        removed = await remove_peer(fleet, name, adopt=adopt)
        Tokens(fleet.store).remove(name)
        if as_json:
            listed = {"held": removed.held, "adopted": removed.adopted, "running": removed.running}
            tell_json({"removed": name, **{what: [run.id for run in runs] for what, runs in listed.items()}})
            return
        click.echo(f"{name} is no peer any more. Its own store does not know yet: remove this one there, too.")
        for run in removed.held:
            click.echo(clean(f"held: {run.id} ({run.workflow}, {run.status})"))
        for run in removed.running:
            click.echo(clean(f"still running: {run.id} ({run.workflow}, on {run.device})"))
        if removed.running:
            note("Stop a run with: asterism runs cancel ID")
        if removed.held:
            note(f"Run them here with: asterism peer remove {shlex.quote(name)} --adopt")
        if removed.adopted:
            note(f"{len(removed.adopted)} of its runs are done here now.")

    with_fleet(store, forget)


@peer.command()
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:7420", show_default=True, help="Where to listen.")
@fleet_options
def serve(listen: str, store: str | None, as_json: bool) -> int:
    """Answer peers, and do no work, until Ctrl-C or SIGTERM.

    Only this machine can reach the default place; 0.0.0.0:7420 is reached from everywhere. Whoever shows no token of an
    invitation is not listened to. `device join --listen` does the same beside its work."""

    async def answer(fleet: Fleet) -> int:
        from asterism.cli.peer_calls import serve_until_told

        return await serve_until_told(fleet, listen, as_json=as_json)

    from asterism.cli.device_log import told

    with told(as_json=as_json):
        return with_fleet(store, answer)


@peer.command()
@click.argument("run")
@fleet_options
def keep(run: str, store: str | None, as_json: bool) -> None:
    """Insist on a run that was lost to a peer, as a new run.

    It is for the device that lost the old one and no other, goes on from where that was, and names it; the old run
    stays as it is. Its id is printed."""

    async def insist(fleet: Fleet) -> None:
        from asterism.cli.fleet_json import run_in

        old = await find_run(fleet, run)
        new = await fleet.keep_mine(old.id)
        if as_json:
            tell_json(await run_in(fleet, new))
        else:
            click.echo(new.id)
            note(f"It is for {new.pinned} alone, and has nothing to do with what becomes of {old.id}.")

    with_fleet(store, insist)


def _pasted() -> str:
    """An invitation from the standard input."""
    if sys.stdin.isatty():
        return str(click.prompt("Invitation", hide_input=True, err=True))
    return sys.stdin.read(LONGEST_LINE)


def _reaching(
    store: str | None, use: Callable[[Fleet], Awaitable[None]], *, create: bool = False, after: str = ""
) -> int:
    """The exit code of something that needs the peer to be there. ``after`` is said if it is not."""
    from asterism.peers.exchange import PeerUnreachable

    try:
        with_fleet(store, use, create=create)
    except PeerUnreachable as error:
        note(f"Error: {error}")
        if after:
            note(after)
        return UNREACHABLE
    return 0
