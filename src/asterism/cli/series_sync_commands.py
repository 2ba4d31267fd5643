"""``asterism series sync``: what the open issues of a repository say becomes the state, and the state is assigned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asterism.cli.cli_context import json_option, options, run_command, tell_json, whoami
from asterism.cli.series_context import (
    CONTENDED,
    OUT_OF_REACH,
    QUEUED,
    UNREADABLE,
    UNUSABLE,
    dry_run_option,
    fit_to_print,
    github_register,
    issue_number,
    login,
    trying_options,
)

if TYPE_CHECKING:
    from asterism.series.github.sync import SyncService, SyncSettings
    from asterism.series.github.sync_report import SyncReport

CODES = {
    "unmatched": UNUSABLE,
    "unassignable": UNUSABLE,
    "unreadable": UNREADABLE,
    "unavailable": OUT_OF_REACH,
    "contended": CONTENDED,
}
"""The worst comes first."""


_WHAT = options(
    click.option(
        "--github",
        "repository",
        metavar="ORG/REPO",
        envvar="GITHUB_REPOSITORY",
        required=True,
        help="The repository; $GITHUB_REPOSITORY if left out.",
    ),
    click.option(
        "--assign",
        "assignee",
        type=login,
        metavar="LOGIN",
        envvar="ASTERISM_SERIES_ASSIGNEE",
        required=True,
        help="Whom the active issue is assigned to, such as copilot-swe-agent; $ASTERISM_SERIES_ASSIGNEE.",
    ),
    click.option(
        "--mode",
        type=click.Choice(["observe", "enforce", "announce"]),
        default="enforce",
        show_default=True,
        help="Only write the tracking issues; assign too; comment on promotions too.",
    ),
)
"""Which repository, whom to assign, and how far to go."""

_SERIES = options(
    click.option("--series", "names", multiple=True, metavar="NAME", help="Only this series; may be repeated."),
    click.option("--pattern", metavar="REGEX", help="How titles name series, with (?P<series>…) and (?P<micro>…)."),
    click.option("--label-pattern", metavar="REGEX", help="How labels name series."),
    click.option("--label", metavar="NAME", help="Only issues with this label belong to series."),
    click.option(
        "--assign-with",
        "way",
        type=click.Choice(["auto", "rest", "graphql"]),
        default="auto",
        show_default=True,
        help="How to assign: bots by GraphQL and people by REST, or as said.",
    ),
)
"""Which series, and how they are found."""

_ON_ISSUES = options(
    click.option(
        "--active-label",
        is_flag=False,
        flag_value="series-active",
        metavar="[NAME]",
        help="Put this label on active issues, series-active if no name is given.",
    ),
    click.option(
        "--queued-label",
        is_flag=False,
        flag_value="series-queued",
        metavar="[NAME]",
        help="Put this label on issues that wait, series-queued if no name is given.",
    ),
    click.option(
        "--respect-unassign",
        is_flag=True,
        help="Pause a series whose active issue a person unassigns. Otherwise it is assigned again.",
    ),
)
"""What stands on the issues themselves, and what people say there."""

_TERMS = options(
    click.option("--no-view", is_flag=True, help="Keep no tracking issues."),
    click.option(
        "--metrics",
        type=click.Path(dir_okay=False, path_type=Path),
        is_flag=False,
        flag_value=Path("assignment_mutex_metrics.json"),
        metavar="[FILE]",
        help="Write the figures as JSON, to assignment_mutex_metrics.json if no file is named.",
    ),
    click.option(
        "--prometheus",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write them as text for Prometheus too.",
    ),
    click.option(
        "--cache",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Keep what is known in this file: what has not changed is then free.",
    ),
    trying_options,
)
"""What is written beside, and how long to try."""

service_options = options(_WHAT, _SERIES, _ON_ISSUES, _TERMS)
"""What ``sync`` and ``serve`` take."""


@click.command(short_help="Bring the series of a repository on GitHub in step.")
@service_options
@click.option(
    "--issue", type=issue_number, metavar="NUMBER", help="Only the series of this issue, and how it stands there."
)
@dry_run_option
@json_option
def sync(issue: int | None, dry_run: bool, as_json: bool, **said: Any) -> int:
    """Bring the series of a repository on GitHub in step with its issues.

    Who is closed leaves, who is new is queued, the next one is promoted, assigned and read back, and the tracking
    issues show it. It may be run as often as you like, and by many at once.

    Exits with 0 if all is in step. With --issue: with 0 if it is the active one, of no series, or closed, with 75 if it
    waits or if this only observes, which claims nothing. With 76 if others were first at every try, 64 if the assignee
    cannot be assigned or these patterns and labels find nothing where others keep series, 65 if a state is of a later
    version, 69 if GitHub is out of reach or, where the tracking issues are all there is to do, they could not be
    written."""
    return run_interruptible(_synced(said, issue, dry_run, as_json))


async def _synced(said: dict[str, Any], issue: int | None, dry_run: bool, as_json: bool) -> int:
    from asterism.series.register import RegisterUnavailable, OutcomeUnknown

    service = opened(said, dry_run=dry_run)
    try:
        only = await _only(service, issue)
        report = await service.sync(only)
        observed = not service.settings.acts
    except (RegisterUnavailable, OutcomeUnknown) as error:
        if as_json:
            print_json({"status": "unavailable", "error": str(error)})
        click.echo(f"Error: {error}", err=True)
        return OUT_OF_REACH
    finally:
        await service.register.close()
    standing = _standing(report, issue, only, observed) if issue is not None else None
    _tell(report, standing or ({"status": "observed"} if observed else {}), said["names"], as_json)
    if not dry_run:
        write_figures(service, said)
    return _code(report, standing)


def write_figures(service: SyncService, said: dict[str, Any]) -> None:
    """If they cannot be written that is told, and nothing else: what was done is done, and is not to be made again."""
    try:
        service.metrics.write(said["metrics"], said["prometheus"])
    except OSError as error:
        click.echo(f"the figures cannot be written: {error}", err=True)


def opened(said: dict[str, Any], *, dry_run: bool = False, waits: bool = True) -> SyncService:
    """The service that the options describe; one that ``waits`` does so while others assign."""
    register = github_register(said["repository"], said["deadline"], said["cache"], keep=not dry_run)
    from asterism.series.github.sync import SyncService

    service = SyncService(register, _settings_of(said, dry_run, waits))
    if said["metrics"] is not None:
        service.metrics.recall(said["metrics"])
    return service


def _settings_of(said: dict[str, Any], dry_run: bool, waits: bool) -> SyncSettings:
    from asterism.series.compare_and_swap import RetryOptions
    from asterism.series.github.discovery import LABEL_PATTERN, TITLE_PATTERN
    from asterism.series.github.sync import LOCK_DEADLINE, SyncSettings

    return SyncSettings(
        said["assignee"],
        said["mode"],
        said["pattern"] or TITLE_PATTERN,
        said["label_pattern"] or LABEL_PATTERN,
        said["label"],
        said["way"],
        frozenset(said["names"]) or None,
        said["by"] or current_user(),
        not said["no_view"],
        dry_run,
        lock_deadline=(said["deadline"] or LOCK_DEADLINE) if waits else 0.0,
        deadline=said["deadline"],
        patience=RetryOptions(tries=said["tries"], deadline=said["deadline"]),
        active_label=said["active_label"],
        queued_label=said["queued_label"],
        respect_unassign=said["respect_unassign"],
    )


async def _only(service: SyncService, issue: int | None) -> frozenset[str] | None:
    """All if no issue is named, none if the one that is belongs to none of those that are meant."""
    from asterism.series.github.github_client import RequestRejected

    if issue is None:
        return None
    try:
        name = await service.series_of(issue)
    except RequestRejected as refused:
        raise click.ClickException(f"issue #{issue} cannot be read: {refused}") from None
    meant = service.settings.only
    return frozenset({name}) if name is not None and (meant is None or name in meant) else frozenset()


def _standing(report: SyncReport, issue: int, only: frozenset[str] | None, observed: bool) -> dict[str, Any]:
    """How one issue stands: claimed, queued, not in the series (any more), for it is closed, or in none that is meant.
    Who only observes gives nobody anything, so then it is none of these."""
    one = report.series[0] if report.series else None
    position = one.state.position(issue) if one else None
    status = "left" if position is None else "claimed" if position == 0 else "queued"
    if observed:
        status = "observed"
    if one is not None and one.status in CODES:
        status = one.status
    if not only or (one is not None and one.left_alone is not None):
        status = "none"
    return {
        "status": status,
        "issue": issue,
        "series": next(iter(only or ()), None),
        "active": one.state.active if one else None,
        "position": position,
    }


def _tell(report: SyncReport, standing: dict[str, Any], meant: Sequence[str], as_json: bool) -> None:
    """What is wrong goes to standard error alone. ``meant`` are the series that were named, if any were."""
    for one in report.series:
        if one.problem:
            click.echo(fit_to_print(f"series {one.name}: {one.problem}"), err=True)
    if as_json:
        print_json({**standing, "sync": report.to_json()})
        return
    status, issue = standing.get("status"), standing.get("issue")
    if status == "none":
        click.echo(f"#{issue} belongs to no series that is meant here: neither its title nor a label names one")
        return
    for one in report.series:
        for line in one.lines(problem=False):
            click.echo(fit_to_print(line))
    for line in report.observations():
        click.echo(fit_to_print(line))
    if not report.series:
        click.echo(fit_to_print(f"no open issue belongs to {' or '.join(meant) or 'a series'}"))
    if status in ("claimed", "queued"):
        place = "" if status == "claimed" else f", number {standing['position']} in the queue"
        click.echo(f"#{issue} is {status} in {standing['series']}{place}")
    elif status == "left":
        click.echo(f"#{issue} is closed: it is not in {standing['series']} any more")
    elif status == "observed":
        click.echo("nothing was claimed or assigned: this is only what would be")


def _code(report: SyncReport, standing: dict[str, Any] | None) -> int:
    found = {one.status for one in report.series}
    for status, code in CODES.items():
        if status in found:
            return code
    if report.mode == "observe" and "no view" in found:  # the view is all that there was to do
        return OUT_OF_REACH
    return QUEUED if standing is not None and standing["status"] in ("queued", "observed") else 0
