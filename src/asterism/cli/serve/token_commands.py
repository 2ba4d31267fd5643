"""``asterism token``: who may use a server, and what they may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from asterism.base.text import clean
from asterism.cli.cli_context import (
    DEFAULT_SERVER,
    Answer,
    CommandGroup,
    format_time,
    on_system,
    reason_option,
    same_system,
    server_of,
)
from asterism.cli.option_types import duration_option

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
@duration_option("--valid", "90d", help="How long it is valid.")
@reason_option()
@on_system(create=True)
async def create(system: System, scopes: tuple[str, ...], name: str, valid: float, reason: str) -> Answer:
    """Create a token, and print it.

    \b
    asterism token create --scope operate --for ci
    asterism token create --scope edit:nightly --scope observe --for planner --valid 12h

    It is printed once: programs send it as `Authorization: Bearer TOKEN`."""
    new = await system.create_token(name, list(scopes), valid, reason)
    revoke = f"asterism token revoke {new.id}{same_system(system.url)}"
    until = f"It is valid until {format_time(new.expires_at)}; revoke it with: {revoke}"
    return Answer(new, new.token, [f"It is not shown again. {until}"])


@token.command("list")
@on_system()
async def list_(system: System) -> Answer:
    """List tokens and browser sessions.

    Those that ended are shown for 30 days."""
    from asterism.cli.fleet.fleet_views import tokens_table

    tokens = (await system.list_tokens()).items
    if not tokens:
        how = "asterism token create --scope observe --for NAME"
        return Answer(tokens, notes=[f"There are no tokens. Create one with: {how}"])
    return Answer(tokens, lambda width: tokens_table(tokens, width))


@token.command()
@click.argument("identity", metavar="ID")
@reason_option()
@on_system()
async def revoke(system: System, identity: str, reason: str) -> Answer:
    """Revoke a token or a browser session.

    The next request with it is refused. ID is the second part of the token, as `asterism token list` shows it."""
    revoked = await system.revoke_token(identity, reason)
    return Answer(revoked, clean(f"Revoked {revoked.id} of {revoked.name}."))


@token.command()
@click.option("--scope", "scopes", multiple=True, default=("admin",), metavar="SCOPE", help="As for `token create`.")
@click.option("--for", "name", metavar="NAME", help="Who logs in.  [default: you]")
@click.option("--server", metavar="URL", help=f"Address of the server; default: that of --store, or {DEFAULT_SERVER}.")
@reason_option()
@on_system()
async def login(
    system: System, scopes: tuple[str, ...], name: str | None, server: str | None, reason: str, store: str | None
) -> Answer:
    """Print a link that logs one browser in, once, within 10 minutes."""
    address = server or server_of(store) or DEFAULT_SERVER
    code = (await system.create_login(list(scopes), name, reason)).code
    link = f"{address.rstrip('/')}/login?code={code}"
    return Answer({"url": link}, link)
