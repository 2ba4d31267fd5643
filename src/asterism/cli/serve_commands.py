"""``asterism serve`` and ``asterism token``: the server, and who may use it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean
from asterism.cli.cli_context import (
    CommandGroup,
    SectionedCommand,
    fleet_options,
    format_time,
    note,
    options,
    print_json,
    same_store,
    section,
    store_wait_option,
    with_fleet,
)
from asterism.cli.option_types import duration
from asterism.cli.series_webhook_commands import WebhookSettings, webhook_options

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet
    from asterism.server.credentials import Credential

DEFAULT_LISTEN = "127.0.0.1:7400"
_HOST_NAME = re.compile(r"[0-9A-Za-z.-]{1,253}|\[?[0-9A-Fa-f:]{2,39}\]?")


def host_names(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """They are printed in links and compared with the header Host of requests."""
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise click.BadParameter(f"{clean(name)!r} is not a host name (example: host.example).")
    return names


listen_options = options(
    click.option("--listen", metavar="HOST:PORT", default=DEFAULT_LISTEN, show_default=True, help="Listen here."),
    click.option("--tls-cert", type=click.Path(), metavar="FILE", help="TLS certificate (PEM)."),
    click.option("--tls-key", type=click.Path(), metavar="FILE", help="Key of the certificate (PEM)."),
    click.option("--behind-proxy", is_flag=True, help="A proxy in front of this server does TLS."),
    click.option(
        "--name",
        "names",
        multiple=True,
        callback=host_names,
        metavar="HOST",
        help="Host name by which clients know it (repeatable).",
    ),
)


@click.command(cls=SectionedCommand)
@listen_options
@click.option(
    "--local",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Execute up to N tasks of each plan in this process.",
)
@click.option("--no-login", is_flag=True, help="Print no login link: for a service, whose output is a log.")
@click.option(
    "--policy",
    metavar="FILE",
    help="Device policy file: what it executes for --local and notices; default: ~/.config/asterism/policy.yaml.",
)
@click.option("--peers", is_flag=True, help="Answer the peers of the store too, on the same port.")
@store_wait_option
@fleet_options
@section("Series webhook, with --github", webhook_options)
def serve(
    listen: str,
    tls_cert: str | None,
    tls_key: str | None,
    behind_proxy: bool,
    names: tuple[str, ...],
    local: int,
    no_login: bool,
    policy: str | None,
    peers: bool,
    store_wait: float,
    store: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Serve a store over HTTP: API, page and devices.

    \b
    asterism serve --store sqlite:///fleet.db
    asterism serve --listen 0.0.0.0:7400 --name host.example --tls-cert cert.pem --tls-key key.pem
    asterism serve --github org/repo --assign copilot-swe-agent --secret-file secret

    It ends with Ctrl-C or SIGTERM. Prints a link with a one-time login for a browser; `asterism token create` makes
    tokens for programs. The default address is reached from this machine only; any other needs TLS: a certificate,
    or --behind-proxy. The server runs the plans that are submitted to it and those of schedules; devices execute
    their tasks, or --local N. With --github it also receives the webhook of a repository at /webhook, and syncs its
    series as `asterism series serve` does. With --peers it answers peers as `asterism peer serve` does: they use
    TLS with the certificate of the store, whatever others use.

    Without a device policy file it executes no notify command of the settings, and sends notices to public addresses
    only."""
    from asterism.base.listen_address import parse_listen_address
    from asterism.cli.device_log import log_to_stderr
    from asterism.cli.server_policy import ServerPolicy

    webhook = WebhookSettings.if_given(given)
    address = parse_listen_address(listen, tls_cert, tls_key, behind_proxy)
    policies = ServerPolicy.find(policy)

    async def run(fleet: Fleet) -> int:
        from asterism.cli.server_process import serve_until_signal

        return await serve_until_signal(
            fleet,
            address,
            names,
            local=local,
            policy=policies,
            login=not no_login,
            webhook=webhook,
            peers=peers,
            as_json=as_json,
        )

    with log_to_stderr(as_json=as_json):
        return with_fleet(store, run, create=True, wait=store_wait)


# -- tokens ------------------------------------------------------------------------------------------------------------


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
    "--valid", type=duration, default="90d", show_default=True, metavar="DURATION", help="How long it is valid."
)
@fleet_options
def create(scopes: tuple[str, ...], name: str, valid: float, store: str | None, as_json: bool) -> None:
    """Create a token, and print it.

    \b
    asterism token create --scope operate --for ci
    asterism token create --scope edit:nightly --scope observe --for planner --valid 12h

    It is printed once: programs send it as `Authorization: Bearer TOKEN`."""

    async def write(fleet: Fleet) -> None:
        from asterism.server.credentials import Credentials

        new = await Credentials(fleet.store).create(name, scopes, by=fleet.by, valid_for=valid)
        if as_json:
            print_json({**_credential_json(new.credential, fleet.store.clock()), "token": new.token})
            return
        click.echo(new.token)
        until = format_time(new.credential.expires_at)
        note(
            f"It is not shown again. It is valid until {until}; revoke it with: "
            f"asterism token revoke {new.credential.id}{same_store(fleet)}"
        )

    with_fleet(store, write, create=True)


@token.command("list")
@fleet_options
def list_(store: str | None, as_json: bool) -> None:
    """List tokens and browser sessions.

    Those that ended are shown for 30 days."""

    async def read(fleet: Fleet) -> None:
        from asterism.cli.screen import Column, print_lines, table
        from asterism.server.credentials import Credentials

        found, now = await Credentials(fleet.store).all(), fleet.store.clock()
        if as_json:
            print_json([_credential_json(one, now) for one in found])
        elif found:
            columns = (
                Column("ID"),
                Column("FOR", least=8, name=True),
                Column("SCOPES", least=10),
                Column("KIND"),
                Column("STATE"),
                Column("EXPIRES", needed=False),
            )
            rows = [
                [one.id, one.name, ", ".join(sorted(one.scopes)), one.kind, one.state(now), format_time(one.expires_at)]
                for one in found
            ]
            print_lines(lambda width: table(columns, rows, width))
        else:
            note("There are no tokens. Create one with: asterism token create --scope observe --for NAME")

    with_fleet(store, read)


@token.command()
@click.argument("identity", metavar="ID")
@fleet_options
def revoke(identity: str, store: str | None, as_json: bool) -> None:
    """Revoke a token or a browser session.

    The next request with it is refused. ID is the second part of the token, as `asterism token list` shows it."""

    async def write(fleet: Fleet) -> None:
        from asterism.server.credentials import Credentials

        revoked = await Credentials(fleet.store).revoke(identity)
        if as_json:
            print_json(_credential_json(revoked, fleet.store.clock()))
        else:
            click.echo(clean(f"Revoked {revoked.id} of {revoked.name}."))

    with_fleet(store, write)


@token.command()
@click.option("--scope", "scopes", multiple=True, default=("admin",), metavar="SCOPE", help="As for `token create`.")
@click.option("--for", "name", metavar="NAME", help="Who logs in.  [default: you]")
@click.option(
    "--url", default=f"http://{DEFAULT_LISTEN}", show_default=True, metavar="URL", help="Address of the server."
)
@fleet_options
def login(scopes: tuple[str, ...], name: str | None, url: str, store: str | None, as_json: bool) -> None:
    """Print a link that logs in once, within 10 minutes.

    A browser opens the link. `asterism login URL` asks for the link, or for the code in it."""

    async def write(fleet: Fleet) -> None:
        from asterism.server.credentials import Credentials

        code = await Credentials(fleet.store).create_login(name or fleet.by, scopes, by=fleet.by)
        link = f"{url.rstrip('/')}/login?code={code}"
        if as_json:
            print_json({"url": link})
        else:
            click.echo(link)

    with_fleet(store, write)


def _credential_json(one: Credential, now: float) -> dict[str, object]:
    return {
        "id": one.id,
        "for": one.name,
        "scopes": sorted(one.scopes),
        "kind": one.kind,
        "state": one.state(now),
        "created_at": one.created_at,
        "created_by": one.created_by,
        "expires_at": one.expires_at,
    }
