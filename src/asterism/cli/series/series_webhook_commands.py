"""``asterism series serve``: sync on webhook deliveries; and the same webhook for ``asterism serve``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asterism.base.startup import install_hint
from asterism.base.text import clean
from asterism.cli.cli_context import is_given, options
from asterism.cli.option_types import duration_option
from asterism.cli.series.series_sync_commands import (
    open_service,
    optional_service_options,
    service_options,
    write_metrics,
)

if TYPE_CHECKING:
    from asterism.base.listen_address import ListenAddress
    from asterism.series.github.sync_report import SyncReport
    from asterism.series.github.webhook import WebhookEndpoint

MIN_SECRET = 16
"""Characters of the webhook's secret."""

_delivery_options = options(
    click.option(
        "--secret-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="A file with the webhook's secret; default: $GITHUB_WEBHOOK_SECRET.",
    ),
    duration_option("--every", "10m", positive=True, help="The interval of syncs of all series."),
)

webhook_options = options(optional_service_options, _delivery_options)
"""The options of the webhook of ``asterism serve``."""


@click.command()
@service_options
@click.option(
    "--listen",
    default="127.0.0.1:8974",
    show_default=True,
    metavar="HOST:PORT",
    help="The address to listen on; port 0 for a free one.",
)
@_delivery_options
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="The TLS certificate, with its chain.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="The key of the certificate.")
@click.option("--behind-proxy", is_flag=True, help="A proxy does TLS: allow other machines to connect without it.")
def serve(listen: str, tls_cert: str | None, tls_key: str | None, behind_proxy: bool, **option_values: Any) -> int:
    """Sync within a second after an event on GitHub.

    Set up a webhook of the repository that sends issues and pull requests to /webhook, signed with the secret.
    `asterism serve --github` does the same beside the API."""
    from asterism.base.listen_address import parse_listen_address

    settings = WebhookSettings.of(option_values)
    address = parse_listen_address(listen, tls_cert, tls_key, behind_proxy)

    async def run() -> None:
        async with open_webhook(settings, address, click.echo) as endpoint:
            from asterism.series.github import webhook

            await webhook.serve(endpoint, address, lambda url: click.echo(f"listening on {url}"))

    asyncio.run(run())
    return 0


# -- the webhook of a process ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WebhookSettings:
    """The options of a webhook: ``service`` are those of its syncs, ``every`` is their interval in seconds."""

    service: dict[str, Any]
    every: float
    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, option_values: dict[str, Any]) -> WebhookSettings:
        """From the options of a command. Raises UsageError."""
        service = {name: value for name, value in option_values.items() if name not in ("secret_file", "every")}
        return cls(service, option_values["every"], _secret(option_values["secret_file"]))

    @classmethod
    def if_given(cls, option_values: dict[str, Any]) -> WebhookSettings | None:
        """From the options of a command for which a webhook is one thing among others: None without ``--github``.
        Raises UsageError."""
        if option_values["repository"] is None:
            for option in click.get_current_context().command.params:
                if option.name in option_values and is_given(option.name):
                    raise click.UsageError(f"{option.opts[0]} is for the series webhook: give --github ORG/REPO too.")
            return None
        if option_values["assignee"] is None:
            raise click.UsageError("The series webhook needs --assign LOGIN, or $ASTERISM_SERIES_ASSIGNEE.")
        return cls.of(option_values)


def _secret(file: Path | None) -> bytes:
    text = file.read_text("utf-8") if file is not None else os.environ.get("GITHUB_WEBHOOK_SECRET", "")
    secret = text.strip().encode()
    if len(secret) < MIN_SECRET:
        raise click.UsageError(
            f"The webhook needs a secret of at least {MIN_SECRET} characters: set $GITHUB_WEBHOOK_SECRET, or give "
            "--secret-file."
        )
    return secret


@asynccontextmanager
async def open_webhook(
    settings: WebhookSettings, address: ListenAddress, say: Callable[[str], object]
) -> AsyncIterator[WebhookEndpoint]:
    """The webhook of a server at this address, and its worker, which the server has to start. ``say`` is called with a
    line for each change of a series. Raises ClickException if the extra is not installed."""
    service = open_service(settings.service, wait_for_locks=False)  # a locked series must not delay the others
    try:
        from asterism.series.github import webhook
        from asterism.series.github.sync import SyncWorker
    except ImportError as error:
        raise click.ClickException(f"a package is missing ({error}): {install_hint('github')}") from None
    printed: dict[str, list[str]] = {}

    def after(report: SyncReport) -> None:
        for series in report.series:
            lines = series.lines()
            if (series.changed or series.repaired or series.problem) and printed.get(series.name) != lines:
                for line in lines:
                    say(clean(line))
            printed[series.name] = lines
        write_metrics(service, settings.service)

    endpoint = webhook.WebhookEndpoint(
        SyncWorker(service, settings.every, after),
        settings.service["repository"],
        service.matcher,
        settings.secret,
        address.limits(webhook.LIMITS),
        shared=address.behind_proxy,
    )
    try:
        yield endpoint
    finally:
        await service.register.close()
