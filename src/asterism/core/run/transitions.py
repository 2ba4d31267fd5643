"""Transitions of a run: each function returns the next record or raises RunRefused; old epochs are fenced.

Three parties act. A *coordinator* (any process that creates, monitors or hands on work) assigns, takes away and gives
up. An *owner* claims, starts, completes, fails, declines and releases, and shows its grant. A *person* cancels, pauses
and resumes. Every step adds an entry to the story, with its reason. A step that would change nothing returns the same
record.

``now`` is the time of the store. Clocks are set back, and estimates of another clock differ, so a step is recorded at
``run.recorded_time(now)``, which is never before the last recorded step. Deadlines count from ``now`` itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

from asterism.core.errors import Fenced, truncate
from asterism.core.history import Entry
from asterism.core.json_values import NOTHING
from asterism.core.limits import with_series
from asterism.core.run.run import (
    ASSIGNED,
    CLAIMED,
    COMPLETED,
    MAX_EPOCHS,
    OWNED,
    PROCESSING,
    REASSIGNING,
    UNOWNED,
    Grant,
    Owner,
    Progress,
    Run,
    change_status,
    grant_to,
    mark_cancelled,
    mark_failed,
    note,
    reassign,
    refused,
    request_stop,
    require_admitted,
    require_offered,
    with_device_avoided,
)
from asterism.core.run.work import KEEP_RULES, Work, Workflow

RELEASE_REASONS = ("released", "conflict", "preempted")
"""The reasons for ``release``. The other reasons are counted, and have functions of their own."""

DECLINED = "declined"
"""The story entry of a run that a device declined."""

_TRIED_ENTRIES = frozenset({str(REASSIGNING), DECLINED})
"""The story entries of a device that was tried without success."""

FORGOTTEN = "forgotten"
"""The last story entry of a run whose end is unknown."""


def create(
    run_id: str,
    template: Work,
    run_input: Any,
    *,
    by: str,
    now: float,
    key: str | None = None,
    series: str | None = None,
    priority: int | None = None,
    device: str | None = None,
    retry_of: str | None = None,
    keep: str | None = None,
    label: str | None = None,
    batch: str | None = None,
    traceparent: str | None = None,
    uses: str | None = None,
    origin: tuple[str, int] = ("", 0),
) -> Run:
    """A new run without an owner. ``template`` is a workflow, or work; then ``origin`` says where it comes from, by a
    name and a version. What it ``uses`` of limits it holds while a device owns it; so it does its turn in its
    ``series``. ``keep``, one of KEEP_RULES and by default that of the work, never changes, so that peers agree about
    it."""
    work = template
    if isinstance(template, Workflow):
        work, origin = template.work, (template.name, template.version)
    keep = work.keep if keep is None else keep
    if keep not in KEEP_RULES:
        raise ValueError(f"keep is one of {', '.join(KEEP_RULES)}, not {keep!r}")
    why = f"by {by}, a retry of {retry_of}" if retry_of is not None else f"by {by}"
    return Run(
        id=run_id,
        workflow=origin[0],
        version=origin[1],
        work=work,
        created_at=now,
        created_by=by,
        input=run_input,
        key=key,
        series=series,
        priority=work.priority if priority is None else priority,
        pinned=work.device if device is None else device,
        retry_of=retry_of,
        keep=keep,
        label=label,
        batch=batch,
        traceparent=traceparent,
        uses=with_series(uses, series),
        waiting_since=now,
        story=(Entry(now, "created", None, why),),
    )


# -- steps of a coordinator --------------------------------------------------------------------------------------------


def assign(
    run: Run,
    to: Owner,
    *,
    by: str,
    now: float,
    scores: Mapping[str, float] = NOTHING,
    within: float | None = None,
    why: str = "",
) -> Run:
    """Assign a run to a session, which has to claim it within ``assignment_timeout``, or within ``within`` seconds.
    ``why`` is what decided beside the score."""
    who = "self" if by == to.device else "other"
    patience = run.work.assignment_timeout if within is None else within
    won = f", score {scores[to.device]:.1f} of {len(scores)}" if to.device in scores else ""
    at = run.recorded_time(now)
    entries = (
        Entry(at, f"assigning to {who}", None, f"{to.device}{won}{f', {why}' if why else ''}"),
        Entry(at, "assigned", None, f"to {to.device} by {by}, epoch {run.epoch + 1}"),
    )
    return grant_to(run, ("assign",), to, by, at, entries, due_at=now + patience, scores=scores)


def take(
    run: Run,
    owner: Owner,
    now: float,
    *,
    starts: bool = False,
    scores: Mapping[str, float] = NOTHING,
) -> Run:
    """A device assigns the run to itself and claims it in one step; with ``starts`` it also starts it. ``scores`` has
    its own score, if it knows that."""
    device, at = owner.device, run.recorded_time(now)
    entries = _take_entries(at, device, run.epoch + 1, starts)
    if not starts:
        due = now + run.work.claim_timeout
        return grant_to(run, ("take",), owner, device, at, entries, due_at=due, claimed_at=at, scores=scores)
    return grant_to(run, ("take", "start"), owner, device, at, entries, claimed_at=at, started_at=at, scores=scores)


@lru_cache(64)
def _take_entries(at: float, device: str, epoch: int, starts: bool) -> tuple[Entry, ...]:
    """The story entries of a take. They are the same for all runs that a device takes at one time."""
    entries = (Entry(at, "assigning to self", None, device), Entry(at, "claimed", None, f"by {device}, epoch {epoch}"))
    return (*entries, Entry(at, "processing", None, f"on {device}")) if starts else entries


def lose(run: Run, now: float, detail: str, *, counted: bool = True) -> Run:
    """Take a run away because its device sent no heartbeat or did not answer in time. This is not a failure of the
    work, and has its own limit. A loss that is not ``counted`` is that of the process which the run belongs to: it says
    nothing about the run or the device."""
    if run.status not in OWNED:
        raise refused(run, "be taken away")
    if run.stop_request == "cancel":
        return mark_cancelled(run, now, run.stop_requested_by, "timeout", detail)
    if not counted:
        return reassign(run, now, "timeout", detail)
    losses = run.losses + 1
    if losses > run.work.losses:
        error = f"lost {losses} times, the last time because {detail}"
        return mark_failed(run, now, error, "timeout", losses=losses)
    delay = run.work.delay(losses - 1)
    return reassign(run, now, "timeout", detail, delay, losses=losses, avoid=with_device_avoided(run))


def take_back(run: Run, now: float, detail: str) -> Run:
    """Take back an assignment to a device of a peer that was not met in time. It is not counted as a loss; other
    devices are tried first."""
    if run.status is not ASSIGNED:
        raise refused(run, "be taken back")
    return reassign(run, now, "timeout", detail, avoid=with_device_avoided(run))


def prioritise(run: Run, priority: int, now: float, why: str = "") -> Run:
    """Change the priority of a run that has not begun, also if a device has claimed it in advance; any other stays as
    it is."""
    if run.status not in {ASSIGNED, CLAIMED, *UNOWNED} or run.priority == priority:
        return run
    words = f"from {run.priority} to {priority}" + (f": {why}" if why else "")
    return note(run, now, "prioritised", truncate(words), priority=priority)


def withdraw(run: Run, now: float, by: str) -> Run:
    """Take a run from a device that has not started it, and pause it. The grant of that device is void: a later start
    is fenced."""
    if run.status not in (ASSIGNED, CLAIMED):
        raise refused(run, "be withdrawn")
    if run.stop_request == "cancel":
        return mark_cancelled(run, now, run.stop_requested_by, "released", "")
    words = f"by {by}"
    return reassign(run, now, "released", f"paused {words}", paused=words)


def offer_again(
    run: Run, now: float, *, resting: bool = False, refusals: Mapping[str, str] = NOTHING, limited: bool = True
) -> Run:
    """Start the next round, because every suitable device is to be avoided: they are tried again after a delay. Rounds
    in which devices declined are counted, and limited. ``refusals`` are reasons of devices whose own rules refuse the
    run: they count as declines.

    The last of its rounds ends the run if they are ``limited``.

    With ``resting`` another suitable device only rests. Then those that declined stay avoided, and the round is not
    counted, until that device has been tried too. Those that failed or were lost do not wait for it."""
    require_offered(run, "be offered again")
    revision = run.revision + 1
    for device, why in refusals.items():
        run = refuse(run, device, why, now)
    if not run.avoid:
        raise refused(run, "be offered again: no device is avoided")
    still = tuple(device for device in run.avoid if device in run.declined) if resting else ()
    if still == run.avoid:
        return run
    tried = [device for device in run.avoid if device not in still]
    last = {
        assignment.device: f"{assignment.device} ({assignment.reason}): {assignment.detail}"
        for assignment in run.previous
    }
    last |= {device: f"{device} (declined): {why}" for device, why in run.declined.items()}
    said = truncate("; ".join(last.get(device, device) for device in tried))
    rounds = run.rounds + 1 if run.declined and not resting else run.rounds
    if limited and rounds >= run.work.rounds:
        error = f"all devices declined, in {rounds} round{'s' if rounds != 1 else ''}. {said}"
        return mark_failed(run, now, error, rounds=rounds).changed(revision=revision)
    # counted from the last attempt: a late call of this function delays nothing
    delay = run.work.delay(max(rounds, run.failures, run.losses))
    tried_at = next((entry.at for entry in reversed(run.story) if entry.what in _TRIED_ENTRIES), now)
    # if the clock was set back, the last attempt may be far in the future
    again = min(now + delay, max(now, tried_at + delay))
    return run.changed(
        revision=revision,
        rounds=rounds,
        avoid=still,
        declined=run.declined if still else NOTHING,
        not_before=again,
        waiting_since=again,
        story=run.story_with(now, "offered again", f"{_delay_text(again - now)}, every device was tried: {said}"),
    )


def _delay_text(seconds: float) -> str:
    return f"in {seconds:.3g} s" if seconds >= 0.001 else "at once"


def end_backoff(run: Run, now: float, why: str) -> Run:
    """Let a run be taken now that was to wait longer."""
    require_offered(run, "be taken before its backoff is over")
    return note(run, now, "backoff over", why, not_before=now, waiting_since=now)


def give_up(run: Run, now: float, error: str) -> Run:
    """Fail a run that no device can execute."""
    require_offered(run, "be given up")
    return mark_failed(run, now, error)


def mark_forgotten(run: Run, now: float, error: str) -> Run:
    """Fail a run whose end is unknown, because the store that decided about it no longer knows it."""
    after = mark_failed(run, now, error, "timeout")
    return after.changed(story=after.story_with(now, FORGOTTEN, error))


def adopt(run: Run, now: float, why: str) -> Run:
    """Let a run wait here, because the store that decided about it is gone, or counts it as done."""
    if run.status not in UNOWNED:
        raise refused(run, "be adopted: it is owned or has ended")
    return note(run, now, "adopted", why, not_before=now, waiting_since=now)


def admit(run: Run) -> Run:
    """The run as it may be granted: its limits have room (limits.py), and their accounts are written with the grant."""
    require_offered(run, "be admitted by its limits")
    return run.changed(admitted=True)


# -- steps of the owner ------------------------------------------------------------------------------------------------


def claim(run: Run, grant: Grant, now: float) -> Run:
    _fence(run, grant, "claim")
    at = run.recorded_time(now)
    return change_status(run, "claim", at, f"by {run.device}", claimed_at=at, due_at=now + run.work.claim_timeout)


def start(run: Run, grant: Grant, now: float) -> Run:
    _fence(run, grant, "start")
    at = run.recorded_time(now)
    return change_status(run, "start", at, f"on {run.device}", started_at=at, due_at=None)


def complete(run: Run, grant: Grant, output: Any, now: float, files: str | None = None) -> Run:
    """Complete the run. A request to stop that came meanwhile is dropped. ``files`` is the manifest of the files that
    it has made."""
    _fence(run, grant, "complete")
    why, at = f"on {run.device}", run.recorded_time(now)
    changes: dict[str, Any] = {} if files is None else {"files": files}
    if files is not None:
        why = f"{why}; it has kept its files ({files[:12]})"
    return change_status(
        run,
        "complete",
        at,
        why,
        output=output,
        ended_at=at,
        session=None,
        stop_request=None,
        stop_requested_by=None,
        **changes,
    )


def fail(
    run: Run,
    grant: Grant,
    error: str,
    now: float,
    *,
    final: bool = False,
    files: str | None = None,
) -> Run:
    """The work failed: retry it, on another device if possible, while ``retries`` are left and it is not ``final``.
    ``files`` is the manifest of the files that it has made: those of the last attempt are kept."""
    _fence(run, grant, "fail")
    if run.stop_request == "cancel":
        return mark_cancelled(run, now, run.stop_requested_by, "failed", error)
    failures = run.failures + 1
    if final or failures > run.work.retries:
        kept = {} if files is None else {"files": files}
        return mark_failed(run, now, error, failures=failures, **kept)
    delay = run.work.delay(failures)
    return reassign(run, now, "failed", error, delay, failures=failures, avoid=with_device_avoided(run))


def decline(run: Run, grant: Grant, reason: str, now: float, *, for_now: bool = False) -> Run:
    """The owner declines the run, maybe after it has claimed it and read its input. This is not counted as a failure.
    The device is not tried again in this round, unless it declines ``for_now`` because it is full, rests or is about to
    leave."""
    _fence(run, grant, "decline")
    if run.stop_request == "cancel":
        return mark_cancelled(run, now, run.stop_requested_by, "declined", reason)
    if for_now:
        return reassign(run, now, "declined", reason)
    declined = {**run.declined, f"{run.device}": truncate(reason)}
    return reassign(run, now, "declined", reason, avoid=with_device_avoided(run), declined=declined)


def refuse(run: Run, device: str, reason: str, now: float) -> Run:
    """A device that looks for work declines the run before it is assigned. It is not tried again in this round."""
    require_offered(run, "be refused")
    if device in run.avoid:
        return run
    reason = truncate(reason)
    declined = {**run.declined, device: reason}
    return note(run, now, DECLINED, f"by {device}: {reason}", avoid=(*run.avoid, device), declined=declined)


def release(run: Run, grant: Grant, reason: str, detail: str, now: float, progress: Progress | None = None) -> Run:
    """The owner gives the run back, for one of RELEASE_REASONS. A request to stop takes effect."""
    _fence(run, grant, "release")
    if reason not in RELEASE_REASONS:
        raise ValueError(f"the reason of a release is one of {', '.join(RELEASE_REASONS)}, not {reason!r}")
    if progress is not None:
        run = run.changed(progress=progress)
    if run.stop_request == "cancel":
        return mark_cancelled(run, now, run.stop_requested_by, reason, detail)
    return reassign(run, now, reason, detail)


def confirm_ownership(run: Run, grant: Grant, why: str, now: float) -> Run:
    """The owner still works on the run, although a store that could not reach it took it for lost (merge.py)."""
    _fence(run, grant, "keep")
    return note(run, now, "kept", truncate(why))


def abandon(run: Run, grant: Grant, detail: str, now: float) -> Run:
    """The owner cannot continue, and the work is not the cause. It is a loss like any other: counted, and with a
    delay."""
    _fence(run, grant, "break off")
    return lose(run, now, detail)


# -- steps of a person -------------------------------------------------------------------------------------------------


def cancel(run: Run, now: float, by: str) -> Run:
    """Cancel a run: at once if no device has claimed it. Otherwise its owner is asked to stop, and the run ends when it
    has stopped or is lost."""
    if run.ended:
        raise refused(run, "be cancelled")
    if run.status in (CLAIMED, PROCESSING):
        return run if run.stop_request == "cancel" else request_stop(run, "cancel", now, by)
    return mark_cancelled(run, now, by, "released", "")


def pause(run: Run, now: float, by: str) -> Run:
    """Pause a run: no device may take it until it is resumed. An owner is asked to stop; its progress is kept. ``by``
    says who, and may say why."""
    if run.ended:
        raise refused(run, "be paused")
    if run.stop_request == "cancel":
        raise refused(run, f"be paused: it is being cancelled by {run.stop_requested_by}")
    if run.stop_request == "pause" or run.paused is not None:
        return run
    if run.status in (CLAIMED, PROCESSING):
        return request_stop(run, "pause", now, by)
    if run.status is ASSIGNED:
        return withdraw(run, now, by)
    return note(run, now, "paused", f"by {by}", paused=f"by {by}")


def resume(run: Run, now: float, by: str) -> Run:
    """Resume a run: devices may take it again. An owner that has not stopped yet continues."""
    if run.paused is None and run.stop_request != "pause":
        raise refused(run, "be resumed: it is not paused")
    waiting = {"waiting_since": None if run.status in OWNED else max(now, run.not_before)}
    return note(run, now, "resumed", f"by {by}", paused=None, stop_request=None, stop_requested_by=None, **waiting)


def move(
    run: Run,
    to: Owner,
    *,
    by: str,
    now: float,
    scores: Mapping[str, float] = NOTHING,
    within: float | None = None,
    paused_for: str | None = None,
) -> Run:
    """Assign a run that has not started to another device, in one step. The grant of a device that has it is void: its
    later steps are fenced. A run that is paused stays so, unless ``paused_for`` is why: it was stopped to be moved."""
    if run.ended:
        raise refused(run, "be moved")
    if run.status in OWNED and run.device == to.device:
        return run
    if run.stop_request is not None:
        raise refused(run, f"be moved: it was asked to {run.stop_request} by {run.stop_requested_by}")
    if run.status is PROCESSING:
        raise refused(run, f"be moved while {run.device} works on it")
    if run.epoch >= MAX_EPOCHS:
        raise refused(run, f"be moved: it was assigned {run.epoch} times")
    if run.pinned is not None and run.pinned != to.device:
        raise refused(run, f"be moved to {to.device}: it is pinned to {run.pinned}")
    if run.paused is not None and run.paused == paused_for:
        run = resume(run, now, by)
    if run.status in (ASSIGNED, CLAIMED):
        run = reassign(run, now, "released", f"moved to {to.device} by {by}").changed(admitted=run.uses is not None)
    require_offered(run, "be moved")
    require_admitted(run, "be moved")
    # a person may insist on a device that declined it before
    if to.device in run.avoid:
        declined = {device: why for device, why in run.declined.items() if device != to.device}
        avoid = tuple(device for device in run.avoid if device != to.device)
        run = run.changed(avoid=avoid, declined=declined or NOTHING)
    return assign(run, to, by=by, now=now, scores=scores, within=within, why=f"moved by {by}")


def _fence(run: Run, grant: Grant, event: str) -> None:
    if (run.id, run.session, run.epoch) == grant and run.session is not None:
        return
    now = f"{run.device} owns it" if run.session is not None else f"it is {run.status} and has no owner"
    shown = f"epoch {grant.epoch}" if grant.run == run.id else f"a grant for run {grant.run}"
    raise Fenced(run.id, f"{shown} can no longer {event} it: {now}, at epoch {run.epoch}", run.story)


# -- outcomes ----------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The end of one assignment. ``reason`` is ``completed`` or one of REASONS; ``score`` is None if it is unknown."""

    device: str
    reason: str
    score: float | None


def outcomes(run: Run) -> Iterator[Outcome]:
    """How the assignments of a run ended, in their order. The one under way is not among them."""
    for assignment in run.previous:
        yield Outcome(assignment.device, assignment.reason, assignment.score)
    if run.status is COMPLETED:
        device = str(run.device)
        yield Outcome(device, str(COMPLETED), run.scores.get(device))


def declines(run: Run) -> Iterator[str]:
    """The device of each decline: of an assignment, and of an offer that a device did not take."""
    for assignment in run.previous:
        if assignment.reason == DECLINED:
            yield assignment.device
    for entry in run.story:
        if entry.what == DECLINED:
            yield entry.why.removeprefix("by ").partition(": ")[0]


_EXECUTED = frozenset({str(PROCESSING), FORGOTTEN})


def was_executed(run: Run) -> bool:
    """Whether a device has begun to execute a run, now or in an earlier assignment. A run whose end is unknown counts
    as executed."""
    return run.started_at is not None or any(entry.what in _EXECUTED for entry in run.story)


def waiting_time(run: Run) -> float | None:
    """How long a run waited for its last execution, without the time of earlier assignments. None if it has neither
    started nor ended."""
    begun = run.started_at if run.started_at is not None else run.ended_at
    if begun is None:
        return None
    ended = run.ended_at if run.ended_at is not None else inf
    tried = sum(
        assignment.ended_at - assignment.assigned_at for assignment in run.previous if assignment.ended_at < ended
    )
    return max(0.0, begun - run.created_at - tried)


def work_time(run: Run) -> float | None:
    """How long the last execution of an ended run took. None if it has not ended, or ended before it started."""
    return None if run.ended_at is None or run.started_at is None else max(0.0, run.ended_at - run.started_at)


def attempt_of(run: Run) -> int:
    """The number of the current execution of a run, from 1; declined assignments do not count."""
    return 1 + sum(assignment.reason != DECLINED for assignment in run.previous)


def attempts_of(run: Run) -> int:
    """How many executions a run has had, including the current one; declined assignments do not count."""
    closed = bool(run.previous) and run.previous[-1].epoch == run.epoch
    return attempt_of(run) - (closed or run.epoch == 0)
