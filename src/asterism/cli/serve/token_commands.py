"""``asterism token``: who may use a server, and what they may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from asterism.base.text import clean
from asterism.cli.cli_context import (
    CommandGroup,
    fleet_options,
    format_time,
    note,
    print_json,
    reason_option,
    same_store,
    server_of,
    with_system,
)
from asterism.cli.option_types import duration

if TYPE_CHECKING:
    from asterism.api.system import System


@click.group(cls=CommandGroup)
def token() -> None:
    """Manage access to the server: create, list, revoke, login.

    A token is shown once; the store keeps only a hash of it."""


@token.command()
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    metavar="SCOPE",
    help="What it allows (repeatable): observe, operate, series, admin or edit:PLAN.",
)
@click.option("--for", "name", required=True, metavar="NAME", help="Who uses it: the name in stories and edits.")
@click.option(
    "--valid",
    type=duration,
    default="90d",
    show_default=True,
    metavar="DURATION",
    help="How long it is valid.",
)
@reason_option
@fleet_options
def create(scopes: tuple[str, ...], name: str, valid: float, reason: str, store: str | None, as_json: bool) -> None:
    """Create a token, and print it.

    \b
    asterism token create --scope operate --for ci
    asterism token create --scope edit:nightly --scope observe --for planner --valid 12h

    It is printed once: programs send it as `Authorization: Bearer TOKEN`."""

    async def write(system: System) -> None:
        new = await system.create_token(name, list(scopes), valid, reason)
        if as_json:
            print_json(new)
            return
        click.echo(new.token)
        note(
            f"It is not shown again. It is valid until {format_time(new.expires_at)}; revoke it with: "
            f"asterism token revoke {new.id}{same_store(system)}"
        )

    with_system(store, write, create=True)


@token.command("list")
@fleet_options
def list_(store: str | None, as_json: bool) -> None:
    """List tokens and browser sessions.

    Those that ended are shown for 30 days."""

    async def read(system: System) -> None:
        from asterism.cli.fleet.fleet_views import tokens_table
        from asterism.cli.screen import print_lines

        tokens = (await system.list_tokens()).items
        if as_json:
            print_json(tokens)
        elif tokens:
            print_lines(lambda width: tokens_table(tokens, width))
        else:
            note("There are no tokens. Create one with: asterism token create --scope observe --for NAME")

    with_system(store, read)


@token.command()
@click.argument("identity", metavar="ID")
@reason_option
@fleet_options
def revoke(identity: str, reason: str, store: str | None, as_json: bool) -> None:
    """Revoke a token or a browser session.

    The next request with it is refused. ID is the second part of the token, as `asterism token list` shows it."""

    async def write(system: System) -> None:
        revoked = await system.revoke_token(identity, reason)
        if as_json:
            print_json(revoked)
        else:
            click.echo(clean(f"Revoked {revoked.id} of {revoked.name}."))

    with_system(store, write)


@token.command()
@click.option("--scope", "scopes", multiple=True, default=("admin",), metavar="SCOPE", help="As for `token create`.")
@click.option("--for", "name", metavar="NAME", help="Who logs in.  [default: you]")
@click.option(
    "--url",
    metavar="URL",
    help="Address of the server.  [default: that of --store, or http://127.0.0.1:7400]",
)
@reason_option
@fleet_options
def login(
    scopes: tuple[str, ...], name: str | None, url: str | None, reason: str, store: str | None, as_json: bool
) -> None:
    """Print a link that logs one browser in, once, within 10 minutes."""
    address = url or server_of(store) or "http://127.0.0.1:7400"

    async def write(system: System) -> None:
        code = (await system.create_login(list(scopes), name, reason)).code
        link = f"{address.rstrip('/')}/login?code={code}"
        if as_json:
            print_json({"url": link})
        else:
            click.echo(link)

    with_system(store, write)
