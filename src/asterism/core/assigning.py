"""What may happen to a run: each function takes the record and returns the next one, or raises RunRefused.

Three parties speak. A *coordinator* (whoever creates, monitors or hands on work) assigns, takes away and gives up. An
*owner* claims, starts, completes, fails, declines and releases, and shows its grant. A *person* cancels, pauses and
resumes. Every step is an entry of the story, with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.core.errors import Fenced, RunRefused
from asterism.core.run import (
    ASSIGNED,
    CLAIMED,
    OWNED,
    PROCESSING,
    REASONS,
    TERMINAL,
    TRANSITIONS,
    Assignment,
    Grant,
    Owner,
    Progress,
    Run,
)
from asterism.core.story import Entry
from asterism.core.task import NOTHING
from asterism.core.workflow import Workflow


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
) -> Run:
    """A run that nobody owns yet. With a ``series`` it is held until the series lets it go."""
    return Run(
        run_id,
        workflow.name,
        workflow.version,
        now,
        by,
        given,
        key,
        series,
        workflow.priority if priority is None else priority,
        device if device is not None else workflow.device,
        retry_of,
        workflow.timeout,
        waiting_since=now,
        held=series is not None,
        story=(Entry(now, "created", None, f"by {by}" + (f", a retry of {retry_of}" if retry_of else "")),),
    )


# -- a coordinator speaks ----------------------------------------------------------------------------------------------


def assign(
    run: Run, to: Owner, workflow: Workflow, *, by: str, now: float, scores: Mapping[str, float] = NOTHING
) -> Run:
    """``to`` is asked to claim it, and has ``assignment_timeout`` to do so."""
    _may_be_given(run, "assign")
    won = f", score {scores[to.device]:.1f} of {len(scores)}" if to.device in scores else ""
    return _granted(run, "assign", to, by, now, scores, workflow.assignment_timeout).changed(
        story=(
            *run.story,
            Entry(now, "assigning to other" if by != to.device else "assigning to self", None, f"{to.device}{won}"),
            Entry(now, "assigned", None, f"to {to.device} by {by}, epoch {run.epoch + 1}"),
        )
    )


def take(run: Run, owner: Owner, workflow: Workflow, now: float) -> Run:
    """A device assigns the run to itself and claims it, in one step."""
    _may_be_given(run, "take")
    return _granted(run, "take", owner, owner.device, now, NOTHING, workflow.claim_timeout).changed(
        claimed_at=now,
        story=(
            *run.story,
            Entry(now, "assigning to self", None, owner.device),
            Entry(now, "claimed", None, f"by {owner.device}, epoch {run.epoch + 1}"),
        ),
    )


def lose(run: Run, workflow: Workflow, now: float, detail: str) -> Run:
    """Its device was not heard of, or did not answer in time. That is no failure of the work and has its own cap."""
    if run.status not in OWNED:
        raise _refusal(run, "be taken away")
    losses = run.losses + 1
    if run.wish == "cancel":
        return _cancelled(run, now, run.wished_by or "", "timeout", detail)
    if losses > workflow.losses:
        return _failed(run, now, f"lost {losses} times, the last time because {detail}", "timeout", losses=losses)
    return _reassigned(run, now, "timeout", detail, losses=losses, not_before=now + workflow.delay(losses - 1)).changed(
        avoid=_with(run.avoid, run.device)
    )


def next_round(run: Run, workflow: Workflow, now: float) -> Run:
    """Every device that could take it is to be avoided: they are asked again after a while. If it was their will, only
    so often."""
    _may_be_given(run, "be offered again")
    rounds = run.rounds + 1 if run.declined else run.rounds
    if rounds > workflow.rounds:
        said = "; ".join(f"{device}: {reason}" for device, reason in run.declined.items())
        return give_up(run, now, f"all devices declined, {rounds} times over. {said}")
    delay = workflow.delay(max(rounds, run.failures, run.losses))
    why = "; ".join(f"{device}: {reason}" for device, reason in run.declined.items()) or ", ".join(run.avoid)
    return run.changed(
        revision=run.revision + 1,
        rounds=rounds,
        avoid=(),
        declined=NOTHING,
        not_before=now + delay,
        story=(*run.story, Entry(now, "offered again", None, f"in {delay:g} s, every device was tried: {why}")),
    )


def give_up(run: Run, now: float, error: str) -> Run:
    """Nobody can have it: the end."""
    _may_be_given(run, "fail")
    return _failed(run, now, error)


def let_go(run: Run, now: float) -> Run:
    """Its series has come to it."""
    if not run.held or run.ended:
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
    return _moved(run, "claim", now, f"by {run.device}").changed(claimed_at=now, due_at=now + workflow.claim_timeout)


def start(run: Run, grant: Grant, now: float) -> Run:
    _fence(run, grant, "start")
    return _moved(run, "start", now, f"on {run.device}").changed(started_at=now, due_at=None)


def complete(run: Run, grant: Grant, output: Any, now: float) -> Run:
    _fence(run, grant, "complete")
    return _moved(run, "complete", now, f"on {run.device}").changed(
        output=output, ended_at=now, session=None, due_at=None, wish=None, wished_by=None
    )


def fail(run: Run, grant: Grant, error: str, workflow: Workflow, now: float, *, final: bool = False) -> Run:
    """The work failed: again, elsewhere if possible, as long as ``retries`` are left and it is not ``final``."""
    _fence(run, grant, "fail")
    if run.wish == "cancel":
        return _cancelled(run, now, run.wished_by or "", "failed", error)
    failures = run.failures + 1
    if final or failures > workflow.retries:
        return _failed(run, now, error, "failed", failures=failures)
    again = _reassigned(run, now, "failed", error, failures=failures, not_before=now + workflow.delay(failures))
    return again.changed(avoid=_with(run.avoid, run.device))


def decline(run: Run, grant: Grant, reason: str, now: float, *, full: bool = False) -> Run:
    """The device will not have it. That counts for nothing; it is not asked again this round, unless it was only
    full."""
    _fence(run, grant, "decline")
    if run.status is not ASSIGNED:
        raise _refusal(run, "decline it: it has been claimed, so it can be released")
    new = _reassigned(run, now, "declined", reason)
    if full:
        return new
    assert run.device is not None
    return new.changed(avoid=_with(run.avoid, run.device), declined={**run.declined, run.device: reason})


def release(run: Run, grant: Grant, reason: str, detail: str, now: float, progress: Progress | None = None) -> Run:
    """The owner gives it back: ``released``, ``preempted`` or ``conflict``. What was wished of it comes true."""
    _fence(run, grant, "release")
    if reason not in REASONS:
        raise ValueError(f"an assignment ends for one of {', '.join(REASONS)}, not {reason!r}")
    if run.wish == "cancel":
        return _cancelled(run, now, run.wished_by or "", reason, detail)
    return _reassigned(run, now, reason, detail, progress=progress or run.progress)


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
    words = f"by {by}" + (f": {reason}" if reason else "")
    if run.status in (CLAIMED, PROCESSING):
        if run.wish is not None:
            return run
        return _wished(run, "pause", now, by).changed(wished_by=words)
    if run.paused is not None:
        return run
    free = _reassigned(run, now, "released", f"paused {words}") if run.status is ASSIGNED else run
    return free.changed(revision=run.revision + 1, paused=words, story=(*free.story, Entry(now, "paused", None, words)))


def resume(run: Run, now: float, by: str) -> Run:
    if run.ended or (run.paused is None and run.wish != "pause"):
        raise _refusal(run, "be resumed: it is not paused")
    withdrawn = {"wish": None, "wished_by": None} if run.wish == "pause" else {}
    return run.changed(
        revision=run.revision + 1,
        paused=None,
        waiting_since=now if run.status not in OWNED else run.waiting_since,
        story=(*run.story, Entry(now, "resumed", None, f"by {by}")),
        **withdrawn,
    )


# -- the steps they share ----------------------------------------------------------------------------------------------


def _moved(run: Run, event: str, now: float, why: str = "") -> Run:
    """The one way in which a status changes."""
    status = TRANSITIONS[event].get(run.status)
    if status is None:
        raise _refusal(run, event)
    return run.changed(
        status=status, revision=run.revision + 1, story=(*run.story, Entry(now, status.value, None, why))
    )


def _refusal(run: Run, what: str) -> RunRefused:
    if run.status in TERMINAL:
        return RunRefused(run.id, f"it is {run.status} and will not change any more: it cannot {what}", run.story)
    return RunRefused(run.id, f"it is {run.status}: it cannot {what}", run.story)


def _fence(run: Run, grant: Grant, event: str) -> None:
    if run.session is not None and run.session == grant.session and run.epoch == grant.epoch:
        return
    now = f"{run.device} owns it" if run.session is not None else f"it is {run.status} and nobody owns it"
    raise Fenced(run.id, f"epoch {grant.epoch} cannot {event} it any more: {now}, at epoch {run.epoch}", run.story)


def _may_be_given(run: Run, what: str) -> None:
    if run.offered:
        return
    if run.paused is not None and not run.ended:
        raise RunRefused(run.id, f"it is paused {run.paused}: it cannot {what}", run.story)
    if run.held and not run.ended:
        raise RunRefused(run.id, f"series {run.series} has not come to it: it cannot {what}", run.story)
    raise _refusal(run, what)


def _granted(run: Run, event: str, to: Owner, by: str, now: float, scores: Mapping[str, float], lease: float) -> Run:
    return run.changed(
        status=TRANSITIONS[event][run.status],
        revision=run.revision + 1,
        epoch=run.epoch + 1,
        device=to.device,
        session=to.session,
        assigned_by=by,
        assigned_at=now,
        claimed_at=None,
        started_at=None,
        due_at=now + lease,
        waiting_since=None,
        scores=scores,
    )


def _closed(run: Run, now: float, reason: str, detail: str) -> tuple[Assignment, ...]:
    if run.session is None:
        return run.previous
    assert run.device is not None
    assert run.assigned_at is not None
    return (*run.previous, Assignment(run.device, run.epoch, run.assigned_at, now, reason, detail))


def _reassigned(run: Run, now: float, reason: str, detail: str, **changes: Any) -> Run:
    new = _moved(run, "reassign", now, f"{reason}: {detail}" if detail else reason)
    paused = run.wished_by if run.wish == "pause" else run.paused
    story = (*new.story, Entry(now, "paused", None, paused or "")) if run.wish == "pause" else new.story
    return new.changed(
        **{
            "previous": _closed(run, now, reason, detail),
            "device": None,
            "session": None,
            "due_at": None,
            "waiting_since": now,
            "not_before": now,
            "wish": None,
            "wished_by": None,
            "paused": paused,
            "story": story,
            **changes,
        }
    )


def _failed(run: Run, now: float, error: str, reason: str = "failed", **changes: Any) -> Run:
    return _moved(run, "fail", now, error).changed(
        previous=_closed(run, now, reason, error),
        error=error,
        ended_at=now,
        session=None,
        due_at=None,
        held=False,
        paused=None,
        wish=None,
        wished_by=None,
        **changes,
    )


def _cancelled(run: Run, now: float, by: str, reason: str, detail: str) -> Run:
    words = f"cancelled by {by}" + (f" ({detail})" if detail else "")
    return _failed(run, now, words, reason, cancelled=True)


def _wished(run: Run, wish: str, now: float, by: str) -> Run:
    entry = Entry(now, f"asked to {wish}", None, f"by {by}")
    return run.changed(revision=run.revision + 1, wish=wish, wished_by=by, story=(*run.story, entry))


def _with(names: tuple[str, ...], name: str | None) -> tuple[str, ...]:
    return names if name is None or name in names else (*names, name)
