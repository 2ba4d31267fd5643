"""``asterism series``: at most one active issue in each series, whoever assigns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from asterism.cli.cli_context import note, print_json
from asterism.cli.option_types import duration
from asterism.cli.series_context import (
    QUEUED,
    UNREADABLE,
    Terms,
    change_options,
    fit_to_print,
    issue_number,
    legible,
    login,
    place_options,
    taken_from,
    with_register,
)
from asterism.cli.series_context import attempt, make_change, now_active, nowhere, tell_outcome, would
from asterism.cli.series_sync_commands import serve
from asterism.cli.series_sync_commands import sync

if TYPE_CHECKING:
    from asterism.cli.series_views import Looked
    from asterism.core.series.machine import Live, Series
    from asterism.series.compare_and_swap import Outcome
    from asterism.series.github.observed_state import Departure
    from asterism.series.register import SeriesRegister, Snapshot


name_argument = click.argument("name", metavar="SERIES")
issue_option = click.option(
    "--issue", type=issue_number, required=True, metavar="NUMBER", help="The issue that is meant."
)


@click.group()
def series() -> None:
    """One active issue per series: claim, status, release and more."""


@series.command()
@name_argument
@issue_option
@click.option("--lease", type=duration, metavar="DURATION", help="It is free again after that, unless it is renewed.")
@click.option("--renew", is_flag=True, help="If it is active already, its lease begins anew.")
@change_options
def claim(name: str, issue: int, lease: float | None, renew: bool, **said: Any) -> int:
    """Make an issue the active one of its series, or queue it.

    With --github the issue is looked at, and so is the active one: if that is closed, transferred or deleted it leaves,
    and nobody waits behind it.

    Exits with 0 if it is active, also if it was before; with 75 if it waits for its turn; with 76 if others were first
    at every try, and nothing was written; with --github also with 64 if there is no such issue, or it is closed, and
    nothing was written."""
    from asterism.core.series.machine import LONGEST_LEASE, SHORTEST_LEASE
    from asterism.series.compare_and_swap import Claim
    from asterism.series.compare_and_swap import claim as claimed

    if lease is not None and lease < SHORTEST_LEASE:
        raise click.UsageError("A lease is longer than nothing.")
    if lease is not None and lease > LONGEST_LEASE:
        raise click.UsageError(f"A lease is {LONGEST_LEASE / 86_400:g} days at most; without --lease it has no end.")
    if renew and lease is None:
        raise click.UsageError("--renew takes --lease: for how long?")
    given = taken_from(said)
    terms = given.terms
    wanted = Claim(issue, terms.by, lease, renew)

    async def use(register: SeriesRegister) -> int:
        make, left = _claims(register) if given.place.github is not None else (claimed, {})
        outcome = await attempt(register, terms, make, name, wanted)
        active = outcome.after.active == issue
        gone = {str(number): str(fate) for number, fate in left.items()}
        if given.as_json:
            status = "claimed" if active else "queued"
            place = outcome.after.position(issue)
            tell_outcome(outcome, terms, status=status, issue=issue, position=place, left=gone)
            return 0 if active else QUEUED
        for number, fate in gone.items():
            click.echo(f"#{number} {would(terms, 'has left', 'leave')} {name}: it is {fate}")
        if active:
            click.echo(fit_to_print(_claimed(outcome, issue, terms)))
        else:
            click.echo(fit_to_print(_queued(outcome, issue, terms, register.clock())))
        return 0 if active else QUEUED

    return with_register(given, use, create=True)


def _claims(register: Any) -> tuple[Callable[..., Awaitable[Outcome]], dict[int, Departure]]:
    """How to claim in a repository on GitHub, and where it is noted who has left."""
    from asterism.series.github.issue_claims import IssueClaims

    claims = IssueClaims(register.client)
    return claims.claim, claims.left


def _claimed(outcome: Outcome, issue: int, terms: Terms) -> str:
    after = outcome.after
    if not outcome.changed:
        return f"{after.name} is #{issue}'s already (revision {after.revision})"
    if outcome.before.active == issue and outcome.before.since == after.since:
        what = would(terms, "set", "set") if outcome.before.lease_until is None else would(terms, "renewed", "renew")
        return f"{what} the lease of #{issue} on {after.name} (revision {after.revision})"
    return f"{would(terms, 'claimed', 'claim')} {after.name} for #{issue} (revision {after.revision})"


def _queued(outcome: Outcome, issue: int, terms: Terms, now: float) -> str:
    from asterism.cli.series_views import holder

    after = outcome.after
    place = after.queue.index(issue) + 1
    ahead = f"behind {holder(after, now)}" if after.active is not None else "with nobody active"
    waits = f" (paused {after.paused})" if after.paused is not None else ""
    what = would(terms, "queued", "queue") if outcome.changed else "waits:"
    return f"{what} #{issue} in {after.name} {ahead}; it is number {place} of {len(after.queue)} in the queue{waits}"


@series.command()
@click.argument("name", metavar="[SERIES]", required=False)
@place_options
def status(name: str | None, **said: Any) -> int:
    """Show who is active, who waits, since when and why.

    Without the name of a series: all of them, in a table. Exits with 65 if the series that is named cannot be read;
    one that is not there is free."""
    given = taken_from(said)

    async def use(register: SeriesRegister) -> int:
        from asterism.cli.screen import print_lines
        from asterism.cli.series_views import status_json, status_lines, status_table
        from asterism.series.register import read_all

        seen = {name: await register.read(name)} if name is not None else await read_all(register)
        found = [_looked(one, snapshot) for one, snapshot in seen.items()]
        now = register.clock()
        if given.as_json:
            told = [status_json(one, now) for one in found]
            print_json({"series": told} if name is None else {**told[0], "exists": seen[name].token is not None})
        elif name is not None and seen[name].token is None:
            note(f"There is no series {name} in {register.url} yet: the first claim makes it.")
        elif name is not None:
            print_lines(lambda width: status_lines(found[0], now))
        elif found:
            print_lines(lambda width: status_table(found, now, width))
        else:
            note(f"There is no series in {register.url} yet: the first claim makes one.")
        return UNREADABLE if name is not None and found[0].series is None else 0

    return with_register(given, use, create=False)


def _looked(name: str, seen: Snapshot) -> Looked:
    from asterism.cli.series_views import Looked
    from asterism.core.series.machine import Series, UnreadableSeries

    try:
        return Looked(name, Series.from_text(seen.text, name))
    except UnreadableSeries as error:
        return Looked(name, None, str(error))


@series.command(short_help="Take an issue out of its series; the next one has its turn.")
@name_argument
@issue_option
@click.option("--no-promote", is_flag=True, help="Leave the series without an active issue, even if others wait.")
@change_options
def release(name: str, issue: int, no_promote: bool, **said: Any) -> int:
    """Take an issue out of its series; the next one in the queue is active then.

    An issue that is not in the series is out of it already."""
    from asterism.series.compare_and_swap import Release, change

    given = taken_from(said)
    terms = given.terms
    step = Release(issue, terms.by, not no_promote)

    async def use(register: SeriesRegister) -> int:
        outcome = await attempt(register, terms, change, name, step, step.told)
        if given.as_json:
            tell_outcome(outcome, terms, status="released" if outcome.changed else "unchanged", issue=issue)
        elif outcome.token is None:
            click.echo(fit_to_print(nowhere(name, register)))
        elif not outcome.changed:
            click.echo(f"#{issue} is not in {name}")
        else:
            what = would(terms, "released", "release")
            click.echo(f"{what} {name} from #{issue}; {now_active(outcome, terms)}")
        return 0

    return with_register(given, use, create=False)


@series.command()
@name_argument
@change_options
def promote(name: str, **said: Any) -> int:
    """Let the first of the queue have its turn, if nobody is active.

    A lease that has run out is ended by this. A series that is paused stays without an active issue."""
    given = taken_from(said)

    def step(before: Series, now: float) -> Series:
        return before.expire(now).promote(now, by=given.terms.by).as_one_change_of(before)

    def told(outcome: Outcome, terms: Terms) -> str:
        after = outcome.after
        if outcome.changed and outcome.promoted is not None:
            return f"{would(terms, 'promoted', 'promote')} #{outcome.promoted} in {name} (revision {after.revision})"
        if outcome.changed:
            return f"{would(terms, 'ended', 'end')} the lease of #{outcome.before.active} on {name}; nobody waits"
        if after.active is not None:
            return f"nothing to promote: #{after.active} is active in {name}"
        return f"nothing to promote: {name} is {f'paused {after.paused}' if after.paused else 'empty'}"

    return make_change(name, given, step, "promote", told)


@series.command()
@name_argument
@click.option("--reason", type=legible, default="", metavar="TEXT", help="Why, for those who look.")
@change_options
def pause(name: str, reason: str, **said: Any) -> int:
    """Let nobody become active in a series until it is resumed.

    Who is active stays so, and claims are queued."""
    given = taken_from(said)

    def step(before: Series, now: float) -> Series:
        return before.pause(now, given.terms.by, reason)

    def told(outcome: Outcome, terms: Terms) -> str:
        if not outcome.changed:
            return f"{name} is paused already, {outcome.after.paused}"
        active = outcome.after.active
        stays = f"; #{active} stays active" if active is not None else ""
        return f"{would(terms, 'paused', 'pause')} {name}{stays} (revision {outcome.after.revision})"

    return make_change(name, given, step, f"pause ({reason})" if reason else "pause", told)


@series.command(short_help="End a pause, and let the first of the queue have its turn.")
@name_argument
@change_options
def resume(name: str, **said: Any) -> int:
    """End a pause, and let the first of the queue have its turn if nobody is active."""
    given = taken_from(said)

    def step(before: Series, now: float) -> Series:
        if before.paused is None:
            return before
        return before.resume(now).expire(now).promote(now, by=given.terms.by).as_one_change_of(before)

    def told(outcome: Outcome, terms: Terms) -> str:
        if not outcome.changed:
            return f"{name} is not paused"
        return f"{would(terms, 'resumed', 'resume')} {name}; {now_active(outcome, terms)}"

    return make_change(name, given, step, "resume", told)


@series.command()
@name_argument
@issue_option
@change_options
def front(name: str, issue: int, **said: Any) -> int:
    """Put an issue that waits at the head of the queue.

    Exits with 64 if it is not in the queue."""
    given = taken_from(said)

    def step(before: Series, now: float) -> Series:
        if before.position(issue) is None:
            raise click.ClickException(f"#{issue} is not in the queue of {name}: claim it first.")
        return before.front(issue, now)

    def told(outcome: Outcome, terms: Terms) -> str:
        if outcome.changed:
            where = f"to the head of the queue of {name} (revision {outcome.after.revision})"
            return f"{would(terms, 'moved', 'move')} #{issue} {where}"
        return f"#{issue} is {'active in' if outcome.after.active == issue else 'at the head of the queue of'} {name}"

    return make_change(name, given, step, f"front #{issue}", told)


@series.command()
@name_argument
@click.option(
    "--issue", "issues", type=issue_number, multiple=True, metavar="NUMBER", help="One that lives; in their order."
)
@click.option("--active", type=issue_number, metavar="NUMBER", help="The one that is being worked on.")
@click.option("--empty", is_flag=True, help="None lives.")
@click.option("--pattern", metavar="REGEX", help="With --github: how titles name their series, as for sync.")
@click.option("--label-pattern", metavar="REGEX", help="The same for labels.")
@click.option("--label", metavar="NAME", help="Only issues with this label belong to series.")
@click.option(
    "--assign",
    "assignee",
    type=login,
    metavar="LOGIN",
    envvar="ASTERISM_SERIES_ASSIGNEE",
    help="Whom series assign.",
)
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
    **said: Any,
) -> int:
    """Write a series anew from the issues that live.

    They are asked from GitHub with --github, and named in their order with --issue elsewhere. The active one stays
    active if it lives. This is the way out of a state that cannot be read."""
    from asterism.core.series.machine import Live

    given = taken_from(said)
    named = bool(issues or active is not None or empty)
    if given.place.github is None and not named:
        raise click.UsageError("Which issues live? Name them with --issue, in their order, or say --empty.")
    live = [Live(number, place, number == active) for place, number in enumerate(dict.fromkeys(issues))]
    if active is not None and active not in issues:
        live.append(Live(active, -1, True))

    known = [0]

    async def look(register: SeriesRegister) -> None:
        if not named:
            live.extend(await _open_issues(register, name, pattern, label_pattern, label, assignee))
        if given.place.github is not None:
            known.append(await _revision_known(register, name))

    def step(before: Series, now: float) -> Series:
        base = before.counted_from(max(known)) if before.updated_at == 0.0 else before  # lost, or not to be read
        if active not in (None, before.active) and before.paused is not None:
            raise click.ClickException(f"{name} is paused {before.paused}: nobody becomes active before it is resumed.")
        replaced = active is not None and before.active not in (None, active)
        kept = base.release(before.active or 0, now) if replaced else base
        after = kept.rebuild(live, now).as_one_change_of(base)
        if after is not base:
            return after
        return before if base is before or before.revision == 0 else base.stamped(now)

    def told(outcome: Outcome, terms: Terms) -> str:
        from asterism.cli.series_views import issue, line_of_queue

        after = outcome.after
        what = would(terms, "rebuilt", "rebuild") if outcome.changed else "nothing to rebuild in"
        queue = f"the queue is {line_of_queue(after.queue)}" if after.queue else "nobody waits"
        return f"{what} {name}: {issue(after.active)} is active, {queue} (revision {after.revision})"

    return make_change(name, given, step, "rebuild", told, mending=look)


async def _open_issues(
    register: Any, name: str, pattern: str | None, label_pattern: str | None, label: str | None, assignee: str | None
) -> list[Live]:
    """The issues of a series that are open on GitHub. Raises CannotRebuild."""
    from asterism.series.github.discovery import LABEL_PATTERN, TITLE_PATTERN, Assignee, SeriesMatcher
    from asterism.series.github.observed_state import IssueObserver

    who = Assignee(assignee) if assignee else None
    finder = SeriesMatcher(pattern or TITLE_PATTERN, label_pattern or LABEL_PATTERN, who, label)
    return await IssueObserver(register.client, finder).live(name, who is not None)


async def _revision_known(register: Any, name: str) -> int:
    """What the ref beside the state on GitHub tells of its revision."""
    from asterism.series.github.tracking_record import remains_of
    from asterism.series.github.github_register import GitHubRegister

    return remains_of((await GitHubRegister(register.client, "tracking").read(name)).text, name).revision


@series.command()
@name_argument
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many changes.")
@place_options
def history(name: str, limit: int, **said: Any) -> int:
    """Show the last changes of a series, the newest first."""
    given = taken_from(said)

    async def use(register: SeriesRegister) -> int:
        from asterism.cli.screen import print_lines
        from asterism.cli.series_views import history_json, history_table

        changes = await register.history(name, limit)
        if given.as_json:
            print_json(history_json(name, changes))
        elif changes:
            print_lines(lambda width: history_table(name, changes, width))
        else:
            note(f"Nothing has happened in {name} yet.")
        return 0

    return with_register(given, use, create=False)


series.add_command(sync)
series.add_command(serve)
