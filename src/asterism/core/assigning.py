"""What may happen to a run: each function takes the record and returns the next one, or raises RunRefused.

Three parties speak. A *coordinator* (whoever creates, monitors or hands on work) assigns, takes away and gives up. An
*owner* claims, starts, completes, fails, declines and releases, and shows its grant. A *person* cancels, pauses and
resumes. Every step is an entry of the story, with its reason. A step that would change nothing returns the record as it
is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from asterism.core.errors import Fenced, RunRefused, brief
from asterism.core.run import (
    ASSIGNED,
    BLANK,
    CLAIMED,
    KEEPS,
    MOST_EPOCHS,
    OWNED,
    PROCESSING,
    TERMINAL,
    TRANSITIONS,
    UNOWNED,
    Assignment,
    Grant,
    Owner,
    Progress,
    Run,
)
from asterism.core.story import Entry
from asterism.core.task import NOTHING
from asterism.core.workflow import Workflow

GIVEN_BACK = ("released", "conflict", "preempted")
"""Why an owner may give a run back. The other reasons count for something, and have functions of their own."""

FORGOTTEN = "forgotten"
"""The last entry of the story of a run of which nobody knows how it ended."""


def create(
    run_id: str,
    workflow: Workflow,
    given: Any,
    *,
    by: str,
    now: float,
    key: str | None = None,
    series: str | None = None,
    priority: int | None = None,
    device: str | None = None,
    retry_of: str | None = None,
    keep: str = "epoch",
) -> Run:
    """A run that nobody owns yet. With a ``series`` it is held until the series lets it go. ``keep``, one of KEEPS, is
    said here and never again, so that peers cannot differ about it."""
    if keep not in KEEPS:
        raise ValueError(f"what is kept when peers meet is one of {', '.join(KEEPS)}, not {keep!r}")
    why = f"by {by}, a retry of {retry_of}" if retry_of is not None else f"by {by}"
    return BLANK.changed(
        id=run_id,
        workflow=workflow.name,
        version=workflow.version,
        created_at=now,
        created_by=by,
        input=given,
        key=key,
        series=series,
        priority=workflow.priority if priority is None else priority,
        pinned=workflow.device if device is None else device,
        retry_of=retry_of,
        keep=keep,
        timeout=workflow.timeout,
        waiting_since=now,
        held=series is not None,
        story=(Entry(now, "created", None, why),),
    )


# -- a coordinator speaks ----------------------------------------------------------------------------------------------


def assign(
    run: Run,
    to: Owner,
    workflow: Workflow,
    *,
    by: str,
    now: float,
    scores: Mapping[str, float] = NOTHING,
    within: float | None = None,
) -> Run:
    """``to`` is asked to claim it, and has ``assignment_timeout`` to do so, or as many seconds as ``within`` says."""
    who = "self" if by == to.device else "other"
    patience = workflow.assignment_timeout if within is None else within
    won = f", score {scores[to.device]:.1f} of {len(scores)}" if to.device in scores else ""
    told = (
        Entry(now, f"assigning to {who}", None, f"{to.device}{won}"),
        Entry(now, "assigned", None, f"to {to.device} by {by}, epoch {run.epoch + 1}"),
    )
    return _granted(run, ("assign",), to, by, now, told, due_at=now + patience, scores=scores)


def take(run: Run, owner: Owner, workflow: Workflow, now: float, *, starts: bool = False) -> Run:
    """A device assigns the run to itself and claims it, in one step; if it ``starts`` with it at once, that is in the
    same step."""
    device = owner.device
    told = _taking(now, device, run.epoch + 1, starts)
    if not starts:
        return _granted(run, ("take",), owner, device, now, told, due_at=now + workflow.claim_timeout, claimed_at=now)
    return _granted(run, ("take", "start"), owner, device, now, told, claimed_at=now, started_at=now)


@lru_cache(64)
def _taking(now: float, device: str, epoch: int, starts: bool) -> tuple[Entry, ...]:
    """What is told of a run that a device takes: the same of all that it takes at one time."""
    told = (
        Entry(now, "assigning to self", None, device),
        Entry(now, "claimed", None, f"by {device}, epoch {epoch}"),
    )
    return (*told, Entry(now, "processing", None, f"on {device}")) if starts else told


def lose(run: Run, workflow: Workflow, now: float, detail: str) -> Run:
    """Its device was not heard of, or did not answer in time. That is no failure of the work and has its own cap."""
    if run.status not in OWNED:
        raise _refusal(run, "be taken away")
    if run.wish == "cancel":
        return _cancelled(run, now, run.wished_by, "timeout", detail)
    losses = run.losses + 1
    if losses > workflow.losses:
        error = f"lost {losses} times, the last time because {detail}"
        return _failed(run, now, error, "timeout", losses=losses)
    delay = workflow.delay(losses - 1)
    return _reassigned(run, now, "timeout", detail, delay, losses=losses, avoid=_avoiding(run))


def take_back(run: Run, now: float, detail: str) -> Run:
    """It was assigned to a device of a peer, and the peer was not met in time. Nobody is lost, so it counts for
    nothing; others are asked first."""
    if run.status is not ASSIGNED:
        raise _refusal(run, "be taken back")
    return _reassigned(run, now, "timeout", detail, avoid=_avoiding(run))


def next_round(run: Run, workflow: Workflow, now: float) -> Run:
    """Every device that could take it is to be avoided: they are asked again after a while. If it was their will, only
    so often."""
    _may_be_given(run, "be offered again")
    if not run.avoid:
        raise _refusal(run, "be offered again: no device is avoided")
    last = {one.device: f"{one.device} ({one.reason}): {one.detail}" for one in run.previous}
    said = brief("; ".join(last.get(device, device) for device in run.avoid))
    rounds = run.rounds + 1 if run.declined else run.rounds
    if rounds > workflow.rounds:
        return _failed(
            run, now, f"all devices declined, in {rounds} round{'s' if rounds != 1 else ''}. {said}", rounds=rounds
        )
    # counted from the last try: who comes late to say so has nobody wait longer
    delay = workflow.delay(max(rounds, run.failures, run.losses))
    again = max(now, (run.previous[-1].ended_at if run.previous else now) + delay)
    return run.changed(
        revision=run.revision + 1,
        rounds=rounds,
        avoid=(),
        declined=NOTHING,
        not_before=again,
        waiting_since=again,
        story=(
            *run.story,
            Entry(now, "offered again", None, f"{_when(again - now)}, every device was tried: {said}"),
        ),
    )


def _when(seconds: float) -> str:
    return f"in {seconds:.3g} s" if seconds >= 0.001 else "at once"


def give_up(run: Run, now: float, error: str) -> Run:
    """Nobody can have it: the end."""
    _may_be_given(run, "be given up")
    return _failed(run, now, error)


def forgotten(run: Run, now: float, error: str) -> Run:
    """Whoever judged it does not know it any more, and it cannot be said how it ended: the end."""
    after = _failed(run, now, error, "timeout")
    return after.changed(story=(*after.story, Entry(now, FORGOTTEN, None, error)))


def adopt(run: Run, now: float, why: str) -> Run:
    """Whoever judged it in another store is gone, or takes it for done: it waits here, from now on."""
    if run.status not in UNOWNED:
        raise _refusal(run, "be adopted: somebody owns it, or it has ended")
    return run.changed(
        revision=run.revision + 1,
        not_before=now,
        waiting_since=now,
        story=(*run.story, Entry(now, "adopted", None, why)),
    )


def let_go(run: Run, now: float) -> Run:
    """Its series has come to it."""
    if not run.held:
        raise _refusal(run, "be let go by its series")
    return run.changed(
        revision=run.revision + 1,
        held=False,
        waiting_since=now,
        story=(*run.story, Entry(now, "its turn", None, f"it is the active run of series {run.series}")),
    )


# -- the owner speaks --------------------------------------------------------------------------------------------------


def claim(run: Run, grant: Grant, workflow: Workflow, now: float) -> Run:
    _fence(run, grant, "claim")
    return _moved(run, "claim", now, f"by {run.device}", claimed_at=now, due_at=now + workflow.claim_timeout)


def start(run: Run, grant: Grant, now: float) -> Run:
    _fence(run, grant, "start")
    return _moved(run, "start", now, f"on {run.device}", started_at=now, due_at=None)


def complete(run: Run, grant: Grant, output: Any, now: float) -> Run:
    """The work is done, and that stands whatever was wished of its owner meanwhile."""
    _fence(run, grant, "complete")
    why = f"on {run.device}"
    return _moved(run, "complete", now, why, output=output, ended_at=now, session=None, wish=None, wished_by=None)


def fail(run: Run, grant: Grant, error: str, workflow: Workflow, now: float, *, final: bool = False) -> Run:
    """The work failed: again, elsewhere if possible, as long as ``retries`` are left and it is not ``final``."""
    _fence(run, grant, "fail")
    if run.wish == "cancel":
        return _cancelled(run, now, run.wished_by, "failed", error)
    failures = run.failures + 1
    if final or failures > workflow.retries:
        return _failed(run, now, error, failures=failures)
    delay = workflow.delay(failures)
    return _reassigned(run, now, "failed", error, delay, failures=failures, avoid=_avoiding(run))


def decline(run: Run, grant: Grant, reason: str, now: float, *, full: bool = False) -> Run:
    """The device will not have it. That counts for nothing; it is not asked again this round, unless it was only
    full. It may find out only when it has claimed the run and seen its input."""
    _fence(run, grant, "decline")
    if run.wish == "cancel":
        return _cancelled(run, now, run.wished_by, "declined", reason)
    if full:
        return _reassigned(run, now, "declined", reason)
    declined = {**run.declined, f"{run.device}": brief(reason)}
    return _reassigned(run, now, "declined", reason, avoid=_avoiding(run), declined=declined)


def release(run: Run, grant: Grant, reason: str, detail: str, now: float, progress: Progress | None = None) -> Run:
    """The owner gives it back, for one of GIVEN_BACK. What was wished of it comes true."""
    _fence(run, grant, "release")
    if reason not in GIVEN_BACK:
        raise ValueError(f"a run is given back for one of {', '.join(GIVEN_BACK)}, not {reason!r}")
    if progress is not None:
        run = run.changed(progress=progress)
    if run.wish == "cancel":
        return _cancelled(run, now, run.wished_by, reason, detail)
    return _reassigned(run, now, reason, detail)


def break_off(run: Run, grant: Grant, detail: str, workflow: Workflow, now: float) -> Run:
    """The owner cannot go on, through no fault of the work. That is a loss as any other: counted, and with a delay."""
    _fence(run, grant, "break off")
    return lose(run, workflow, now, detail)


# -- a person speaks ---------------------------------------------------------------------------------------------------


def cancel(run: Run, now: float, by: str) -> Run:
    """At once if nobody has claimed it; else its owner is asked to stop, and it ends when that is done or its owner is
    lost."""
    if run.ended:
        raise _refusal(run, "be cancelled")
    if run.status in (CLAIMED, PROCESSING):
        return run if run.wish == "cancel" else _wished(run, "cancel", now, by)
    return _cancelled(run, now, by, "released", "")


def pause(run: Run, now: float, by: str, reason: str = "") -> Run:
    """Nobody may have it until it is resumed. An owner is asked to stop, and what it did so far is kept."""
    if run.ended:
        raise _refusal(run, "be paused")
    if run.wish == "cancel":
        raise _refusal(run, f"be paused: it is being cancelled by {run.wished_by}")
    if run.wish == "pause" or run.paused is not None:
        return run
    who = brief(f"{by}: {reason}" if reason else by)
    if run.status in (CLAIMED, PROCESSING):
        return _wished(run, "pause", now, who)
    words = f"by {who}"
    if run.status is ASSIGNED:
        return _reassigned(run, now, "released", f"paused {words}", paused=words)
    return run.changed(revision=run.revision + 1, paused=words, story=(*run.story, Entry(now, "paused", None, words)))


def resume(run: Run, now: float, by: str) -> Run:
    """Devices may have it again; an owner that has not stopped yet need not."""
    if run.paused is None and run.wish != "pause":
        raise _refusal(run, "be resumed: it is not paused")
    return run.changed(
        revision=run.revision + 1,
        paused=None,
        wish=None,
        wished_by=None,
        waiting_since=None if run.status in OWNED else max(now, run.not_before),
        story=(*run.story, Entry(now, "resumed", None, f"by {by}")),
    )


# -- the steps they share ----------------------------------------------------------------------------------------------


def _refusal(run: Run, what: str) -> RunRefused:
    if run.status in TERMINAL:
        return RunRefused(run.id, f"it is {run.status} and will not change any more: it cannot {what}", run.story)
    return RunRefused(run.id, f"it is {run.status}: it cannot {what}", run.story)


def _fence(run: Run, grant: Grant, event: str) -> None:
    if (run.id, run.session, run.epoch) == grant and run.session is not None:
        return
    now = f"{run.device} owns it" if run.session is not None else f"it is {run.status} and nobody owns it"
    shown = f"epoch {grant.epoch}" if grant.run == run.id else f"a grant for run {grant.run}"
    raise Fenced(run.id, f"{shown} cannot {event} it any more: {now}, at epoch {run.epoch}", run.story)


def _may_be_given(run: Run, what: str) -> None:
    if run.offered:
        return
    if run.paused is not None:
        raise RunRefused(run.id, f"it is paused {run.paused}: it cannot {what}", run.story)
    if run.held:
        raise RunRefused(run.id, f"series {run.series} has not come to it: it cannot {what}", run.story)
    raise _refusal(run, what)


def _moved(run: Run, event: str, now: float, why: str, *then: Entry, **changes: Any) -> Run:
    """The one way in which a status changes, beside ``_granted``."""
    status = TRANSITIONS[event].get(run.status)
    if status is None:
        raise _refusal(run, event)
    changes["status"] = status
    changes["revision"] = run.revision + 1
    changes["story"] = (*run.story, Entry(now, str(status), None, why), *then)
    return run.with_changes(changes)


def _granted(
    run: Run, events: tuple[str, ...], to: Owner, by: str, now: float, told: tuple[Entry, ...], **changes: Any
) -> Run:
    _may_be_given(run, "be given to a device")
    if run.pinned is not None and run.pinned != to.device:
        raise _refusal(run, f"be given to {to.device}: it is for {run.pinned} alone")
    status = run.status
    for event in events:
        status = TRANSITIONS[event][status]
    changes["status"] = status
    changes["revision"] = run.revision + 1
    changes["epoch"] = run.epoch + 1
    changes["device"], changes["session"] = to
    changes["assigned_by"], changes["assigned_at"] = by, now
    changes["waiting_since"] = None
    changes["story"] = run.story + told
    return run.with_changes(changes)


def _closed(run: Run, now: float, reason: str, detail: str) -> dict[str, Any]:
    """What changes whenever an assignment ends before its time."""
    changes: dict[str, Any] = {"session": None, "due_at": None, "wish": None, "wished_by": None}
    if run.session is not None:
        ended = Assignment(f"{run.device}", run.epoch, run.assigned_at or 0.0, now, reason, detail)
        changes["previous"] = (*run.previous, ended)
    return changes


def _reassigned(
    run: Run, now: float, reason: str, detail: str, delay: float = 0.0, *, paused: str | None = None, **changes: Any
) -> Run:
    detail = brief(detail)
    if run.epoch >= MOST_EPOCHS:
        error = f"given away {run.epoch} times, and the last one ended, too: {reason}{': ' if detail else ''}{detail}"
        return _failed(run, now, error, reason, **changes)
    if run.wish == "pause":
        paused = f"by {run.wished_by}"
    then = (Entry(now, "paused", None, paused),) if paused is not None else ()
    return _moved(
        run,
        "reassign",
        now,
        f"{reason}: {detail}" if detail else reason,
        *then,
        device=None,
        assigned_by=None,
        assigned_at=None,
        claimed_at=None,
        started_at=None,
        scores=NOTHING,
        waiting_since=now + delay,
        not_before=now + delay,
        paused=paused,
        **_closed(run, now, reason, detail),
        **changes,
    )


def _failed(run: Run, now: float, error: str, reason: str = "failed", **changes: Any) -> Run:
    error = brief(error)
    return _moved(
        run,
        "fail",
        now,
        error,
        error=error,
        ended_at=now,
        waiting_since=None,
        held=False,
        paused=None,
        **_closed(run, now, reason, error),
        **changes,
    )


def _cancelled(run: Run, now: float, by: str | None, reason: str, detail: str) -> Run:
    error = f"cancelled by {by} ({detail})" if detail else f"cancelled by {by}"
    return _failed(run, now, error, reason, cancelled=True)


def _wished(run: Run, wish: str, now: float, by: str) -> Run:
    entry = Entry(now, f"asked to {wish}", None, f"by {by}")
    return run.changed(revision=run.revision + 1, wish=wish, wished_by=by, story=(*run.story, entry))


def _avoiding(run: Run) -> tuple[str, ...]:
    """The devices that are not asked for now, with its present one among them."""
    return run.avoid if run.device is None or run.device in run.avoid else (*run.avoid, run.device)
