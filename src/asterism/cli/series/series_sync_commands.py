"""``asterism series sync``: sync the series of a repository on GitHub once; and the options of every sync."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from asterism.base.startup import install_hint
from asterism.base.text import clean
from asterism.cli.cli_context import current_user, is_given, json_option, options, print_json, run_interruptible
from asterism.cli.option_types import MIN_SECRET, duration_option, option, taken_from_environment, webhook_secret
from asterism.cli.series.series_context import (
    EXIT_CONTENDED,
    EXIT_QUEUED,
    EXIT_UNAVAILABLE,
    EXIT_UNREADABLE,
    EXIT_UNUSABLE,
    dry_run_option,
    issue_number,
    login,
    open_github_register,
    retry_options,
)
from asterism.core.record import Record

if TYPE_CHECKING:
    from asterism.base.listen_address import ListenAddress
    from asterism.core.series.machine import Item
    from asterism.series.github.series_sync import SyncSettings
    from asterism.series.github.sync import SyncService
    from asterism.series.github.sync_report import SyncReport
    from asterism.series.github.webhook import WebhookEndpoint

EXIT_CODES = {
    "unmatched": EXIT_UNUSABLE,
    "unassignable": EXIT_UNUSABLE,
    "unreadable": EXIT_UNREADABLE,
    "unavailable": EXIT_UNAVAILABLE,
    "contended": EXIT_CONTENDED,
}
"""The exit code of each problem, the worst first."""

_repository_option = option(
    "--github ORG/REPO",
    "The repository; default: $GITHUB_REPOSITORY.",
    to="repository",
    envvar="GITHUB_REPOSITORY",
    required=True,
)


def _assign_option(*, required: bool) -> Callable[[Any], Any]:
    return option(
        "--assign LOGIN",
        "The login that active issues are assigned to, such as copilot-swe-agent; $ASTERISM_SERIES_ASSIGNEE.",
        to="assignee",
        type=login,
        envvar="ASTERISM_SERIES_ASSIGNEE",
        required=required,
    )


_mode_option = option(
    "--mode",
    "Only write tracking issues; also assign; also comment on promotions.",
    type=click.Choice(["observe", "enforce", "announce"]),
    default="enforce",
)

_discovery_options = options(
    option("--series NAME", "Only this series; can be repeated.", to="series_names", multiple=True),
    option("--pattern REGEX", "The title pattern, with (?P<series>…) and (?P<micro>…)."),
    option("--label-pattern REGEX", "The label pattern, with the same groups."),
    option("--label NAME", "Only issues with this label belong to series."),
    option(
        "--assign-with",
        "The API that assigns; auto: GraphQL for bots, REST for people.",
        type=click.Choice(["auto", "rest", "graphql"]),
        default="auto",
    ),
)


def _label_option(state: str, which: str) -> Callable[[Any], Any]:
    label = f"series-{state}"
    text = f"Label {which} issues; default name: {label}."
    return click.option(f"--{state}-label", is_flag=False, flag_value=label, metavar="[NAME]", help=text)


_issue_options = options(
    _label_option("active", "active"),
    _label_option("queued", "waiting"),
    option(
        "--respect-unassign", "Pause a series whose active issue a person unassigns, instead of assigning it again."
    ),
)

_output_options = options(
    option("--no-view", "Maintain no tracking issues."),
    option(
        "--metrics [FILE]",
        "Write metrics as JSON; default file: assignment_mutex_metrics.json.",
        type=click.Path(dir_okay=False, path_type=Path),
        is_flag=False,
        flag_value=Path("assignment_mutex_metrics.json"),
    ),
    option(
        "--prometheus FILE",
        "Also write the metrics as text for Prometheus.",
        type=click.Path(dir_okay=False, path_type=Path),
    ),
    option(
        "--cache FILE",
        "Cache responses in this file; unchanged ones do not count towards GitHub's rate limit.",
        type=click.Path(dir_okay=False, path_type=Path),
    ),
    retry_options,
)

_sync_options = options(_mode_option, _discovery_options, _issue_options, _output_options)

service_options = options(_repository_option, _assign_option(required=True), _sync_options)
"""The options of ``series sync`` and ``series serve``."""

optional_service_options = options(
    option("--github ORG/REPO", "Receive the webhook of this repository, at /webhook.", to="repository"),
    _assign_option(required=False),
    _sync_options,
)
"""The same for ``asterism serve``. A repository in the environment does not count: a server is not to sync because of
it."""


# -- sync --------------------------------------------------------------------------------------------------------------


@click.command(short_help="Sync the series of a repository on GitHub with its issues.")
@service_options
@option("--issue NUMBER", "Only the series of this issue, and its place there.", type=issue_number)
@dry_run_option
@json_option
def sync(issue: int | None, dry_run: bool, as_json: bool, **option_values: Any) -> int:
    """Sync the series of a repository on GitHub with its issues.

    Closed issues leave, new ones are queued, and the next one is promoted, assigned and verified. The tracking issues
    show the result. The command can run as often as you like, and in many processes at once.

    Exits with 0 if all series agree with their issues. With --issue: 0 if it is active, closed, or in no series; 75 if
    it waits, or with --mode observe, which claims nothing. In all cases: 76 if other processes won every try; 64 if the
    assignee cannot be assigned, or if the patterns and labels match no issue although the repository has series; 65 if
    a state is of a later version; 69 if GitHub is not available, or, with --mode observe, the tracking issues could not
    be written."""
    return run_interruptible(_sync(option_values, issue, dry_run, as_json))


async def _sync(option_values: dict[str, Any], issue: int | None, dry_run: bool, as_json: bool) -> int:
    from asterism.series.register import OutcomeUnknown, RegisterUnavailable

    service = open_service(option_values, dry_run=dry_run)
    try:
        only = await _series_of_issue(service, issue)
        report = await service.sync(only)
        observed = not service.settings.acts
    except (RegisterUnavailable, OutcomeUnknown) as error:
        if as_json:
            print_json({"status": "unavailable", "error": str(error)})
        click.echo(f"Error: {error}", err=True)
        return EXIT_UNAVAILABLE
    finally:
        await service.register.close()
    place = _place_of_issue(report, issue, only, observed) if issue is not None else None
    _print_report(report, place, observed, option_values["series_names"], as_json)
    if not dry_run:
        write_metrics(service, option_values)
    return _exit_code(report, place)


def write_metrics(service: SyncService, option_values: dict[str, Any]) -> None:
    """A failure is only reported: the sync was done, and must not be repeated."""
    try:
        service.metrics.write(option_values["metrics"], option_values["prometheus"])
    except OSError as error:
        click.echo(f"cannot write the metrics: {error}", err=True)


def open_service(option_values: dict[str, Any], *, dry_run: bool = False, wait_for_locks: bool = True) -> SyncService:
    """The service that the options describe."""
    register = open_github_register(
        option_values["repository"], option_values["deadline"], option_values["cache"], read_only_cache=dry_run
    )
    from asterism.series.github.sync import SyncService

    service = SyncService(register, _settings(option_values, dry_run, wait_for_locks))
    if option_values["metrics"] is not None:
        service.metrics.load_observed(option_values["metrics"])
    return service


def _settings(option_values: dict[str, Any], dry_run: bool, wait_for_locks: bool) -> SyncSettings:
    from asterism.series.compare_and_swap import RetryOptions
    from asterism.series.github.discovery import LABEL_PATTERN, TITLE_PATTERN
    from asterism.series.github.series_sync import LOCK_DEADLINE, SyncSettings

    same = ("mode", "label", "assign_with", "deadline", "active_label", "queued_label", "respect_unassign")
    return SyncSettings(
        option_values["assignee"],
        pattern=option_values["pattern"] or TITLE_PATTERN,
        label_pattern=option_values["label_pattern"] or LABEL_PATTERN,
        only=frozenset(option_values["series_names"]) or None,
        by=option_values["by"] or current_user(),
        view=not option_values["no_view"],
        dry_run=dry_run,
        lock_deadline=(option_values["deadline"] or LOCK_DEADLINE) if wait_for_locks else 0.0,
        retry=RetryOptions.limited(option_values["tries"], option_values["deadline"]),
        **{name: option_values[name] for name in same},
    )


async def _series_of_issue(service: SyncService, issue: int | None) -> frozenset[str] | None:
    """The series to sync: None for all if no issue is named; empty if the issue belongs to no selected series."""
    from asterism.series.github.github_client import RequestRejected

    if issue is None:
        return None
    try:
        name = await service.series_of(issue)
    except RequestRejected as error:
        raise click.ClickException(f"cannot read issue #{issue}: {error}") from None
    selected = service.settings.only
    return frozenset({name}) if name is not None and (selected is None or name in selected) else frozenset()


class _IssuePlace(NamedTuple):
    """Where an issue is: its series and its position in the queue."""

    status: str
    issue: int
    series: str | None
    active: Item | None
    position: int | None


def _place_of_issue(report: SyncReport, issue: int, only: frozenset[str] | None, observed: bool) -> _IssuePlace:
    """The place of an issue: claimed, queued, left (it is closed), or none (it belongs to no selected series).

    A sync that only observes claims nothing, so its status is ``observed``."""
    series = report.series[0] if report.series else None
    position = series.state.position(issue) if series else None
    status = "queued" if position else "claimed"
    if position is None:
        status = "left"
    if observed:
        status = "observed"
    if series is not None and series.status in EXIT_CODES:
        status = series.status
    if not only or (series is not None and series.left_alone is not None):
        status = "none"
    active = series.state.active if series else None
    return _IssuePlace(status, issue, next(iter(only or ()), None), active, position)


def _print_report(
    report: SyncReport, place: _IssuePlace | None, observed: bool, selected: Sequence[str], as_json: bool
) -> None:
    """Problems go to standard error. ``selected`` are the series that were named."""
    for series in report.series:
        if series.problem:
            click.echo(clean(f"series {series.name}: {series.problem}"), err=True)
    if as_json:
        about = {"status": "observed"} if observed else {}
        print_json({**(about if place is None else place._asdict()), "sync": report.to_json()})
        return
    if place is not None and place.status == "none":
        click.echo(f"#{place.issue} belongs to no selected series: neither its title nor a label names one")
        return
    for series in report.series:
        for line in series.lines(problem=False):
            click.echo(clean(line))
    for line in report.observations():
        click.echo(clean(line))
    if not report.series:
        click.echo(clean(f"no open issue belongs to {' or '.join(selected) or 'a series'}"))
    if place is not None and place.status in ("claimed", "queued"):
        position = "" if place.status == "claimed" else f", number {place.position} in the queue"
        click.echo(clean(f"#{place.issue} is {place.status} in {place.series}{position}"))
    elif place is not None and place.status == "left":
        click.echo(clean(f"#{place.issue} is closed: it is no longer in {place.series}"))
    elif observed if place is None else place.status == "observed":
        click.echo("nothing was claimed or assigned: this is what a sync would do")


def _exit_code(report: SyncReport, place: _IssuePlace | None) -> int:
    statuses = {series.status for series in report.series}
    for status, code in EXIT_CODES.items():
        if status in statuses:
            return code
    if report.mode == "observe" and "no view" in statuses:  # the view was all there was to do
        return EXIT_UNAVAILABLE
    return EXIT_QUEUED if place is not None and place.status in ("queued", "observed") else 0


# -- webhook -----------------------------------------------------------------------------------------------------------


_delivery_options = options(
    option(
        "--secret-file FILE",
        "A file with the webhook's secret; default: $GITHUB_WEBHOOK_SECRET.",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
    ),
    duration_option("--every", "10m", positive=True, help="The interval of syncs of all series."),
)

webhook_options = options(optional_service_options, _delivery_options)
"""The options of the webhook of ``asterism serve``."""


@click.command()
@service_options
@option("--listen HOST:PORT", "The address to listen on; port 0 for a free one.", default="127.0.0.1:8974")
@_delivery_options
@option("--tls-cert", "The TLS certificate, with its chain.", type=click.Path(exists=True, dir_okay=False))
@option("--tls-key", "The key of the certificate.", type=click.Path(exists=True, dir_okay=False))
@option("--behind-proxy", "A proxy does TLS: allow other machines to connect without it.")
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


class WebhookSettings(Record):
    """The options of a webhook: ``service`` are those of its syncs, ``every`` is their interval in seconds."""

    service: dict[str, Any]
    every: float
    secret: bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.service!r}, {self.every!r}, …)"

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
    variable = "GITHUB_WEBHOOK_SECRET"
    text = file.read_text("utf-8") if file is not None else taken_from_environment(variable)
    needs = f"The webhook needs a secret of at least {MIN_SECRET} characters:"
    return webhook_secret(text, f"{needs} set ${variable}, or give --secret-file.")


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
