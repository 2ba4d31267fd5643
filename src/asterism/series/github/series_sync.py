"""Sync of one series: reconcile its state with the issues, assign the active issue under the lock, show it.

``Reconciliation`` is the pure step that brings the state in line with the observed issues. See ``sync`` for the order
of the steps and why it is safe.

``SyncSettings`` says how to sync (assignee, patterns, mode, limits); ``SyncContext`` is what the syncs of all series of
a repository share.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from asterism.core.backoff import retry_delay
from asterism.core.record import replace
from asterism.core.series.machine import Item, Live, Series, UnreadableSeries
from asterism.series.claims import signed
from asterism.series.compare_and_swap import (
    Contended,
    RetryOptions,
    UpdateCounts,
    is_newer_version,
    unreadable_reason,
    update,
)
from asterism.series.github.assignment import (
    Assigner,
    HeldLock,
    LockContended,
    LockHeld,
    SeriesAssignmentLock,
    Unassignment,
    find_unassignment,
)
from asterism.series.github.discovery import LABEL_PATTERN, TITLE_PATTERN, Assignee, SeriesMatcher
from asterism.series.github.github_register import GitHubRegister
from asterism.series.github.observed_state import Departure, IssueObserver, IssueSurvey, ObservedSeries
from asterism.series.github.sync_report import SeriesReport
from asterism.series.github.tracking_issue import (
    NOTHING_KNOWN,
    LastKnown,
    PlaceLabels,
    TrackingIssues,
    TrackingRecord,
    body_of,
    other_rules_reason,
    plain,
    shown_body,
    unassigned_note,
)
from asterism.series.register import AssignmentFailed, OutcomeUnknown, RegisterUnavailable, SeriesError, Snapshot
from asterism.series.series_metrics import SeriesMetrics

Mode = Literal["observe", "enforce", "announce"]

LOCK_DEADLINE = 30.0
"""How long a sync waits for assignment locks, in seconds, over all series."""


@dataclass(frozen=True)
class SyncSettings:
    """How to sync the series of a repository.

    :param assignee: the login that series assign.
    :param mode: see ``sync``.
    :param pattern: the title pattern; ``label_pattern``: that of labels (see ``discovery``).
    :param label: a label that every issue of a series has, if it is given.
    :param assign_with: ``auto``, ``rest`` or ``graphql`` (see ``Assigner``).
    :param only: the series to sync, None for all; an event never extends it.
    :param by: the author, for the history.
    :param view: whether to maintain tracking issues.
    :param lock_deadline: how long to wait for assignment locks over all series, in seconds; 0 tries each one once.
    :param deadline: after so many seconds the sync neither waits nor starts anything.
    :param active_label: a label for active issues; ``queued_label``: for issues that wait. ``{series}`` in a label
        stands for the name of the series.
    :param respect_unassign: if a person unassigns the active issue, pause its series; otherwise assign it again, with
        a comment.
    """

    assignee: str
    mode: Mode = "enforce"
    pattern: str = TITLE_PATTERN
    label_pattern: str = LABEL_PATTERN
    label: str | None = None
    assign_with: str = "auto"
    only: frozenset[str] | None = None
    by: str | None = None
    view: bool = True
    dry_run: bool = False
    lock_deadline: float = LOCK_DEADLINE
    deadline: float | None = None
    retry: RetryOptions = field(default_factory=RetryOptions)
    active_label: str | None = None
    queued_label: str | None = None
    respect_unassign: bool = False

    @property
    def acts(self) -> bool:
        return self.mode != "observe" and not self.dry_run


class SyncContext:
    """What the syncs of all series of a repository share. ``metrics`` adds up over all of them."""

    ends = math.inf
    """When the deadline of the present sync is over."""
    lock_wait_left = 0.0
    """How long the present sync may still wait for assignment locks, in seconds."""

    def __init__(
        self,
        register: GitHubRegister,
        settings: SyncSettings,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        client, self.assignee = register.client, Assignee(settings.assignee)
        self.register, self.settings, self.sleep, self.clock = register, settings, sleep, clock
        self.chance = random.SystemRandom()
        self.metrics = SeriesMetrics(facts={"repository": register.url, "mode": settings.mode})
        self.matcher = SeriesMatcher(settings.pattern, settings.label_pattern, self.assignee, settings.label)
        self.observer = IssueObserver(client, self.matcher)
        self.lock = SeriesAssignmentLock(register)
        self.assigner = Assigner(client, self.assignee, settings.assign_with)
        self.tracking = TrackingIssues(register, self.matcher.rules if settings.acts else None)
        self.labels = PlaceLabels(client, self.matcher, settings.active_label, settings.queued_label)

    def begin_sync(self) -> None:
        deadline = self.settings.deadline
        self.ends = math.inf if deadline is None else self.clock() + deadline
        self.lock_wait_left = self.settings.lock_deadline
        self.labels.begin_sync()

    def retry_options(self, name: str) -> RetryOptions:
        """The retry options, limited by the deadline of the sync. Raises RegisterUnavailable if it is over."""
        retry = self.settings.retry
        if self.ends == math.inf:
            return retry
        left = self.ends - self.clock()
        if left <= 0:
            raise RegisterUnavailable(f"the deadline ended before series {name} could be changed: nothing was written")
        return replace(retry, deadline=left if retry.deadline is None else min(left, retry.deadline))


# -- one series -------------------------------------------------------------------------------------------------------


MAX_LOCK_PAUSE = 5.0
"""The longest pause between two tries to acquire the assignment lock, in seconds."""
SURVEY_TRIES = 5
"""How often a survey that other processes have overtaken is made again."""
MAX_NAMED = 10
"""Queued issues that a message names."""

OBSERVE_NOTE = "Asterism only observes this series: nothing is assigned or promoted by it."
"""In the body of a tracking issue: see ``body_of`` before you change it."""


# -- the state --------------------------------------------------------------------------------------------------------


class SurveyOutdated(Exception):
    """The state changed after the survey: an issue that the survey shows as open may have left the series since."""


@dataclass(frozen=True)
class Reconciliation:
    """A step for ``update``: gone issues leave, new ones are queued by micro number, and if no issue is active the head
    of the queue is promoted. A new series starts with the issues that are already assigned.

    An active issue that does not exist says nothing about who works: an assigned issue is promoted before the queue.

    ``observed.gone`` has only issues that were read, so an issue that was added to the state later stays. ``seen`` is
    the revision from before the survey. A later state may lack an issue because it was closed and released since then:
    instead of queueing it again, the step raises SurveyOutdated.

    With ``repair`` an unreadable state is written anew; an assigned issue is being worked on, and takes precedence over
    a salvaged one. If another process repaired it first, the readable state is treated like any other.

    A new state continues from the ``last_known`` one: its revision is never below a known revision, and an issue that
    was active before keeps the time since when it is active."""

    observed: ObservedSeries
    by: str | None = None
    repair: bool = False
    seen: int | None = None
    last_known: LastKnown = NOTHING_KNOWN
    claim: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __call__(self, series: Series, now: float) -> Series:
        salvaged = self.repair and series.updated_at == 0.0  # a salvaged state has no time
        new = salvaged or series.revision == 0
        base = current = series.counted_from(self.last_known.revision) if new else series
        if salvaged and series.active is not None:
            assigned = self.observed.assigned()
            if assigned and series.active not in assigned:
                current = current.release(series.active, now)
        if new:
            current = current.rebuild(self._live(), now)
        for number in self.observed.gone:
            current = current.release(number, now)
        current = current.expire(now)
        changed = self.seen is not None and series.revision > self.seen
        if changed and any(current.position(live.item) is None for live in self._live()):
            raise SurveyOutdated
        current = current.enqueue([(live.item, live.micro) for live in self._live()], now)
        if self._gone(series.active) is Departure.DELETED:
            for number in self.observed.assigned()[:1]:
                current = current.front(number, now)
        current = current.promote(now, self.claim, self.by)
        if new:
            current = self.last_known.restore_since(current)
        current = current.as_one_change_of(base)
        if current is base:
            return base.stamped(now) if salvaged else series
        return current

    def _gone(self, item: Item | None) -> Departure | None:
        return self.observed.gone.get(item) if isinstance(item, int) else None

    def _live(self) -> list[Live]:
        return [issue.live for issue in self.observed.open.values()]

    def message(self, before: Series, after: Series) -> str:
        """The message of the change."""
        gone = self.observed.gone
        parts = ["rebuild"] if self.repair else []
        parts += [f"{reason} #{number}" for number, reason in gone.items() if before.position(number) is not None]
        if before.active not in (None, after.active, *gone) and not self.repair:
            parts.append(f"end the lease of #{before.active}")
        if after.active != before.active and after.active is not None:
            parts.append(f"{'promote' if after.active in before.queue else 'claim'} #{after.active}")
        new = [f"#{item}" for item in after.queue if before.position(item) is None]
        if new:
            parts.append(f"queue {', '.join(new[:MAX_NAMED])}{' and more' if len(new) > MAX_NAMED else ''}")
        return signed("sync: " + ("; ".join(parts) or "in step"), self.by)


# -- the sync ---------------------------------------------------------------------------------------------------------


class SeriesSync:
    """One sync of one series. ``seen`` is its state and ``record`` its tracking record, as they were read at first."""

    def __init__(self, context: SyncContext, name: str, survey: IssueSurvey, seen: Snapshot, record: Snapshot) -> None:
        self._context, self._name, self._survey = context, name, survey
        self._seen, self._record_snapshot = seen, record
        self._record = TrackingRecord.parse(record.text, name)
        self._settings = context.settings
        self.report = SeriesReport(name, Series.salvaged(seen.text, name), observed=not context.settings.acts)

    async def run(self) -> SeriesReport:
        """Sync the series. Problems are in the report."""
        report = self.report
        try:
            observed = await self._observe()
        except SeriesError as error:
            report.status, report.problem = "unavailable", str(error)
            return report
        if observed is None:
            return report
        try:
            if self._settings.acts:
                await self._enforce(observed)
            else:
                self._preview(observed)
        except Contended as error:
            report.status, report.problem = "contended", str(error)
        except UnreadableSeries as error:
            report.status, report.problem, report.unknown = "unreadable", str(error), True
            return report  # the content of the view is unknown
        except AssignmentFailed as error:
            report.status, report.problem = "unassignable", str(error)
        except SeriesError as error:
            report.status, report.problem = "unavailable", str(error)
        if self._settings.acts:
            await self._mark_issues(observed)
        if self._settings.view and not self._settings.dry_run:
            await self._show()
        elif not self._settings.view:
            with contextlib.suppress(RegisterUnavailable):  # the next sync repeats it
                await self._context.tracking.store_rules(self._name, self._record_snapshot)
        return report

    async def _observe(self) -> ObservedSeries | None:
        """The observed issues; None if the series must be left alone.

        If the series was found by other discovery rules, ours do not find its issues: all of them would look foreign,
        and the series would be emptied. Without stored rules, ours decide if they find an issue of this series, or put
        the foreign ones into other series: those were claimed by mistake."""
        report, rules, ours = self.report, self._record.rules, self._context.matcher.rules
        known = [report.state.active, *report.state.queue]
        if rules is not None and rules != ours and self._name not in self._survey.series:
            report.status, report.left_alone = "left alone", other_rules_reason(rules)
            return None
        observed = await self._context.observer.observe(self._name, self._survey, known)
        foreign = {number for number, reason in observed.gone.items() if reason is Departure.EVICTED}
        if not foreign or rules == ours:
            return observed
        elsewhere = {number for members in self._survey.series.values() for number in members}
        if rules is None and (observed.open or foreign <= elsewhere):
            return observed
        numbers = ", ".join(f"#{number}" for number in sorted(foreign))
        report.status = "left alone"
        report.left_alone = f"{other_rules_reason(rules)}; by these rules {numbers} would not belong to it"
        return None

    async def _observe_again(self) -> ObservedSeries | None:
        """The same by a new survey, made after the state was read again."""
        self._seen = await self._context.register.read(self._name)
        self.report.state = Series.salvaged(self._seen.text, self._name)
        self._context.observer.note_forced([self.report.state])
        self._survey = await self._context.observer.survey()
        return await self._observe()

    # -- state ---------------------------------------------------------------------------------------------------------

    async def _enforce(self, observed: ObservedSeries) -> None:
        last_known = LastKnown.of(self._record, shown_body(self._name, self._survey.tracking))
        outdated: list[float] = []
        while True:
            try:
                await self._update_state(observed, last_known)
                break
            except SurveyOutdated:
                outdated.append(self._context.clock())
                if len(outdated) == SURVEY_TRIES:
                    raise Contended(self._name, SURVEY_TRIES, outdated[-1] - outdated[0]) from None
                again = await self._observe_again()
                if again is None:
                    return
                observed = again
        if self._is_settled(observed):
            return
        # another process that promoted the issue has probably assigned it by now: look first
        if self.report.promoted is not None or not await self._is_settled_now():
            await self._assign()

    def _preview(self, observed: ObservedSeries) -> None:
        """Report the state as it would be. It has no new times, so that a view of it does not change with each sync."""
        report = self.report
        report.status = "observed"
        broken = _broken_reason(self._seen.text, self._name)
        if broken:
            report.status, report.problem = "unreadable", f"{broken}; enforce would rebuild it"
        step = Reconciliation(observed, repair=broken is not None)
        before, after = report.state, step(report.state, self._context.register.clock())
        self._note_change(before, after, step)
        if after is not before:
            same = after.active == before.active
            report.state = replace(
                after,
                updated_at=before.updated_at or _newest_issue(observed),
                since=before.since if same else None,
                claim_id=before.claim_id if same else None,
                lease_until=before.lease_until if same else None,
            )
        assigned = observed.assigned()
        report.duplicates = [number for number in assigned if number != report.state.active]
        report.assigned = report.state.active in assigned

    async def _update_state(self, observed: ObservedSeries, last_known: LastKnown) -> None:
        report = self.report
        broken = _broken_reason(self._seen.text, self._name) is not None
        seen = None if broken else report.state.revision  # the revision of an unreadable state is a guess
        step = Reconciliation(observed, self._settings.by, broken, seen, last_known)
        if broken or step(report.state, self._context.register.clock()) is not report.state:
            await self._apply(step)  # otherwise nothing changes, by the refs that were listed: no request is needed

    async def _apply(self, step: Reconciliation) -> None:
        context, report = self._context, self.report
        before, broken = report.state, step.repair
        for number, reason in step.observed.gone.items():
            if before.position(number) is not None:
                await context.labels.remove_all(number, reason, self._name)
        retry, counts = context.retry_options(self._name), UpdateCounts()
        try:
            outcome = await update(
                context.register, self._name, step, step.message, repair=broken, retry=retry, counts=counts
            )
        finally:
            for key in ("retries", "conflicts", "unsure"):
                context.metrics.add(key, getattr(counts, key))
        report.rebuilt = report.rebuilt or broken
        self._note_change(outcome.before, outcome.after, step)

    def _note_change(self, before: Series, after: Series, step: Reconciliation) -> None:
        report, gone = self.report, step.observed.gone
        if after.claim_id == step.claim:
            before = report.state  # our change, even if its reply was lost and a later try found it made
            report.promoted = after.active if isinstance(after.active, int) else None
            self._context.metrics.add("promotion_events", not report.observed)
        report.changed = report.changed or after is not before
        report.state = after
        report.left.update({number: gone[number] for number in gone if before.position(number) is not None})
        report.queued += [item for item in after.queue if isinstance(item, int) and before.position(item) is None]

    async def _read_state(self) -> None:
        """Read the state again. A stale replica could show an older state without the active issue, which would then be
        unassigned: an older revision raises RegisterUnavailable."""
        register, report = self._context.register, self.report
        seen = await register.read(self._name)
        state = Series.from_text(seen.text, self._name)
        if seen.text is None or state.revision < report.state.revision:
            what = "no state" if seen.text is None else f"revision {state.revision}"
            raise RegisterUnavailable(
                f"{register.url} shows {what} of series {self._name}, but revision {report.state.revision} was seen a "
                "moment ago: nothing was assigned or unassigned, and the next run tries again"
            )
        report.state = state

    async def assign(self) -> None:
        """Assign the active issue and no other, and do nothing else."""
        if not await self._is_settled_now():
            await self._assign()

    # -- assignment ----------------------------------------------------------------------------------------------------

    def _is_settled(self, observed: ObservedSeries) -> bool:
        """Whether exactly the active issue is assigned; in a paused series without one, at most one issue."""
        assigned, active = observed.assigned(), self.report.state.active
        self.report.assigned = active in assigned
        if active is None or self._stays_unassigned(assigned):
            return len(assigned) <= (1 if self.report.state.paused else 0)
        return assigned == [active]

    async def _is_settled_now(self) -> bool:
        """The same, after the state and the assignments were read again."""
        await self._read_state()
        return self._is_settled(await self._context.observer.observe_assignments(self._name, self._survey))

    async def _assign(self) -> None:
        """Assign under the lock. While another process holds it, check whether that one has done the work."""
        context, tries, began = self._context, 0, self._context.clock()
        async for lock in self._try_lock():
            tries += 1
            if lock is None:
                try:
                    if await self._is_settled_now():
                        return
                except RegisterUnavailable:
                    if context.clock() < context.ends:
                        raise
                    break  # no time left for the check: the lock is what held this up
                continue
            try:
                again = await self._fix_assignments(lock)
            finally:
                await context.lock.release(lock)
            if not again:
                return
        raise LockContended(self._name, tries, context.clock() - began)

    async def _try_lock(self) -> AsyncIterator[HeldLock | None]:
        """Yield the lock once it is acquired, and None after each pause while another process holds it.

        It ends when the waiting time of the sync, over all series, is used up. The pauses grow, because a hundred
        processes may wait."""
        context, tries = self._context, 0
        while tries == 0 or context.clock() < context.ends:
            tries += 1
            began = context.clock()
            try:
                yield await context.lock.acquire(self._name)
            except LockHeld:
                left = min(context.lock_wait_left, context.ends - context.clock())
                if left <= 0:
                    return
                pause = retry_delay(tries, context.chance.uniform(*self._settings.retry.jitter), MAX_LOCK_PAUSE)
                await context.sleep(min(pause, left))
                yield None
                context.lock_wait_left -= context.clock() - began

    async def _fix_assignments(self, lock: HeldLock) -> bool:
        """Unassign every issue but the active one, and assign that. Returns whether to repeat it, because the active
        issue was closed and another one was promoted."""
        context, report = self._context, self.report
        await self._read_state()
        observed = await context.observer.observe_assignments(self._name, self._survey, report.state.active)
        assigned, active = observed.assigned(), report.state.active
        if (active is None and report.state.paused) or self._stays_unassigned(assigned):
            active = assigned[0] if assigned else None  # a person assigned it by hand
        for number in assigned:
            if number != active:
                report.duplicates.append(number)
                await context.assigner.unassign(number, lock.check)
                report.duplicates.remove(number)
                report.repaired.append(number)
        if isinstance(active, int) and active in observed.open and active not in assigned:
            report.unassigned = await self._find_unassignment(active)
            if report.unassigned is not None and self._settings.respect_unassign:
                await self._pause(report.unassigned)
                return False
            await context.assigner.assign(active, lock.check)
            context.metrics.add("assigned")
        report.assigned = active is not None and active in observed.open
        if active in observed.gone:
            # only what was read: the issues of the survey may have left since
            await self._apply(Reconciliation(ObservedSeries(gone=observed.gone), self._settings.by))
            return True
        return False

    def _stays_unassigned(self, assigned: list[int]) -> bool:
        """Whether the active issue is left unassigned, because a person unassigned it."""
        state = self.report.state
        return self._settings.respect_unassign and state.paused is not None and state.active not in assigned

    async def _find_unassignment(self, active: int) -> Unassignment | None:
        """An unassignment by a person while the issue was active, not answered yet. If GitHub does not tell, the issue
        is assigned, unless unassignments are respected."""
        context, report = self._context, self.report
        since = report.state.since
        if report.promoted == active or since is None:
            return None
        try:
            unassignment = await find_unassignment(context.register.client, context.assignee, active, since)
            if unassignment is None:
                return None
            record = TrackingRecord.parse((await context.tracking.register.read(self._name)).text, self._name)
        except RegisterUnavailable:
            if self._settings.respect_unassign:
                raise
            return None
        return None if unassignment.event in record.answered else unassignment

    async def _pause(self, unassigned: Unassignment) -> None:
        """Pause the series, unless another issue is active by now."""
        context, report = self._context, self.report
        active, since = report.state.active, report.state.since
        reason = f"unassigned {context.assignee.login} from #{active}"

        def step(series: Series, now: float) -> Series:
            same = (series.active, series.since) == (active, since)
            return series.pause(now, unassigned.by, reason) if same else series

        retry = context.retry_options(self._name)
        outcome = await update(context.register, self._name, step, f"sync: pause, {reason}", retry=retry)
        report.state, report.assigned = outcome.after, False
        report.changed = report.changed or outcome.changed

    # -- views ---------------------------------------------------------------------------------------------------------

    async def _mark_issues(self, observed: ObservedSeries) -> None:
        """Write comments and labels on the issues. They decide nothing, so a failure is left to the next sync."""
        report = self.report
        with contextlib.suppress(RegisterUnavailable, OutcomeUnknown):
            if report.unassigned is not None and (report.problem is None or report.state.paused):
                text = unassigned_note(report.state, report.unassigned.by, self._context.assignee.login)
                await self._context.tracking.answer(self._name, report.unassigned, text)
        await self._context.labels.show(report.state, observed.open)

    async def _show(self) -> None:
        """Write the tracking issue. It decides nothing, so a failure is left to the next sync."""
        report, tracking = self.report, self._context.tracking
        note = OBSERVE_NOTE if self._settings.mode == "observe" else ""
        try:
            body = body_of(report.state, note)
            report.tracking = await tracking.show(self._name, body, self._survey.tracking, self._record_snapshot)
            if report.tracking is None:
                report.tracking = await self._create_tracking_issue(body)
            if self._settings.mode == "announce" and report.assigned and report.problem is None:
                text = (
                    f"#{report.state.active} is now the active issue of {plain(self._name)} "
                    f"(revision {report.state.revision})."
                    + "".join(f"\n- #{number} left: {reason}" for number, reason in report.left.items())
                )
                await tracking.announce(report.state, report.tracking, text, self._record_snapshot)
        except (RegisterUnavailable, OutcomeUnknown) as error:
            if report.problem is None:
                report.status, report.problem = "no view", f"the tracking issue was not written: {error}"

    async def _create_tracking_issue(self, body: str) -> int:
        """Create it under the lock, or wait until another process has."""
        context, tracking = self._context, self._context.tracking
        async for lock in self._try_lock():
            if lock is not None:
                try:
                    number = await tracking.show_fresh(self._name, body, create=True)
                finally:
                    await context.lock.release(lock)
            else:
                number = await tracking.show_fresh(self._name, body, create=False)
            if number is not None:
                return number
        raise RegisterUnavailable(f"series {self._name} has no tracking issue yet: another process holds the lock")


def _newest_issue(observed: ObservedSeries) -> float:
    """When the newest of the open issues was opened."""
    times = [str(issue.data.get("created_at") or "1970-01-01T00:00:00Z") for issue in observed.open.values()]
    return datetime.fromisoformat(max(times)).timestamp() if times else 0.0


def _broken_reason(text: str | None, name: str) -> UnreadableSeries | None:
    """Why a state has to be rebuilt; None for a readable one.

    Raises UnreadableSeries for the state of a later version of Asterism: it is not broken, and must not be replaced."""
    error = unreadable_reason(text, name)
    if error is not None and is_newer_version(text):
        raise error
    return error
