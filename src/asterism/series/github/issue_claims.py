"""Claims checked against GitHub: no claim of a closed or foreign issue, and no wait behind a closed one.

A register knows claims and releases. It learns with the next sync that the active issue was closed, transferred or
deleted. A claim does not wait for that: it reads the active issue, and the next ones if that one is gone, and removes
the gone issues in the same change. Only issues that were read are removed, so a delayed claim removes nothing newer.
An active issue that does not exist says nothing about who works: an assigned issue has its turn before the queue.

The title and the labels of an issue tell its series, by the discovery rules that the sync has stored. A series without
stored rules may be found by any, so there only an issue that the default rules put into another series is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from asterism.core.series.machine import Item, Series, UnreadableSeries
from asterism.series.claims import Claim, is_other, signed
from asterism.series.compare_and_swap import Outcome, RetryOptions, UpdateCounts, update
from asterism.series.github.assignment import LockExpired
from asterism.series.github.discovery import Assignee, BadPattern, SeriesMatcher
from asterism.series.github.github_client import GitHubClient
from asterism.series.github.github_register import GitHubRegister
from asterism.series.github.observed_state import Departure, read_open_issue
from asterism.series.github.series_sync import SyncSettings
from asterism.series.github.sync import SyncService
from asterism.series.github.tracking_issue import Rules, TrackingRecord
from asterism.series.register import NotClaimable, RegisterUnavailable, SeriesRegister

MAX_CHECKED = 20
"""Issues of one series that a claim reads; the others are left to the next sync."""


@dataclass(frozen=True)
class ClaimAfterDepartures:
    """The step that removes the ``gone`` issues, promotes the next one, and then claims. If the active one was deleted,
    the first of the queue that is ``assigned`` is the next."""

    wanted: Claim
    gone: Mapping[int, Departure] = field(default_factory=dict)
    assigned: Collection[int] = ()

    def __call__(self, series: Series, now: float) -> Series:
        return self.wanted(self._remaining(series, now), now).as_one_change_of(series)

    def _remaining(self, series: Series, now: float) -> Series:
        current = series
        for number in self.gone:
            current = current.release(number, now)
        if self.gone.get(cast(int, series.active)) is Departure.DELETED:
            for item in [item for item in current.queue if item in self.assigned][:1]:
                current = current.front(item, now)
        if series.active != current.active and current.queue[:1] != (self.wanted.item,):
            current = current.promote(now, by=self.wanted.by)
        return current

    def message(self, before: Series, after: Series) -> str:
        """The message of the change."""
        parts = [f"{reason} #{number}" for number, reason in self.gone.items() if before.position(number) is not None]
        remaining, item = self._remaining(before, after.updated_at), self.wanted.item
        if remaining.active not in (None, before.active):
            parts.append(f"promote #{remaining.active}")
        unmoved = item in remaining.queue and item in after.queue
        if parts and unmoved and (remaining.leases, remaining.forced) == (after.leases, after.forced):
            return signed("; ".join(parts), self.wanted.by)
        return "; ".join([*parts, self.wanted.message(remaining, after)])


class IssueClaims:
    """Makes claims in the series of a repository. ``left`` has the issues that the claim removed, and why.

    An issue is assigned if ``assignee`` is among its assignees; without one, if it has any."""

    def __init__(self, client: GitHubClient, assignee: str | None = None) -> None:
        self._client, self._assignee = client, None if assignee is None else Assignee(assignee)
        self._assigned: set[int] = set()
        self._checked: dict[int, Departure | None] = {}
        """The issues that were read; None for an open one."""
        self.left: dict[int, Departure] = {}

    async def claim(
        self,
        register: SeriesRegister,
        name: str,
        wanted: Claim,
        *,
        retry: RetryOptions | None = None,
        counts: UpdateCounts | None = None,
    ) -> Outcome:
        """As ``claim`` of ``asterism.series.claims``. Raises NotClaimable too."""
        series = await _read(register, name)  # before the issue: it tells whether the repository exists
        if wanted.item is not None:
            issue = await self._check_claimable(wanted.item)
            if not wanted.force and wanted.item not in series.forced:
                await self._check_series(name, issue)
        await self._check_ahead(series, wanted.item)
        while True:
            gone = {number: reason for number, reason in self._checked.items() if reason is not None}
            step = ClaimAfterDepartures(wanted, gone, self._assigned)
            outcome = await update(register, name, step, step.message, retry=retry, counts=counts)
            before, after = outcome.before, outcome.after
            removed = {before.active, *before.queue} - {after.active, *after.queue}
            self.left |= {number: reason for number, reason in gone.items() if number in removed}
            # another issue may have become active since the check
            if not await self._check_ahead(after, wanted.item):
                if counts is not None:
                    counts.duplicate_prevented += is_other(after, wanted)
                return outcome

    async def _check_claimable(self, item: Item) -> Mapping[str, Any]:
        if not isinstance(item, int):
            raise NotClaimable(f"{item!r} is not the number of an issue")
        issue = await read_open_issue(self._client, item)
        where = self._client.url
        if issue is Departure.DELETED:
            raise NotClaimable(f"issue #{item} does not exist in {where}: it cannot be claimed")
        if issue is Departure.TRANSFERRED:
            raise NotClaimable(f"#{item} was transferred to another repository: it cannot be claimed in {where}")
        if isinstance(issue, Departure):
            raise NotClaimable(f"#{item} is closed ({issue}): reopen it, or claim another issue")
        if "pull_request" in issue:
            raise NotClaimable(f"#{item} is a pull request: only issues can be claimed")
        return issue

    async def _check_series(self, name: str, issue: Mapping[str, Any]) -> None:
        """Raises NotClaimable for an issue of another series, or of none by the stored rules."""
        record = await GitHubRegister(self._client, "tracking").read(name)
        rules = TrackingRecord.parse(record.text, name).rules
        member = _matcher(rules).match(issue)
        if (member is None and rules is None) or (member is not None and member.series == name):
            return
        belongs = "no series" if member is None else f"{member.series}, not {name}"
        raise NotClaimable(
            f"#{issue['number']} belongs to {belongs} by its title and labels ({issue.get('title')!r}): it cannot be "
            f"claimed in {name}; correct the name or the number, or put it into {name} all the same with --force"
        )

    async def _check_ahead(self, series: Series, item: Item | None) -> bool:
        """Read the active issue, and if it is gone the ones behind it, up to the first open one. If it was deleted, up
        to the first that is assigned.

        Returns whether a gone issue was found that was not known before."""
        any_gone = False
        for number in (series.active, *series.queue):
            if number is None:
                if series.paused is not None:
                    return any_gone
                continue
            lost = isinstance(series.active, int) and self._checked.get(series.active) is Departure.DELETED
            if (number == item and not lost) or not isinstance(number, int) or len(self._checked) >= MAX_CHECKED:
                return any_gone
            if number not in self._checked:
                issue = await read_open_issue(self._client, number)
                self._note(number, issue)
                any_gone = any_gone or isinstance(issue, Departure)
            if self._checked[number] is None and (not lost or number in self._assigned):
                return any_gone
        return any_gone

    def _note(self, number: int, issue: Mapping[str, Any] | Departure) -> None:
        self._checked[number] = issue if isinstance(issue, Departure) else None
        if isinstance(issue, Mapping):
            assigned = issue.get("assignees") if self._assignee is None else self._assignee.is_assigned(issue)
            self._assigned |= {number} if assigned else set()


async def assign_claimed(register: GitHubRegister, name: str, number: int, settings: SyncSettings) -> None:
    """Assign an issue that was made active, under the assignment lock, and verify it. The other issues of the series
    are unassigned. Nothing is queued or promoted, unless the issue was closed meanwhile.

    Raises AssignmentFailed, Contended, NotClaimable if the issue is not active any more, and as the register does."""
    record = TrackingRecord.parse((await GitHubRegister(register.client, "tracking").read(name)).text, name)
    rules = _matcher(record.rules).rules
    service = SyncService(
        register,
        replace(
            settings, pattern=rules["pattern"] or "", label_pattern=rules["label_pattern"] or "", label=rules["label"]
        ),
    )
    try:
        state = await service.assign(name, number)
    except LockExpired as error:
        raise RegisterUnavailable(f"{error}; run the command again") from None
    if state.active != number:
        raise NotClaimable(f"#{number} left {name} before it could be assigned: it is not open any more")


def _matcher(rules: Rules | None) -> SeriesMatcher:
    """The matcher with the stored rules; with the default ones if there are none, or none that can be used."""
    if rules is None:
        return SeriesMatcher()
    try:
        return SeriesMatcher(rules["pattern"] or "", rules["label_pattern"] or "", required=rules["label"])
    except BadPattern:
        return SeriesMatcher()


async def _read(register: SeriesRegister, name: str) -> Series:
    """The state; an unused series for an unreadable state, which the claim itself reports."""
    try:
        return Series.from_text((await register.read(name)).text, name)
    except UnreadableSeries:
        return Series(name)
