"""``sync``: reality becomes state, the next issue is promoted, assigned and read back, and the view is written.

It may be run as often as anybody likes, by any number of processes at once. When all is in step it asks two questions
whose answers it usually knows, and writes nothing. The order of its steps is what makes it safe:

1. The open issues are listed, and what the states know of but the list does not show is looked at.
2. The state is changed by compare-and-swap: that alone decides who is active.
3. If the active issue is not assigned, or others are, the turn of this series is taken (``turns.py``), the state, who
   is assigned and the active issue are read again, the others are unassigned and read back, and only then the active
   one is assigned and read back. A turn is short, so the list of all open issues is not read in it.
4. The tracking issue is written, if it shows something else.

Modes: ``observe`` writes the view of what would be and nothing else, and nobody is told that anything is theirs;
``enforce`` does all of this; ``announce`` adds a comment for each promotion, made once, by the first who finds the
active issue assigned: who promoted it may have failed to assign it, or died before it could tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime

from asterism.core.series.machine import Series, UnreadableSeries
from asterism.series.compare_and_swap import Contended, Counts, Patience, change, mend, unreadable
from asterism.series.github.assignment import Assigning, CannotAssign
from asterism.series.github.assignment_lock import NotMyTurn, Turn, Turns, TurnsTaken
from asterism.series.github.discovery import Assignee, Finder
from asterism.series.github.discovery_rules import (
    NOTHING,
    Remains,
    answered_in,
    remains_of,
    tell_slips,
    terms_of,
    whose,
)
from asterism.series.github.github_register import GitHubRegister
from asterism.series.github.labels import PlaceLabels
from asterism.series.github.observed_state import Fate, Looking, Reality, Survey
from asterism.series.github.reconcile import InStep, in_step, is_newer
from asterism.series.github.series_settings import TURN_DEADLINE, Mode, Settings
from asterism.series.github.sync_reports import SeriesReport, SyncReport, count
from asterism.series.github.titles import lookalikes
from asterism.series.github.tracking_issue import Tracking, body_of, plain, unassigned_note, view_of
from asterism.series.github.unassignment import Unassignment, unassigned_by_person
from asterism.series.register import RegisterUnavailable, SeriesError, Snapshot, Unsure
from asterism.series.sync_metrics import Metrics

LONGEST_PAUSE = 5.0
"""Between two looks whether the turn is free, in seconds."""
__all__ = ["TURN_DEADLINE", "GitHubSeries", "Mode", "Settings"]

OBSERVED = "Asterism only observes this series: nothing is assigned or promoted by it."


class GitHubSeries:
    """The series of one repository. ``metrics`` adds up over all syncs that are made with it."""

    def __init__(
        self,
        register: GitHubRegister,
        settings: Settings,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.register, self.settings = register, settings
        self.metrics = Metrics(facts={"repository": register.url, "mode": settings.mode})
        self.turns = Turns(register)
        self._assignee = Assignee(settings.assignee)
        self.finder = Finder(settings.pattern, settings.label_pattern, self._assignee, settings.label)
        self._looking = Looking(register.client, self.finder)
        self._tracking = Tracking(register, self.finder.terms if settings.acts else None)
        self._assigning = Assigning(register.client, self._assignee, settings.way)
        self._labels = PlaceLabels(register.client, self.finder, settings.active_label, settings.queued_label)
        self._sleep, self._chance, self._clock = sleep, random.SystemRandom(), clock
        self._end, self._waits = math.inf, settings.turn_deadline

    async def sync(self, only: frozenset[str] | None = None) -> SyncReport:
        """Bring all series in step, or those that are named and meant. What goes wrong with one is in its report, and
        does not hold up the others. Raises RegisterUnavailable and RateLimited if nothing can be asked."""
        self.register.client.begin(with_reads=True)
        deadline = self.settings.deadline
        self._end = math.inf if deadline is None else self._clock() + deadline
        self._waits = self.settings.turn_deadline
        self._labels.begin()
        before = self.register.client.calls.copy()
        wanted = self.settings.only
        if only is not None:
            wanted = only if wanted is None else only & wanted
        if wanted is not None and not wanted:
            return SyncReport(self.register.url, self.settings.mode, [], {})
        survey = await self._looking.survey()
        heads = await self.register.heads()
        names = {name for ref in heads if (name := self.register.name_of(ref)) is not None} | set(survey.series)
        names = {name for name in names if wanted is None or name in wanted}
        texts = await self.register.texts(self._tokens(names, heads))
        reports = []
        for name in sorted(names):
            try:
                seen = _seen(self.register, name, heads, texts)
                shown = _seen(self._tracking.register, name, heads, texts)
            except RegisterUnavailable as error:
                report = SeriesReport(name, Series(name), observed=not self.settings.acts)
                report.status, report.problem = "unavailable", str(error)
                reports.append(report)
                continue
            reports.append(await self._reported(name, survey, seen, shown))
        if not survey.series:
            kept = [terms_of(texts.get(heads.get(self._tracking.register.ref_of(name), "")), name) for name in names]
            tell_slips(reports, self.finder.terms in kept)
        calls = self.register.client.calls - before
        count(self.metrics, reports, calls)
        whole = SyncReport(self.register.url, self.settings.mode, reports, calls)
        if not self.settings.acts:
            whole.near_misses, whole.lookalikes = self._looking.near_misses(survey), lookalikes(names)
        return whole

    async def series_of(self, issue: int) -> str | None:
        """The series that an issue belongs to by its title or labels, whatever its state."""
        found = self.finder.find(await self.register.client.get(f"issues/{issue}"))
        return found.series if found is not None else None

    def _tokens(self, names: set[str], heads: dict[str, str]) -> list[str]:
        """What is to be read of each: all of it is asked for at once."""
        places = (self.register, self._tracking.register, self.turns.register)
        refs = [place.ref_of(name) for name in names for place in places]
        return [heads[ref] for ref in refs if ref in heads]

    # -- one series ----------------------------------------------------------------------------------------------------

    async def _reported(self, name: str, survey: Survey, seen: Snapshot, shown: Snapshot) -> SeriesReport:
        report = SeriesReport(name, Series.salvaged(seen.text, name), observed=not self.settings.acts)
        try:
            reality = await self._reality(report, survey, terms_of(shown.text, name))
        except SeriesError as error:
            report.status, report.problem = "unavailable", str(error)
            return report
        if reality is None:
            return report
        try:
            remains = remains_of(shown.text, name, view_of(name, survey.tracking))
            await self._in_step(report, survey, reality, seen, remains)
        except Contended as error:
            report.status, report.problem = "contended", str(error)
        except UnreadableSeries as error:
            report.status, report.problem, report.unknown = "unreadable", str(error), True
            return report  # what the view should show is not known
        except CannotAssign as error:
            report.status, report.problem = "unassignable", str(error)
        except SeriesError as error:
            report.status, report.problem = "unavailable", str(error)
        if self.settings.acts:
            await self._noted(report, reality)
        if self.settings.view and not self.settings.dry_run:
            await self._view(report, survey, shown)
        elif not self.settings.view:
            with contextlib.suppress(RegisterUnavailable):  # the next cycle does it
                await self._tracking.keep_terms(name, shown)
        return report

    async def _reality(
        self, report: SeriesReport, survey: Survey, terms: Mapping[str, str | None] | None
    ) -> Reality | None:
        """None if the series is to be left alone: it is kept by other ``terms`` than ours, and what it holds is not
        found by ours. All of that would look renamed, and the series be emptied. Where nobody has said by what it is
        kept, one issue of it that is found has to do."""
        name, known = report.name, [report.state.active, *report.state.queue]
        if terms is not None and terms != self.finder.terms and name not in survey.series:
            report.status, report.left_alone = "left alone", whose(terms)
            return None
        reality = await self._looking.reality(name, survey, known)
        strange = [number for number, fate in reality.gone.items() if fate is Fate.RENAMED]
        if not strange or terms == self.finder.terms:
            return reality
        if terms is None and any(item in reality.live for item in known):
            return reality
        numbers = ", ".join(f"#{number}" for number in strange)
        report.status = "left alone"
        report.left_alone = f"{whose(terms)}: {numbers} would not belong to it by these patterns and labels"
        return None

    async def _in_step(
        self, report: SeriesReport, survey: Survey, reality: Reality, seen: Snapshot, remains: Remains
    ) -> None:
        if not self.settings.acts:
            self._observed(report, reality, seen)
            return
        await self._stepped(report, reality, seen, remains)
        if self._settled(report, reality):
            return
        # Who did not promote may be late: whoever did is likely to have assigned it by now.
        if report.promoted is not None or not await self._looked_again(report, survey):
            await self._assigned(report, survey)

    def _observed(self, report: SeriesReport, reality: Reality, seen: Snapshot) -> None:
        """What would be, written nowhere. It does not say when, for then a view of it would change all the time."""
        report.status = "observed"
        broken = _broken(seen.text, report.name)
        if broken:
            report.status, report.problem = "unreadable", f"{broken}; enforce would rebuild it"
        step = in_step(reality, None, broken is not None)
        before, after = report.state, step(report.state, self.register.clock())
        self._told(report, before, after, step)
        if after is not before:
            kept = after.active == before.active
            report.state = replace(
                after,
                updated_at=before.updated_at or _newest(reality),
                since=before.since if kept else None,
                claim_id=before.claim_id if kept else None,
                lease_until=before.lease_until if kept else None,
            )
        report.duplicates = [number for number in reality.holders() if number != report.state.active]
        report.assigned = report.state.active in reality.holders()

    async def _stepped(
        self, report: SeriesReport, reality: Reality, seen: Snapshot, remains: Remains = NOTHING
    ) -> None:
        broken = _broken(seen.text, report.name) is not None
        step = in_step(reality, self.settings.by, broken, remains)
        before = report.state
        if not broken and step(before, self.register.clock()) is before:
            return  # the state is what it should be, as of the list of refs: nothing to ask, nothing to write
        for number, fate in reality.gone.items():
            if before.position(number) is not None:
                await self._labels.take_off(number, fate)
        make, counts = mend if broken else change, Counts()
        patience = self._patience_left(report.name)
        try:
            outcome = await make(self.register, report.name, step, step.told, patience=patience, counts=counts)
        finally:
            for key in ("retries", "conflicts", "unsure"):
                self.metrics.add(key, getattr(counts, key))
        report.rebuilt = report.rebuilt or broken
        self._told(report, outcome.before, outcome.after, step)

    def _told(self, report: SeriesReport, before: Series, after: Series, step: InStep) -> None:
        if after.claim_id == step.claim:
            before = report.state  # ours, also if the reply to it was lost and it was found done
            report.promoted = after.active if isinstance(after.active, int) else None
            self.metrics.add("promotion_events", not report.observed)
        report.changed = report.changed or after is not before
        report.state = after
        gone = step.reality.gone
        report.left.update({number: gone[number] for number in gone if before.position(number) is not None})
        report.queued += [item for item in after.queue if isinstance(item, int) and before.position(item) is None]

    def _settled(self, report: SeriesReport, reality: Reality) -> bool:
        """Whether exactly the active one is assigned; of a paused series without one, at most one."""
        holders, active = reality.holders(), report.state.active
        report.assigned = active in holders
        if active is None or self._rests(report, holders):
            return len(holders) <= (1 if report.state.paused else 0)
        return holders == [active]

    # -- assigning -----------------------------------------------------------------------------------------------------

    async def _assigned(self, report: SeriesReport, survey: Survey) -> None:
        """In turn with all others who assign in this series. While another has the turn, look: it may do what is to be
        done here."""
        tries, began = 0, self._clock()
        async for turn in self._turns_of(report.name):
            tries += 1
            if turn is None:
                try:
                    if await self._looked_again(report, survey):
                        return
                except RegisterUnavailable:
                    if self._clock() < self._end:
                        raise
                    break  # there was no time left to look: it is still others who hold this up
                continue
            try:
                again = await self._in_turn(report, survey, turn)
            finally:
                await self.turns.give_back(turn)
            if not again:
                return
        raise TurnsTaken(report.name, tries, self._clock() - began)

    async def _turns_of(self, name: str) -> AsyncIterator[Turn | None]:
        """A turn, or None after a pause while another has it; until there is no patience left, in this series and all
        before it. The pauses grow, for it may be a hundred who wait."""
        tries = 0
        while tries == 0 or self._clock() < self._end:
            tries += 1
            began = self._clock()
            try:
                yield await self.turns.take(name)
            except NotMyTurn:
                left = min(self._waits, self._end - self._clock())
                if left <= 0:
                    return
                pause = min(LONGEST_PAUSE, self._chance.uniform(*self.settings.patience.jitter) * 1.5**tries)
                await self._sleep(min(pause, left))
                yield None
                self._waits -= self._clock() - began

    def _patience_left(self, name: str) -> Patience:
        """What is left of it until the end of this sync. Raises RegisterUnavailable if that is over."""
        patience = self.settings.patience
        if self._end == math.inf:
            return patience
        left = self._end - self._clock()
        if left <= 0:
            raise RegisterUnavailable(
                f"the deadline was over before series {name} could be changed: nothing was written"
            )
        return replace(patience, deadline=left if patience.deadline is None else min(left, patience.deadline))

    async def _looked_again(self, report: SeriesReport, survey: Survey) -> bool:
        """Whether all is settled by now, as state and issues are by now."""
        await self._read_again(report)
        return self._settled(report, await self._looking.fresh(report.name, survey))

    async def _read_again(self, report: SeriesReport) -> None:
        """Never less than was known before: a copy of GitHub's that lags behind would say that nobody is active, and
        who is would be unassigned."""
        seen = await self.register.read(report.name)
        state = Series.from_text(seen.text, report.name)
        if seen.text is None or state.revision < report.state.revision:
            what = "nothing" if seen.text is None else f"revision {state.revision}"
            raise RegisterUnavailable(
                f"{self.register.url} has {what} of series {report.name}, where revision {report.state.revision} was "
                "seen a moment ago: nothing was assigned or unassigned, and the next run looks again"
            )
        report.state = state

    async def _in_turn(self, report: SeriesReport, survey: Survey, turn: Turn) -> bool:
        """Whether to go on, since the active issue is not open any more and another has to be promoted."""
        await self._read_again(report)
        reality = await self._looking.fresh(report.name, survey, report.state.active)
        holders, active = reality.holders(), report.state.active
        if (active is None and report.state.paused) or self._rests(report, holders):
            active = holders[0] if holders else None  # somebody has taken over by hand
        for number in holders:
            if number != active:
                report.duplicates.append(number)
                await self._assigning.unassign(number, turn.guard)
                report.duplicates.remove(number)
                report.repaired.append(number)
        if isinstance(active, int) and active in reality.live and active not in holders:
            report.unassigned = await self._taken_away(report, active)
            if report.unassigned is not None and self.settings.respect_unassign:
                await self._paused(report, report.unassigned)
                return False
            await self._assigning.assign(active, turn.guard)
            self.metrics.add("assigned")
        report.assigned = active is not None and active in reality.live
        if active in reality.gone:
            await self._stepped(report, reality, Snapshot(report.state.to_text(), None))
            return True
        return False

    def _rests(self, report: SeriesReport, holders: list[int]) -> bool:
        """Whether the active issue is left unassigned, since a person wanted it so."""
        state = report.state
        return self.settings.respect_unassign and state.paused is not None and state.active not in holders

    async def _taken_away(self, report: SeriesReport, active: int) -> Unassignment | None:
        """By a person, while it was active, and not answered yet. If that cannot be told it is assigned all the same,
        unless it is to be respected."""
        since = report.state.since
        if report.promoted == active or since is None:
            return None
        try:
            found = await unassigned_by_person(self.register.client, self._assignee, active, since)
            seen = await self._tracking.register.read(report.name) if found is not None else None
        except RegisterUnavailable:
            if self.settings.respect_unassign:
                raise
            return None
        return found if seen is not None and found and found.event not in answered_in(seen.text, report.name) else None

    async def _paused(self, report: SeriesReport, unassigned: Unassignment) -> None:
        """Unless another issue is active by now."""
        active, since = report.state.active, report.state.since
        reason = f"unassigned {self._assignee.login} from #{active}"

        def step(series: Series, now: float) -> Series:
            same = (series.active, series.since) == (active, since)
            return series.pause(now, unassigned.by, reason) if same else series

        patience = self._patience_left(report.name)
        outcome = await change(self.register, report.name, step, f"sync: pause, {reason}", patience=patience)
        report.state, report.assigned = outcome.after, False
        report.changed = report.changed or outcome.changed

    # -- telling -------------------------------------------------------------------------------------------------------

    async def _noted(self, report: SeriesReport, reality: Reality) -> None:
        """What stands on the issues themselves. It decides nothing, so what goes wrong with it is left for later."""
        with contextlib.suppress(RegisterUnavailable, Unsure):
            if report.unassigned is not None and (report.problem is None or report.state.paused):
                text = unassigned_note(report.state, report.unassigned.by, self._assignee.login)
                await self._tracking.answer(report.name, report.unassigned, text)
        await self._labels.show(report.state, reality.live)

    async def _view(self, report: SeriesReport, survey: Survey, shown: Snapshot) -> None:
        """A view that cannot be written now is written in the next cycle: it decides nothing."""
        note = "" if self.settings.mode != "observe" else OBSERVED
        try:
            body = body_of(report.state, note)
            report.tracking = await self._tracking.show(report.name, body, survey.tracking, shown)
            if report.tracking is None:
                report.tracking = await self._new_view(report.name, body)
            if self.settings.mode == "announce" and report.assigned and report.problem is None:
                text = (
                    f"#{report.state.active} is the active issue of {plain(report.name)} now "
                    f"(revision {report.state.revision})."
                    + "".join(f"\n- #{number} left: {fate}" for number, fate in report.left.items())
                )
                await self._tracking.announce(report.state, report.tracking, text, shown)
        except (RegisterUnavailable, Unsure) as error:
            if report.problem is None:
                report.status, report.problem = "no view", f"the view was not written: {error}"

    async def _new_view(self, name: str, body: str) -> int:
        """In the turn of the series, or by another in its."""
        async for turn in self._turns_of(name):
            if turn is not None:
                try:
                    number = await self._tracking.show_anew(name, body, create=True)
                finally:
                    await self.turns.give_back(turn)
            else:
                number = await self._tracking.show_anew(name, body, create=False)
            if number is not None:
                return number
        raise RegisterUnavailable(f"there is no tracking issue of {name} yet: others have the turn to make it")


def _seen(register: GitHubRegister, name: str, heads: Mapping[str, str], texts: Mapping[str, str]) -> Snapshot:
    token = heads.get(register.ref_of(name))
    return Snapshot(register.text_of(token, texts) if token else None, token)


def _newest(reality: Reality) -> float:
    """When the last of the open issues was opened."""
    times = [str(found.form.get("created_at") or "1970-01-01T00:00:00Z") for found in reality.live.values()]
    return datetime.fromisoformat(max(times)).timestamp() if times else 0.0


def _broken(text: str | None, name: str) -> UnreadableSeries | None:
    """Why a state has to be made anew; None for one that can be read. Raises UnreadableSeries for one that a later
    version of Asterism wrote: it is not broken, and not ours to write over."""
    error = unreadable(text, name)
    if error is not None and is_newer(text):
        raise error
    return error
