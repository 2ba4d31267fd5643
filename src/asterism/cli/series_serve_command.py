"""``asterism series serve``: an endpoint for GitHub's webhook, which syncs when something happens."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asterism.base.extras import install_hint
from asterism.cli.option_types import duration, longer_than_nothing
from asterism.cli.series_context import fit_to_print
from asterism.cli.series_sync_commands import opened, service_options, write_figures

if TYPE_CHECKING:
    from asterism.series.github.sync_report import SyncReport

SHORTEST_SECRET = 16


@click.command()
@service_options
@click.option(
    "--listen", default="127.0.0.1:8974", show_default=True, metavar="HOST:PORT", help="Where; 0 for any port."
)
@click.option(
    "--secret-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The webhook's secret; $GITHUB_WEBHOOK_SECRET if left out.",
)
@click.option(
    "--every",
    type=duration,
    callback=positive_duration,
    default="10m",
    show_default=True,
    help="Sync everything this often, come what may.",
)
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="The certificate, with its chain.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Its key.")
@click.option("--behind-proxy", is_flag=True, help="A proxy does TLS: listen on more than this machine without.")
def serve(listen: str, secret_file: Path | None, every: float, **options: Any) -> int:
    """Sync when GitHub says that something happened, within a second.

    The webhook of the repository sends issues and pull requests to /webhook, signed with the secret."""
    tls = (options.pop("tls_cert"), options.pop("tls_key"), options.pop("behind_proxy"))
    secret = _secret(secret_file)
    try:
        asyncio.run(_served(listen, tls, secret, every, options))
    except ImportError as error:
        raise click.ClickException(f"this needs more than is installed ({error}): {install_hint('github')}") from None
    return 0


def _secret(file: Path | None) -> bytes:
    text = file.read_text("utf-8") if file is not None else os.environ.get("GITHUB_WEBHOOK_SECRET", "")
    secret = text.strip().encode()
    if len(secret) < SHORTEST_SECRET:
        raise click.UsageError(
            f"The webhook needs a secret of at least {SHORTEST_SECRET} letters: set $GITHUB_WEBHOOK_SECRET, or give "
            "--secret-file."
        )
    return secret


async def _served(
    listen: str, tls: tuple[str | None, str | None, bool], secret: bytes, every: float, options: dict[str, Any]
) -> None:
    from asterism.series.github.sync_worker import SyncWorker
    from asterism.series.github.webhook_server import WebhookEndpoint
    from asterism.series.github.webhook_server import listening_at
    from asterism.series.github.webhook_server import serve as serve_until_stopped

    listening = listening_at(listen, *tls)
    service = opened(options, waits=False)  # a series that others have the turn of must not hold up the rest

    told: dict[str, list[str]] = {}

    def after(report: SyncReport) -> None:
        for one in report.series:
            lines = one.lines()
            if (one.changed or one.repaired or one.problem) and told.get(one.name) != lines:
                for line in lines:
                    click.echo(fit_to_print(line))
            told[one.name] = lines
        write_figures(service, options)

    worker = SyncWorker(service, every, after)
    endpoint = WebhookEndpoint(
        worker,
        options["repository"],
        service.finder,
        secret,
        metrics=listening.is_loopback,
        limits=listening.limits,
    )
    try:
        await serve_until_stopped(endpoint.app, worker, listening, lambda url: click.echo(f"listening on {url}"))
    finally:
        await service.register.close()
