"""Runs in every situation they can get into, and everything that can be said to them.

A *situation* is a status together with the marks that count: paused, and what is wished of the owner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asterism.core.run import transitions
from asterism.core.run.run import CLAIMED, OWNED, PROCESSING, TERMINAL, UNOWNED, Grant, Owner, Progress, Run
from asterism.core.run.work import Workflow

FLOW = Workflow("transcode", shell="true", retries=2, losses=2, rounds=3, version=3)
STRICT = Workflow("transcode", shell="true", retries=0, losses=0, rounds=1, version=3)
"""Forgives nothing."""

KITCHEN = Owner("kitchen", "kitchen-1")
LAPTOP = Owner("laptop", "laptop-1")
HALF_WAY = Progress(5, 10)


def strict(run: Run) -> Run:
    """The run, as if it forgave nothing."""
    return run.changed(work=STRICT.work)


def last(run: Run, step: Callable[[Run], Run]) -> Run:
    """The run after a step that it does not forgive."""
    return step(strict(run)).changed(work=run.work)


Event = Callable[[Run, Grant, float], Run]


def new(**options: Any) -> Run:
    return transitions.create(
        "r1", options.pop("flow", FLOW), {"file": "a.mp4"}, **{"by": "ann", "now": 0.0, **options}
    )


def assigned(run: Run | None = None, to: Owner = KITCHEN, now: float = 1.0) -> Run:
    return transitions.assign(run or new(), to, by="hub", now=now)


def claimed(run: Run | None = None, to: Owner = KITCHEN, now: float = 2.0) -> Run:
    return transitions.take(run or new(), to, now)


def processing(run: Run | None = None, to: Owner = KITCHEN, now: float = 3.0) -> Run:
    taken = claimed(run, to, now)
    return transitions.start(taken, grant_of(taken), now)


def lost(run: Run | None = None, now: float = 4.0) -> Run:
    return transitions.lose(run or processing(), now, "not heard of for 90 s")


def completed(run: Run | None = None, now: float = 4.0) -> Run:
    working = run or processing()
    return transitions.complete(working, grant_of(working), 42, now)


def grant_of(run: Run) -> Grant:
    """The grant that the owner shows; for a run without an owner, that of its last one."""
    session = run.session if run.session is not None else KITCHEN.session
    return Grant(run.id, session, run.epoch)


def wrong_grants(run: Run) -> dict[str, Grant]:
    """A grant that is not that of the owner."""
    right = grant_of(run)
    return {
        "an earlier epoch": right._replace(epoch=right.epoch - 1),
        "a later epoch": right._replace(epoch=right.epoch + 1),
        "another session": right._replace(session="kitchen-2"),
        "another run": right._replace(run="r2"),
        "no session": right._replace(session=None),  # type: ignore[arg-type]
    }


def pause(run: Run) -> Run:
    return transitions.pause(run, 5.0, "ann: lunch")


def cancel(run: Run) -> Run:
    return transitions.cancel(run, 5.0, "ann")


def situation(run: Run) -> str:
    """A status and its marks, as a word."""
    marks = ["paused"] * (run.paused is not None) + ([run.stop_request] if run.stop_request is not None else [])
    return " ".join([run.status.value, *marks])


SITUATIONS: dict[str, Callable[[], Run]] = {
    "created": new,
    "created paused": lambda: pause(new()),
    "assigned": assigned,
    "claimed": claimed,
    "claimed pause": lambda: pause(claimed()),
    "claimed cancel": lambda: cancel(claimed()),
    "processing": processing,
    "processing pause": lambda: pause(processing()),
    "processing cancel": lambda: cancel(processing()),
    "reassigning": lost,
    "reassigning paused": lambda: pause(lost()),
    "completed": completed,
    "failed": lambda: cancel(lost()),
}

OWNERS: dict[str, Event] = {
    "claim": lambda run, grant, now: transitions.claim(run, grant, now),
    "start": lambda run, grant, now: transitions.start(run, grant, now),
    "complete": lambda run, grant, now: transitions.complete(run, grant, 42, now),
    "fail": lambda run, grant, now: transitions.fail(run, grant, "exit code 1", now),
    "fail, last": lambda run, grant, now: last(run, lambda run: transitions.fail(run, grant, "exit code 1", now)),
    "fail, final": lambda run, grant, now: transitions.fail(run, grant, "exit code 1", now, final=True),
    "decline": lambda run, grant, now: transitions.decline(run, grant, "on battery", now),
    "decline, full": lambda run, grant, now: transitions.decline(run, grant, "it is full", now, for_now=True),
    "release": lambda run, grant, now: transitions.release(run, grant, "released", "low battery", now, HALF_WAY),
}
"""What an owner says."""

OTHERS: dict[str, Event] = {
    "assign": lambda run, grant, now: transitions.assign(run, LAPTOP, by="hub", now=now),
    "take": lambda run, grant, now: transitions.take(run, LAPTOP, now),
    "take, start": lambda run, grant, now: transitions.take(run, LAPTOP, now, starts=True),
    "lose": lambda run, grant, now: transitions.lose(run, now, "not heard of for 90 s"),
    "lose, last": lambda run, grant, now: last(run, lambda run: transitions.lose(run, now, "not heard of for 90 s")),
    "refuse": lambda run, grant, now: transitions.refuse(run, LAPTOP.device, "on battery", now),
    "next_round": lambda run, grant, now: transitions.offer_again(run, now),
    "give_up": lambda run, grant, now: transitions.give_up(run, now, "no device for 300 s"),
    "take_back": lambda run, grant, now: transitions.take_back(run, now, "the peer was not met"),
    "withdraw": lambda run, grant, now: transitions.withdraw(run, now, "the removal of a peer"),
    "forgotten": lambda run, grant, now: transitions.mark_forgotten(run, now, "nobody knows how it ended"),
    "adopt": lambda run, grant, now: transitions.adopt(run, now, "its peer is gone"),
    "cancel": lambda run, grant, now: transitions.cancel(run, now, "ann"),
    "pause": lambda run, grant, now: transitions.pause(run, now, "ann: lunch"),
    "resume": lambda run, grant, now: transitions.resume(run, now, "ann"),
}
"""What coordinators and people say."""

EVENTS = OTHERS | OWNERS


# -- what is true of every run, and of every step ----------------------------------------------------------------------

NAMES = [*Run.__struct_fields__]
FIXED = NAMES[: NAMES.index("label")]
"""The fields that are said once."""


def check(run: Run) -> None:
    """What is true of a record at any time."""
    owned, ended, waits = run.status in OWNED, run.status in TERMINAL, run.status in UNOWNED
    assert owned + ended + waits == 1
    assert (run.session is not None) == owned == (run.grant is not None), "owned without an owner, or the reverse"
    assert run.device is not None or not owned, "an owner without a name"
    assert run.device is None or not waits, "an unowned run with a device"
    assert (run.assigned_at is not None) == (run.assigned_by is not None) == (run.device is not None)
    assert (run.due_at is not None) == (run.status in ("assigned", "claimed")), "due_at belongs to a lease"
    assert (run.waiting_since is not None) == waits, "only what nobody owns waits"
    assert not waits or (run.waiting_since or 0.0) >= run.not_before, "the wait begins when the backoff ends"
    assert (run.ended_at is not None) == ended == run.ended, "an end that is none"
    assert (run.error is not None) == (run.status == "failed")
    assert run.status == "failed" or not run.cancelled
    assert run.offered == (waits and run.paused is None), "offered is not what it says"
    assert run.stop_request is None or run.status in (CLAIMED, PROCESSING), "a stop request without an owner"
    assert (run.stop_requested_by is not None) == (run.stop_request is not None)
    assert run.paused is None or waits, "a paused run has an owner"
    assert run.pinned is None or run.device in (None, run.pinned), "it is with a device that it is not for"
    _check_history(run)


def _check_history(run: Run) -> None:
    current = run.status in OWNED or run.status == "completed"
    assert [assignment.epoch for assignment in run.previous] == list(range(1, run.epoch + (not current))), (
        "not one entry per grant"
    )
    assert all(
        assignment.reason in ("timeout", "declined", "failed", "released", "conflict", "preempted")
        for assignment in run.previous
    )
    assert all(assignment.assigned_at <= assignment.ended_at for assignment in run.previous)
    spare = 1 if run.ended else 0
    for name, cap in (("failures", run.work.retries), ("losses", run.work.losses), ("rounds", run.work.rounds - 1)):
        assert 0 <= getattr(run, name) <= cap + spare, f"more {name} than there may be"
    assert len(set(run.avoid)) == len(run.avoid)
    assert set(run.declined) <= set(run.avoid) <= {assignment.device for assignment in run.previous} | set(run.declined)
    times = [entry.at for entry in run.story]
    assert times == sorted(times), "the story goes back in time"
    assert run.story[0].what == "created"


def check_step(before: Run, after: Run) -> None:
    """What is true of every change."""
    if before.ended or after == before:
        assert after is before, "an end has changed" if before.ended else "a change that changes nothing"
        return
    assert after.revision > before.revision, "a change without a new revision"
    assert not [name for name in FIXED if getattr(after, name) != getattr(before, name)], (
        "what is said once has changed"
    )
    assert after.story[: len(before.story)] == before.story, "the story was rewritten"
    assert len(after.story) > len(before.story), "a change that is not told"
    granted = after.session is not None and after.grant != before.grant
    assert after.epoch == before.epoch + granted, "an epoch counts grants, one by one"
    assert not granted or before.offered, "it was given away and was not on offer"
    assert not (before.session and granted), "it went from one owner to another without being free between"
    gone = before.session is not None and after.session is None and after.status != "completed"
    assert len(after.previous) == len(before.previous) + gone, "an assignment ended and is not told"
    assert after.previous[: len(before.previous)] == before.previous, "the history was rewritten"
    for name in ("failures", "losses", "rounds"):
        assert 0 <= getattr(after, name) - getattr(before, name) <= 1, f"{name} counts one by one"
    assert after.progress is not None or before.progress is None, "progress was lost"
    assert before.stop_request != "cancel" or after.stop_request == "cancel" or after.ended, "a cancelled run goes on"
    assert before.stop_request != "pause" or _heard(before, after), "a pause was forgotten"


def _heard(before: Run, after: Run) -> bool:
    """A run that was asked to pause is paused, ends first, or the request is withdrawn."""
    resumed = "resumed" in [entry.what for entry in after.story[len(before.story) :]]
    return after.ended or resumed or after.stop_request is not None or after.paused is not None
