"""``asterism serve``: a store over HTTP; ``asterism mcp``: the same for a client of MCP that starts the command."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean
from asterism.cli.cli_context import (
    DEFAULT_SERVER,
    SectionedCommand,
    fleet_options,
    options,
    refuse_options,
    refuse_server,
    section,
    store_option,
    store_wait_option,
    with_fleet,
)
from asterism.cli.editor_options import edit_proposer, proposer_options
from asterism.cli.option_types import MIN_SECRET, option, taken_from_environment, webhook_secret
from asterism.cli.series.series_sync_commands import WebhookSettings, webhook_options

if TYPE_CHECKING:
    from asterism.fleet.event_hook import EventHook
    from asterism.fleet.fleet import Fleet
    from asterism.models.edit_proposals import EditProposer
    from asterism.server.people_proxy import PeopleProxy

_HOST_NAME = re.compile(r"[0-9A-Za-z.-]{1,253}|\[?[0-9A-Fa-f:]{2,39}\]?")


def host_names(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """They are printed in links and compared with the header Host of requests."""
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise click.BadParameter(f"{clean(name)!r} is not a host name (example: host.example).")
    return names


listen_options = options(
    option("--listen HOST:PORT", "Listen here.", default=DEFAULT_SERVER.removeprefix("http://")),
    option("--tls-cert FILE", "TLS certificate (PEM).", type=click.Path()),
    option("--tls-key FILE", "Key of the certificate (PEM).", type=click.Path()),
    option("--behind-proxy", "A proxy in front of this server does TLS."),
    option(
        "--name HOST",
        "Host name by which clients know it (repeatable).",
        to="names",
        multiple=True,
        callback=host_names,
    ),
)


event_hook_options = options(
    option(
        "--event-hook NAME=EVENT",
        "Let signed posts to /hooks/NAME send this event; {field} is one of the posted JSON (repeatable).",
        to="event_hooks",
        multiple=True,
    ),
    option(
        "--hook-secrets FOLDER",
        "A folder with a private file NAME for the secret of each hook; default: $ASTERISM_HOOK_NAME.",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
    ),
)


proxy_options = options(
    option(
        "--proxy-from ADDRESS",
        "Address or network of a proxy that logs people in (repeatable).",
        to="sources",
        multiple=True,
    ),
    option(
        "--group GROUP=SCOPE",
        "What a group of the proxy may do; * is everybody (repeatable).",
        to="groups",
        multiple=True,
    ),
    option("--proxy-user-header NAME", "The header with the person.", to="user_header", default="X-Forwarded-User"),
    option("--proxy-groups-header NAME", "The header with groups.", to="groups_header", default="X-Forwarded-Groups"),
    option(
        "--proxy-secret-file FILE",
        "A private file with the secret that the proxy sends in X-Asterism-Proxy-Secret; needed.",
        to="proxy_secret",
        type=click.Path(path_type=Path),
    ),
    option("--proxy-logout URL", "Where the proxy logs people out, such as /oauth2/sign_out.", to="logout"),
)


PROXY_VALUES = ("sources", "groups", "user_header", "groups_header", "proxy_secret", "logout")


def people_proxy(values: dict[str, Any], behind_proxy: bool) -> PeopleProxy | None:
    """The proxy that the options name, which are taken from ``values``; None if they name none. Raises UsageError,
    InvalidProxy and InvalidScope, and UnusableSecret for a file that others can read."""
    from asterism.base.private_file import read_private
    from asterism.server.people_proxy import PeopleProxy, parse_groups, parse_networks

    sources, groups, user_header, groups_header, proxy_secret, logout = (values.pop(name) for name in PROXY_VALUES)
    if not sources:
        if groups or proxy_secret or logout:
            raise click.UsageError("--group and the options of the proxy need --proxy-from ADDRESS.")
        return None
    if not behind_proxy or not groups:
        raise click.UsageError("--proxy-from needs --behind-proxy, and a --group GROUP=SCOPE (example: '*=observe').")
    if logout is not None and not re.fullmatch(r"(/(?!/)|https://)[!-~]*", logout):
        raise click.UsageError("--proxy-logout is a path of this site, or an https address.")
    if proxy_secret is None:
        raise click.UsageError(
            "--proxy-from needs --proxy-secret-file FILE: without a secret, every program on the machine of the proxy "
            "can name a person. Make one with: openssl rand -hex 32"
        )
    data = read_private(proxy_secret, "make another secret, here and at the proxy") or b""
    needs = f"The secret of the proxy has at least {MIN_SECRET} characters: write it to {clean(str(proxy_secret))}."
    secret = webhook_secret(data.decode("utf-8", "replace"), needs)
    return PeopleProxy(
        parse_networks(sources),
        parse_groups(groups),
        secret,
        user_header.lower(),
        groups_header.lower(),
        logout,
    )


def server_model(values: dict[str, Any]) -> EditProposer | None:
    """The model that answers requests in words, which is taken from ``values``; None without ``--model``. Raises
    UsageError."""
    model = {name: values.pop(name) for name in ("models", "budget", "price", "answers")}
    if model["models"]:
        return edit_proposer(**model)
    refuse_options("needs --model NAME.", "budget", "price", "answers")
    return None


def opened_hooks(given: tuple[str, ...], folder: Path | None) -> list[EventHook]:
    """The hooks that the options name. Raises UsageError, InvalidHook, and UnusableSecret for a file that others can
    read."""
    from asterism.fleet.event_hook import EventHook, check_hook_name

    if folder is not None and not given:
        raise click.UsageError("--hook-secrets is for event hooks: give --event-hook NAME=EVENT too.")
    hooks = dict[str, EventHook]()
    for words in given:
        name, equals, event = words.partition("=")
        if not equals:
            raise click.UsageError(f"{clean(words)!r} is not a hook (example: shop=payment/{{order}}).")
        check_hook_name(name)
        if name in hooks:
            raise click.UsageError(f"There are two hooks {name!r}: give each another name.")
        hooks[name] = EventHook(name, event, _secret(name, folder))
    return list(hooks.values())


def _secret(name: str, folder: Path | None) -> bytes:
    from asterism.base.private_file import read_private

    variable = f"ASTERISM_HOOK_{name.replace('-', '_').upper()}"
    needs = f"Hook {name!r} needs a secret of at least {MIN_SECRET} characters:"
    if folder is None:
        return webhook_secret(
            taken_from_environment(variable), f"{needs} set ${variable}, or give --hook-secrets FOLDER."
        )
    data = read_private(folder / name, "make another secret, here and at the sender") or b""
    return webhook_secret(data.decode("utf-8", "replace"), f"{needs} write it to {clean(str(folder / name))}.")


@click.command(cls=SectionedCommand)
@listen_options
@option(
    "--local N",
    "Execute up to N tasks of each plan in this process.",
    type=click.IntRange(min=0),
    default=0,
    show_default=False,
)
@option("--no-login", "Print no login link: for a service, whose output is a log.")
@option(
    "--device-policy FILE",
    "Device policy file: what it executes for --local and notices; default: ~/.config/asterism/policy.yaml.",
    to="policy",
)
@option("--peers", "Answer the peers of the store too, on the same port.")
@event_hook_options
@store_wait_option
@fleet_options
@section("People, with a proxy that logs them in", proxy_options)
@section("Requests in words", proposer_options)
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
    **webhook_values: Any,
) -> int:
    """Serve a store over HTTP: API, page and devices.

    \b
    asterism serve --store sqlite:///fleet.db
    asterism serve --listen 0.0.0.0:7400 --name host.example --tls-cert cert.pem --tls-key key.pem
    asterism serve --github org/repo --assign copilot-swe-agent --secret-file secret

    It ends with Ctrl-C or SIGTERM. Prints a link with a one-time login for a browser; `asterism token create` makes
    tokens for programs. The default address is reached from this machine only; any other needs TLS: a certificate, or
    --behind-proxy. The server runs the plans that are submitted to it and those of schedules; devices execute their
    tasks, or --local N. With --model it answers requests in words, at your expense. With --github it also receives the
    webhook of a repository at /webhook, and syncs its series as `asterism series serve` does. With --event-hook a
    program that signs what it posts sends events that plans wait for. With --peers it answers peers as `asterism peer
    serve` does, with the certificate of the store.

    Without a device policy file it executes no notify command, and sends notices to public addresses only."""
    from asterism.base.listen_address import parse_listen_address
    from asterism.cli.fleet.device_process import log_to_stderr
    from asterism.cli.fleet.server_process import ServerPolicy, serve_until_signal

    refuse_server(store, "A server serves a store: give --store sqlite:///file.db or postgresql://…")
    hooks = opened_hooks(webhook_values.pop("event_hooks"), webhook_values.pop("hook_secrets"))
    people = people_proxy(webhook_values, behind_proxy)
    proposer = server_model(webhook_values)
    webhook = WebhookSettings.if_given(webhook_values)
    address = parse_listen_address(listen, tls_cert, tls_key, behind_proxy)
    policies = ServerPolicy.find(policy)

    run = partial(
        serve_until_signal,
        address=address,
        names=names,
        local=local,
        policy=policies,
        login=not no_login,
        webhook=webhook,
        hooks=hooks,
        peers=peers,
        people=people,
        proposer=proposer,
        as_json=as_json,
    )
    with log_to_stderr(as_json=as_json):
        return with_fleet(store, run, create=True, wait=store_wait)


# -- asterism mcp ------------------------------------------------------------------------------------------------------


@click.command()
@option(
    "--scope SCOPE",
    "What the client may do (repeatable): observe, operate, series, event, admin or edit:PLAN.  [default: admin]",
    to="scopes",
    multiple=True,
    default=("admin",),
    show_default=False,
)
@option("--by NAME", "Name of the client in stories and edits.  [default: you]", to="name")
@option(
    "--local N",
    "Execute up to N tasks of each submitted plan in this process.",
    type=click.IntRange(min=0),
    default=0,
    show_default=False,
)
@store_option
def mcp(scopes: tuple[str, ...], name: str | None, local: int, store: str | None) -> int:
    """Let an MCP client read, run and edit plans.

    \b
    asterism mcp --store sqlite:///fleet.db
    asterism mcp --scope observe --scope edit:nightly --by planner

    The client starts this command and speaks with it over standard input and output; it ends with the client. Plans
    that the client submits run while it is there, and afterwards wherever the store is served. For clients on other
    machines, `asterism serve` has the same at /mcp, with tokens.

    A client is an editor: the limits of a plan for its editors hold for it, and people approve edits and raise
    budgets."""
    from asterism.cli.fleet.device_process import log_to_stderr

    async def run(fleet: Fleet) -> int:
        from asterism.cli.fleet.server_process import serve_client

        return await serve_client(fleet, name or fleet.by, scopes, local=local)

    with log_to_stderr(as_json=False):
        return with_fleet(store, run, create=True)
