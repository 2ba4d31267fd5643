"""``asterism series``: the commands that claim, show, change and repair series."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from asterism.api.series_operations import (
    LONGEST_WAIT,
    ClaimSeries,
    FrontSeries,
    PauseSeries,
    PromoteSeries,
    RebuildSeries,
    ReleaseSeries,
    ResumeSeries,
    TakeNextIssue,
)
from asterism.base.text import clean
from asterism.cli.cli_context import CommandGroup, note, print_json, refuse_options
from asterism.cli.option_types import duration_option, number_option, option
from asterism.cli.series.series_context import (
    EXIT_QUEUED,
    EXIT_UNREADABLE,
    RegisterSeries,
    SeriesOptions,
    SeriesPlace,
    SeriesView,
    active_now,
    change_options,
    describe_active,
    describe_issue,
    describe_queue,
    history_json,
    holding_options,
    issue_number,
    login,
    metrics_option,
    no_such_series,
    outcome_of,
    print_outcome,
    register_options,
    run_change,
    with_series,
)
from asterism.cli.series.series_sync_commands import serve, sync

if TYPE_CHECKING:
    from asterism.api.documents import NextIssue
    from asterism.core.series.machine import Live
    from asterism.series.claims import Claim
    from asterism.series.compare_and_swap import Outcome
    from asterism.series.register import SeriesRegister


name_argument = click.argument("name", metavar="SERIES")
issue_option = option("--issue NUMBER", "The number of the issue.", type=issue_number, required=True)


@click.group(cls=CommandGroup)
def series() -> None:
    """Keep one issue of a series active: claim, status, release and more."""


@series.command()
@name_argument
@issue_option
@duration_option("--lease", help="Release it after this time, unless it is renewed.")
@option("--renew", "If the issue is already active, start its lease again.")
@option("--force", "Claim an issue whose title names another series; the state records it.")
@option("--assign LOGIN", "With --github: assign it too if it is active.", to="assignee", type=login)
@holding_options("Whose the claim is: another name gets 75. Without it the claim is nobody's.")
@metrics_option
def claim(
    name: str, issue: int, lease: float | None, renew: bool, force: bool, assignee: str | None, **option_values: Any
) -> int:
    """Make an issue the active one of its series, or queue it.

    With --github the command reads the issue and the active one. If the active one is closed, transferred or deleted,
    it leaves the series, so that no issue waits behind it. An issue whose title or labels name another series is
    refused, unless you give --force. With --assign an issue that is active is also assigned, and that is verified.

    With --by the active issue belongs to that name until it is released: the same name again gets 0, another one 75.

    Exits with 0 if the issue is active, even if it was before; with 75 if it waits or another name holds it; with 76 if
    other writers won every try, and nothing was written; with --github also with 64 if the issue does not exist, is
    closed or belongs to another series, and nothing was written. With --assign also with 64 if the login cannot be
    assigned, and with 76 if other processes assign in the series: then the issue is active, and the same command
    assigns it."""
    _check_lease(lease, renew)
    options = SeriesOptions.of(option_values)
    if assignee is not None and options.github is None:
        raise click.UsageError("--assign needs --github, the repository of the issue.")
    if force and options.github is None and options.remote is None:
        raise click.UsageError("--force has no effect on a series in a store, which knows no titles.")
    request = ClaimSeries(name, issue, lease, renew, options.holder, **options.request_fields)
    left: dict[str, str] = {}

    async def use(place: SeriesPlace) -> int:
        make = None
        if isinstance(place, RegisterSeries):
            make = _claim_elsewhere(place.register, options, force, assignee, left)
        document = await place.change(request, make)
        outcome = outcome_of(document)
        active = outcome.after.active == issue
        held = active and outcome.after.is_held_from(options.holder)
        if not options.as_json:
            for number, reason in left.items():
                click.echo(f"#{number} {options.verb('left', 'leave')} {name}: {reason}")
            describe = _held if held else _claimed if active else _queued
            click.echo(clean(describe(outcome, issue, options, document.now)))
        if active and not held and assignee is not None and isinstance(place, RegisterSeries):
            await _assign(place.register, name, issue, assignee, options)
        if options.as_json:
            status = "held" if held else "claimed" if active else "queued"
            more = {} if assignee is None else {"assigned": active and not held and not options.dry_run}
            position = outcome.after.position(issue)
            print_outcome(outcome, options, status=status, issue=issue, position=position, left=left, **more)
        elif active and not held and assignee is not None:
            click.echo(clean(f"{options.verb('assigned', 'assign')} #{issue} to {assignee.removeprefix('@')}"))
        return 0 if active and not held else EXIT_QUEUED

    return with_series(options, use, create=True)


def _claim_elsewhere(
    register: Any, options: SeriesOptions, force: bool, assignee: str | None, left: dict[str, str]
) -> Any:
    """What claims on GitHub, or on a git remote by force; None for a plain claim. ``left`` gets the issues that leave,
    and why."""
    if options.github is None and not force:
        return None
    from asterism.series.claims import Claim
    from asterism.series.claims import claim as claim_series

    async def make(target: SeriesRegister, request: ClaimSeries, by: str, **limits: Any) -> Outcome:
        wanted = Claim(request.issue, by, request.lease, request.renew, force, request.reason, request.holder)
        if options.github is None:
            return await claim_series(target, request.series, wanted, **limits)
        from asterism.series.github.issue_claims import IssueClaims

        claims = IssueClaims(register.client, assignee)
        outcome = await claims.claim(target, request.series, wanted, **limits)
        left.update({str(number): str(reason) for number, reason in claims.left.items()})
        return outcome

    return make


def _check_lease(lease: float | None, renew: bool) -> None:
    from asterism.core.series.machine import LONGEST_LEASE, SHORTEST_LEASE

    if lease is not None and lease < SHORTEST_LEASE:
        raise click.UsageError(f"A lease takes at least {SHORTEST_LEASE:g} s.")
    if lease is not None and lease > LONGEST_LEASE:
        raise click.UsageError(
            f"A lease takes at most {LONGEST_LEASE / 86_400:g} days; without --lease the claim has no end."
        )
    if renew and lease is None:
        raise click.UsageError("--renew needs --lease, the time until the lease ends.")


async def _assign(register: Any, name: str, issue: int, assignee: str, options: SeriesOptions) -> None:
    """Assign the claimed issue, except in a dry run."""
    from asterism.series.github.issue_claims import assign_claimed
    from asterism.series.github.series_sync import LOCK_DEADLINE, SyncSettings

    if not options.dry_run:
        lock_deadline = options.deadline or LOCK_DEADLINE
        settings = SyncSettings(assignee, by=options.by, retry=options.retry, lock_deadline=lock_deadline)
        await assign_claimed(register, name, issue, settings)


def _held(outcome: Outcome, issue: int, options: SeriesOptions, now: float) -> str:
    from asterism.base.durations import format_age

    after = outcome.after
    return f"#{issue} of {after.name} belongs to {after.holder}, for {format_age(now - (after.held_since or now))}"


def _claimed(outcome: Outcome, issue: int, options: SeriesOptions, now: float) -> str:
    after = outcome.after
    if not outcome.changed:
        return f"#{issue} already holds {after.name} (revision {after.revision})"
    if outcome.before.active == issue and outcome.before.lease_until == after.lease_until and issue in after.forced:
        return f"{options.verb('forced', 'force')} #{issue} into {after.name} (revision {after.revision})"
    if outcome.before.active == issue and outcome.before.since == after.since and outcome.before.holder == after.holder:
        new = outcome.before.lease_until is None
        verb = options.verb("set", "set") if new else options.verb("renewed", "renew")
        return f"{verb} the lease of #{issue} on {after.name} (revision {after.revision})"
    return f"{options.verb('claimed', 'claim')} {after.name} for #{issue} (revision {after.revision})"


def _queued(outcome: Outcome, issue: int, options: SeriesOptions, now: float) -> str:
    after = outcome.after
    place = after.queue.index(issue) + 1
    ahead = f"behind {describe_active(after, now)}" if after.active is not None else "with no active issue"
    paused = f" (paused {after.paused})" if after.paused is not None else ""
    verb = options.verb("queued", "queue") if outcome.changed else "waiting:"
    return f"{verb} #{issue} in {after.name} {ahead}; it is number {place} of {len(after.queue)} in the queue{paused}"


@series.command()
@click.argument("name", metavar="[SERIES]", required=False)
@register_options
def status(name: str | None, **option_values: Any) -> int:
    """Show the active issue, the queue, and since when.

    Without a name it shows all series in a table. Exits with 65 if the named series cannot be read; a series that does
    not exist is free."""
    options = SeriesOptions.of(option_values)

    async def use(place: SeriesPlace) -> int:
        from asterism.cli.series.series_views import SERIES_TABLE, status_lines
        from asterism.cli.tables import print_lines

        if name is None:
            page = await place.all()
            views, now = [SeriesView.of(document) for document in page.items], page.now or 0.0
            if options.as_json:
                print_json({"series": [view.to_json(now) for view in views]})
            elif views:
                print_lines(lambda width: SERIES_TABLE.lines(views, now, width))
            else:
                note(f"There is no series in {place.url} yet: the first claim creates one.")
            return 0
        document, now = await place.show(name)
        view = SeriesView.of(document) if document is not None else SeriesView.unused(name)
        if options.as_json:
            print_json({**view.to_json(now), "exists": document is not None})
        elif document is None:
            note(f"Series {name} does not exist in {place.url} yet: the first claim creates it.")
        else:
            print_lines(lambda width: status_lines(view, now))
        return EXIT_UNREADABLE if view.series is None else 0

    return with_series(options, use, create=False)


@series.command(short_help="Take an issue out of its series, and promote the next one.")
@name_argument
@issue_option
@option("--no-promote", "Leave the series without an active issue, even if issues wait.")
@holding_options("Release it only if no other name holds it. Without it anybody's claim is released.")
@metrics_option
def release(name: str, issue: int, no_promote: bool, **option_values: Any) -> int:
    """Take an issue out of its series, and make the next one of the queue active.

    An issue that is not in the series changes nothing. Exits with 75 if another name than that of --by holds it."""
    options = SeriesOptions.of(option_values)
    request = ReleaseSeries(name, issue, not no_promote, options.holder, **options.request_fields)

    async def use(place: SeriesPlace) -> int:
        document = await place.change(request)
        outcome = outcome_of(document)
        held = outcome.after.active == issue and outcome.after.is_held_from(options.holder)
        if options.as_json:
            status = "held" if held else "released" if outcome.changed else "unchanged"
            print_outcome(outcome, options, status=status, issue=issue)
        elif held:
            click.echo(clean(f"{_held(outcome, issue, options, document.now)}; without --by it is released anyway"))
        elif outcome.token is None:
            click.echo(clean(no_such_series(name, place)))
        elif not outcome.changed:
            click.echo(clean(f"#{issue} is not in {name}"))
        else:
            verb = options.verb("released", "release")
            click.echo(clean(f"{verb} #{issue} from {name}; {active_now(outcome, options)}"))
        return EXIT_QUEUED if held else 0

    return with_series(options, use, create=False)


@series.command(short_help="Take the next issue that one may have.")
@click.argument("name", metavar="[SERIES]", required=False)
@duration_option("--lease", help="Release it after this time, unless it is renewed.")
@option("--wait", "Wait for a turn while others hold issues; --deadline limits it.")
@holding_options("Who takes it; give each worker a name of its own. Required.")
def next_issue(name: str | None, lease: float | None, wait: bool, **option_values: Any) -> int:
    """Take the next issue that one may have: in a series, or in the first series that has one.

    This is an issue that this name holds already; or an active issue that nobody has claimed since its promotion; or
    the head of the queue, if no issue is active. A paused series has none.

    Exits with 0 if this name holds an issue now; with 75 if others hold them, or no issue is left."""
    _check_lease(lease, False)
    options = SeriesOptions.of(option_values)
    if options.holder is None:
        raise click.UsageError("Give --by NAME: whose the issue will be.")
    holder = options.holder

    async def use(place: SeriesPlace) -> int:
        end = None if options.deadline is None else time.monotonic() + options.deadline
        while True:
            left = LONGEST_WAIT if end is None else max(0.0, min(LONGEST_WAIT, end - time.monotonic()))
            request = TakeNextIssue(holder, name, lease, left if wait else 0.0, **options.request_fields)
            taken = await place.take_next(request, _next_elsewhere(place))
            if taken.issue is not None or not taken.others or not wait or left < LONGEST_WAIT:
                break
        if options.as_json:
            print_json(_next_json(taken))
        else:
            for line in _next_lines(taken, name, options):
                click.echo(clean(line))
        return EXIT_QUEUED if taken.issue is None else 0

    return with_series(options, use, create=False)


def _next_elsewhere(place: SeriesPlace) -> Any:
    """What claims on GitHub; None elsewhere."""
    client = getattr(place.register, "client", None) if isinstance(place, RegisterSeries) else None
    if client is None:
        return None

    async def make(target: SeriesRegister, name: str, wanted: Claim, **limits: Any) -> Outcome:
        from asterism.series.github.issue_claims import IssueClaims

        return await IssueClaims(client).claim(target, name, wanted, **limits)

    return make


def _next_json(taken: NextIssue) -> Any:
    views = [SeriesView.of(document) for document in taken.others]
    status = "taken" if taken.issue is not None else "held" if views else "empty"
    state = None if taken.series is None else SeriesView.of(taken.series).to_json(taken.now)
    return {
        "status": status,
        "series": None if taken.series is None else taken.series.name,
        "issue": taken.issue,
        "changed": taken.changed,
        "state": state,
        "others": [view.to_json(taken.now) for view in views],
    }


def _next_lines(taken: NextIssue, name: str | None, options: SeriesOptions) -> list[str]:
    if taken.series is not None:
        verb = options.verb("took", "take") if taken.changed else "already holds"
        return [f"{options.holder} {verb} #{taken.issue} of {taken.series.name}"]
    if not taken.others:
        return [f"there is no issue in {name or 'any series'}"]
    lines = [f"no issue for {options.holder} now:"]
    for view in map(SeriesView.of, taken.others):
        if view.series is None:
            lines.append(f"  {view.name}: {view.problem}")
        else:
            why = f"paused {view.series.paused}" if view.series.paused else describe_active(view.series, taken.now)
            lines.append(f"  {view.name}: {why}")
    return lines


@series.command()
@name_argument
@change_options
def promote(name: str, **option_values: Any) -> int:
    """Make the first issue of the queue active, if no issue is.

    This also ends an expired lease. A paused series stays without an active issue."""
    options = SeriesOptions.of(option_values)

    def describe(outcome: Outcome) -> str:
        after = outcome.after
        if outcome.changed and outcome.promoted is not None:
            return f"{options.verb('promoted', 'promote')} #{outcome.promoted} in {name} (revision {after.revision})"
        if outcome.changed:
            return f"{options.verb('ended', 'end')} the lease of #{outcome.before.active} on {name}; the queue is empty"
        if after.active is not None:
            return f"nothing to promote: #{after.active} is active in {name}"
        return f"nothing to promote: {name} is {f'paused {after.paused}' if after.paused else 'empty'}"

    return run_change(options, PromoteSeries(name, **options.request_fields), describe)


@series.command()
@name_argument
@change_options
def pause(name: str, **option_values: Any) -> int:
    """Promote no issue of a series until it is resumed.

    The active issue stays active, and claims are queued. `series status` shows the reason."""
    options = SeriesOptions.of(option_values)

    def describe(outcome: Outcome) -> str:
        if not outcome.changed:
            return f"{name} is already paused {outcome.after.paused}"
        active = outcome.after.active
        stays = f"; #{active} stays active" if active is not None else ""
        return f"{options.verb('paused', 'pause')} {name}{stays} (revision {outcome.after.revision})"

    return run_change(options, PauseSeries(name, **options.request_fields), describe)


@series.command(short_help="End a pause, and promote the first issue of the queue.")
@name_argument
@change_options
def resume(name: str, **option_values: Any) -> int:
    """End a pause, and make the first issue of the queue active if no issue is."""
    options = SeriesOptions.of(option_values)

    def describe(outcome: Outcome) -> str:
        if not outcome.changed:
            return f"{name} is not paused"
        return f"{options.verb('resumed', 'resume')} {name}; {active_now(outcome, options)}"

    return run_change(options, ResumeSeries(name, **options.request_fields), describe)


@series.command()
@name_argument
@issue_option
@change_options
def front(name: str, issue: int, **option_values: Any) -> int:
    """Move a waiting issue to the head of the queue.

    Exits with 64 if the issue is not in the queue."""
    options = SeriesOptions.of(option_values)

    def describe(outcome: Outcome) -> str:
        if outcome.changed:
            verb = options.verb("moved", "move")
            return f"{verb} #{issue} to the head of the queue of {name} (revision {outcome.after.revision})"
        return f"#{issue} is {'active in' if outcome.after.active == issue else 'at the head of the queue of'} {name}"

    return run_change(options, FrontSeries(name, issue, **options.request_fields), describe)


@series.command()
@name_argument
@option("--issue NUMBER", "An open issue; repeat it, in order.", to="issues", type=issue_number, multiple=True)
@option("--active NUMBER", "The issue that is being worked on.", type=issue_number)
@option("--empty", "No issue is open.")
@option("--pattern REGEX", "With --github: the title pattern, as for sync.")
@option("--label-pattern REGEX", "With --github: the label pattern, as for sync.")
@option("--label NAME", "Only issues with this label belong to series.")
@option("--assign LOGIN", "The login that series assign.", to="assignee", type=login, envvar="ASTERISM_SERIES_ASSIGNEE")
@change_options
def rebuild(
    name: str,
    issues: tuple[int, ...],
    active: int | None,
    empty: bool,
    pattern: str | None,
    label_pattern: str | None,
    label: str | None,
    assignee: str | None,
    **option_values: Any,
) -> int:
    """Write the state of a series again from its open issues.

    With --github the command reads them from GitHub; otherwise name them in order with --issue. The active issue stays
    active if it is open. Use this to repair a state that cannot be read."""
    options = SeriesOptions.of(option_values)
    named = bool(issues or active is not None or empty)
    if options.github is None and not named:
        raise click.UsageError("Name the open issues in order with --issue, or give --empty.")
    if named:
        why = "has no effect here: it is for issues that the command reads from GitHub, and they are given."
        refuse_options(why, "pattern", "label_pattern", "label", "assignee")
    if empty and (issues or active is not None):
        raise click.UsageError("--empty excludes --issue and --active.")
    request = RebuildSeries(name, list(issues), active, **options.request_fields)

    async def make(register: Any) -> Any:
        """What rebuilds on GitHub, which knows the open issues and the last revision."""
        from asterism.series.claims import live_issues, rebuilt, signed
        from asterism.series.compare_and_swap import update

        live: list[Live] = live_issues(issues, active)
        if not named:
            live = await _open_issues(register, name, pattern, label_pattern, label, assignee)
        step = partial(rebuilt, live=live, active=active, revision=await _recorded_revision(register, name))
        why = f" ({options.reason})" if options.reason else ""

        async def rebuild(target: SeriesRegister, request: RebuildSeries, by: str, **limits: Any) -> Outcome:
            return await update(target, name, step, signed(f"rebuild{why}", by), repair=True, **limits)

        return rebuild

    def describe(outcome: Outcome) -> str:
        after = outcome.after
        verb = options.verb("rebuilt", "rebuild") if outcome.changed else "nothing to rebuild in"
        queue = f"the queue is {describe_queue(after.queue)}" if after.queue else "the queue is empty"
        return f"{verb} {name}: {describe_issue(after.active)} is active, {queue} (revision {after.revision})"

    return run_change(options, request, describe, make if options.github is not None else None)


async def _open_issues(
    register: Any, name: str, pattern: str | None, label_pattern: str | None, label: str | None, assignee: str | None
) -> list[Live]:
    """The open issues of a series on GitHub. Raises CannotRebuild."""
    from asterism.core.series.machine import Series
    from asterism.series.github.discovery import LABEL_PATTERN, TITLE_PATTERN, Assignee, SeriesMatcher
    from asterism.series.github.observed_state import IssueObserver

    known = Assignee(assignee) if assignee else None
    matcher = SeriesMatcher(pattern or TITLE_PATTERN, label_pattern or LABEL_PATTERN, known, label)
    observer = IssueObserver(register.client, matcher)
    observer.note_forced([Series.salvaged((await register.read(name)).text, name)])
    return await observer.live_issues(name, known is not None)


async def _recorded_revision(register: Any, name: str) -> int:
    """The last revision that the tracking record on GitHub knows."""
    from asterism.series.github.github_register import GitHubRegister
    from asterism.series.github.tracking_issue import LastKnown, TrackingRecord

    seen = await GitHubRegister(register.client, "tracking").read(name)
    return LastKnown.of(TrackingRecord.parse(seen.text, name)).revision


@series.command()
@name_argument
@number_option("--limit", 20, least=1, help="Maximum number of changes.")
@register_options
def history(name: str, limit: int, **option_values: Any) -> int:
    """Show the last changes of a series, newest first."""
    options = SeriesOptions.of(option_values)

    async def use(place: SeriesPlace) -> int:
        from asterism.cli.series.series_views import changes_table
        from asterism.cli.tables import print_lines

        changes = await place.history(name, limit)
        if options.as_json:
            print_json(history_json(name, changes))
        elif changes:
            print_lines(lambda width: changes_table(changes, width))
        else:
            note(f"Series {name} has no changes yet.")
        return 0

    return with_series(options, use, create=False)


series.add_command(sync)
series.add_command(serve)
