"""``asterism login``, ``logout`` and ``whoami``: the servers that commands of this user reach."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from asterism.base.text import clean
from asterism.cli.cli_context import (
    DEFAULT_SERVER,
    Answer,
    CommandGroup,
    current_user,
    format_time,
    json_option,
    listed,
    on_system,
    options,
    reason_option,
    same_system,
    server_of,
    store_option,
)
from asterism.cli.option_types import duration_option, option

if TYPE_CHECKING:
    from asterism.api.system import System

_CODE_OF_LINK = re.compile(r"[?&]code=([A-Za-z0-9_-]+)")


@click.command()
@click.argument("url", metavar="URL")
@option("--name NAME", "Call the server so in --store; default: the first part of its host.")
@option(
    "--ca FILE",
    "The certificate (PEM) of the private authority that vouches for the server.",
    to="authority",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
)
@option("--token", "Read a token from standard input, not a code.", to="token_from", type=click.Choice(["-"]))
@json_option
def login(url: str, name: str | None, authority: str | None, token_from: str | None, as_json: bool) -> int:
    """Log in to a server, so that commands reach it.

    \b
    asterism login https://asterism.example              # asks for the code of `asterism token login`
    asterism login https://10.0.0.5:7400 --name lab --ca lab-ca.pem
    asterism login https://asterism.example --token - < token
    asterism runs list --store lab

    Somebody who may use the store of the server makes a one-time code with `asterism token login`; you may paste the
    code or the whole link. The token is kept in a file that only you can read. $ASTERISM_TOKEN counts before it."""
    from asterism.api.client import Client, checked_url, trusting
    from asterism.api.server_logins import ServerLogin, ServerLogins, default_name, is_login_name

    url = checked_url(url)
    called = name or default_name(url)
    if not is_login_name(called):
        raise click.UsageError("--name has up to 100 letters, digits, - and _.")
    secret = _read_secret(url, token_from is not None)
    verify = True if authority is None else trusting(authority)
    if token_from is None:
        with Client(url, "", verify=verify) as client:
            token = client.redeem_login(secret).token
    else:
        token = secret
    with Client(url, token, verify=verify) as client:
        me = client.me()
    ServerLogins().put(ServerLogin(called, url, token, authority))
    text = f"Logged in to {url} as {me.name}. Use it with: --store {called}, or export ASTERISM_STORE={url}"
    notes = [f"It allows {', '.join(me.scopes)} until {format_time(me.expires_at)}."]
    if os.environ.get("ASTERISM_TOKEN"):
        notes.append("$ASTERISM_TOKEN is set, and counts before this login.")
    document = {"server": called, "url": url, "name": me.name, "scopes": me.scopes, "expires_at": me.expires_at}
    return Answer(document, clean(text), notes).print(as_json)


def _read_secret(url: str, token: bool) -> str:
    """The token or the code for a server from standard input; a person is asked for a code. Raises UsageError, also for
    the link of another server: this one would get a code that logs in to that one."""
    what = "token" if token else "code"
    if not token and sys.stdin.isatty():
        text = click.prompt("Code or link of `asterism token login`", err=True)
    else:
        text = sys.stdin.readline(10_000)
    text = text.strip()
    link = _CODE_OF_LINK.search(text)
    if link is not None and not _is_of_server(text, url):
        raise click.UsageError(
            f"This is a link of {clean(text.partition('?')[0])}, and not of {url}. Log in to that server, or paste "
            "only the code if both are the same server."
        )
    secret = link[1] if link is not None else text
    if not secret or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise click.UsageError(f"Standard input has no {what}.")
    return secret


def _is_of_server(link: str, url: str) -> bool:
    """Whether a link names the origin of a server, or none."""
    named, known = urlsplit(link if "//" in link else f"//{link}"), urlsplit(url)
    scheme = named.scheme or known.scheme
    ports = {"https": 443, "http": 80}
    try:
        origin = scheme, named.hostname, named.port or ports.get(scheme)
        return not named.netloc or origin == (known.scheme, known.hostname, known.port or ports.get(known.scheme))
    except ValueError:  # no valid port
        return False


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@json_option
def logout(name: str | None, as_json: bool) -> int:
    """Revoke the token of a login, and forget it.

    NAME is the name or the address of a server that you have logged in to. Without it, the only one."""
    from asterism.api.client import Client, trusting
    from asterism.api.client_errors import NotAllowed, ServerUnreachable, TryLater
    from asterism.api.server_logins import ServerLogins

    logins = ServerLogins()
    known = logins.all()
    if name is None and len(known) != 1:
        names = ", ".join(server.name for server in known)
        raise click.UsageError(f"Give the NAME of a server: {names}." if known else "You are logged in to no server.")
    login = logins.get(name) if name is not None else known[0]
    revoked, why = True, ""
    try:
        verify = True if login.authority is None else trusting(login.authority)
        with Client(login.url, login.token, verify=verify) as client:
            client.logout()
    except NotAllowed:
        pass  # it has expired or was revoked
    except (ServerUnreachable, TryLater) as error:
        revoked, why = False, str(error)
    logins.remove(login.name)
    left = f"The token was forgotten here but not revoked, and stays valid until it expires: {why}"
    document = {"server": login.name, "url": login.url, "revoked": revoked}
    text = clean(f"Logged out of {login.name} ({login.url}).")
    return Answer(document, text, [] if revoked else [left]).print(as_json)


@click.command()
@options(store_option, json_option)
def whoami(store: str | None, as_json: bool) -> int:
    """Show which server commands reach, as whom, and until when.

    It also shows what you may do there."""
    from pathlib import Path

    from asterism.api.server_logins import ServerLogins, is_login_name

    url = server_of(store)
    if url is None and store is not None and is_login_name(store) and not Path(store).exists():
        ServerLogins().get(store)  # raises
    if url is None:
        name = current_user()
        document = {"server": None, "name": name, "scopes": None, "expires_at": None}
        text = f"{name}, on a store that this machine opens itself: everything is allowed."
        return Answer(document, clean(text)).print(as_json)
    from asterism.api.client import Client

    with Client(url) as client:
        me = client.me()
    lines = [
        clean(f"{me.name} at {url}"),
        clean(f"  may      {', '.join(me.scopes)}"),
        f"  until    {format_time(me.expires_at)}",
    ]
    known = {"server": url, "name": me.name, "scopes": me.scopes, "expires_at": me.expires_at}
    return Answer(known, "\n".join(lines)).print(as_json)


# -- tokens ------------------------------------------------------------------------------------------------------------


@click.group(cls=CommandGroup)
def token() -> None:
    """Manage access to the server: create, list, revoke, login.

    A token is shown once; the store keeps only a hash of it."""


@token.command()
@option(
    "--scope SCOPE",
    "What it allows (repeatable): observe, operate, series, event, admin or edit:PLAN.",
    to="scopes",
    multiple=True,
    required=True,
)
@option("--for NAME", "Who uses it: the name in stories and edits.", to="name", required=True)
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


@token.command()
async def list_(system: System) -> Answer:
    """List tokens and browser sessions.

    Those that ended are shown for 30 days."""
    empty = "There are no tokens. Create one with: asterism token create --scope observe --for NAME"
    return listed(await system.list_tokens(), "fleet.fleet_views:TOKEN_TABLE", empty)


@token.command()
@click.argument("identity", metavar="ID")
@reason_option()
async def revoke(system: System, identity: str, reason: str) -> Answer:
    """Revoke a token or a browser session.

    The next request with it is refused. ID is the second part of the token, as `asterism token list` shows it."""
    revoked = await system.revoke_token(identity, reason)
    return Answer(revoked, clean(f"Revoked {revoked.id} of {revoked.name}."))


@token.command()
@option("--scope SCOPE", "As for `token create`.", to="scopes", multiple=True, default=("admin",), show_default=False)
@option("--for NAME", "Who logs in.  [default: you]", to="name")
@option("--server URL", f"Address of the server; default: that of --store, or {DEFAULT_SERVER}.")
@reason_option()
async def login_(
    system: System, scopes: tuple[str, ...], name: str | None, server: str | None, reason: str, store: str | None
) -> Answer:
    """Print a link that logs one browser in, once, within 10 minutes."""
    address = server or server_of(store) or DEFAULT_SERVER
    code = (await system.create_login(list(scopes), name, reason)).code
    link = f"{address.rstrip('/')}/login?code={code}"
    return Answer({"url": link}, link, ["It works once, within 10 minutes."])
