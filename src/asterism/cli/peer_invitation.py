"""Inviting by command: where this store is reached, what it is called, and the line to run on the other machine."""

from __future__ import annotations

import os
import platform
import shlex
from urllib.parse import urlsplit

import click

from asterism.base.durations import format_age
from asterism.cli.cli_context import note, tell_json
from asterism.fleet.fleet import Fleet
from asterism.peers.invitations import PORT, address_of, invite

HERE = ("127.0.0.1", "localhost")
"""Whoever is invited to these is on this machine: nobody else has to reach it."""


def address_here(url: str | None) -> str:
    """Where others reach this machine, if nothing better is known than its name. Raises InvalidInvitation."""
    return address_of(url or f"https://{platform.node() or 'localhost'}:{PORT}")


def name_in(address: str) -> str:
    """What a store is called by the machine it is on: ``kitchen-pc`` for kitchen-pc.local. An address of numbers is no
    name; then it is the machine's own."""
    host = urlsplit(address).hostname or ""
    if host.replace(".", "").isdigit() or ":" in host or host == "localhost":
        host = platform.node()
    return host.partition(".")[0] or "peer"


async def invited(
    fleet: Fleet, name: str, url: str, called: str, valid: float, *, as_json: bool, said: str | None
) -> None:
    """Invite, and tell how to accept. ``said`` is how the store was named, if it was."""
    invitation = await invite(fleet.store, name, url=url, called=called, valid_for=valid)
    line = invitation.line()
    if as_json:
        until = fleet.store.clock() + valid
        tell_json({"name": name, "url": invitation.url, "invitation": line, "expires_at": until})
        return
    note(f"On the other machine, run `asterism peer accept -` within {format_age(valid)} and paste this line.")
    click.echo(line)
    note(f"It is a secret, good for one use: whoever uses it first is {name}.")
    parts = urlsplit(invitation.url)
    options = f"--listen {'127.0.0.1' if parts.hostname in HERE else '0.0.0.0'}:{parts.port}"
    if said is not None and said != os.environ.get("ASTERISM_STORE"):
        options += f" --store {shlex.quote(fleet.store.url)}"
    note(f"This store has to listen then: asterism peer serve {options}")
    note(f"or, if this machine is to work, too: asterism device join NAME {options}")
