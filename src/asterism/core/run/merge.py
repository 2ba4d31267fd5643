"""Peers without a common store: two records of one run become one, and whoever lost learns why.

Each peer keeps its own store and sometimes meets another. While they are apart, both may give the same run away.
``resolve`` is commutative, associative and idempotent, so that peers may meet in any order, as often as they like,
and hear of a record by many ways: in the end all of them have the same one.

*How.* A record is a **line**, what one store after the other made of the run, step by step, and what is known to have
happened **beside** it. Lines have a total order. The greatest is kept whole, and everything that is in the others and
not in it goes beside it: ended assignments, entries of the story, results (``superseded``). A greatest line and a
union of sets obey the three laws whatever the records are. Nothing is ever mixed into a line, for it would change its
rank.

*The order.* The greater of: completed; epoch; terminal; an end that somebody knows, and not that nobody knows how the
run ended (``forgotten``); owned by nobody any more; the earlier ``assigned_at``; the name of the device; its session;
how far the owner has come (assigned, claimed, processing); the number of steps. Every step of transitions.py makes a
record greater. So a copy that merely lags behind never undoes what happened since, and that is why a run which waits
comes before one which is owned in the same epoch: the one may be the other, given back.

*What is kept* of records that are not completed depends on ``keep``, which is fixed when the run is created:

- ``epoch``: as above. The later assignment counts, since it was made because somebody gave up the one before.
- ``original``: where two lines part, the earlier assignment wins, whatever came of it, also if the other line has
  gone on to later epochs. It trusts the clocks of the stores. Where one line goes on after an assignment that is still
  under way in the other, the owner was taken for lost. If it is, the longer line is right. If it only could not be
  heard of, its store says so when it hears of the takeover (the step ``kept``), and of two lines that have the same
  assignment the one counts in which it was kept more often. A copy of the time before the takeover says no such thing,
  so a dead owner never wins over its replacement.
- ``furthest``: within an epoch, the one with the most steps of ``progress``. A later epoch still counts more, for it
  may have begun again from nothing, and then a dead owner's progress would beat all that came after him. Progress
  under way is in reports, not in records: a store puts the last one into the record it sends
  (``run.changed(progress=…)``).

*Revisions* count the writes of one store, and two stores that made the same record have counted differently. They are
therefore no part of the order (the number of steps of a line takes their place), and the result has the greater of
both. A store takes a result over with ``taken_over``: it compares all but the revision, writes nothing if nothing is
new (or two peers would answer each other for ever), and otherwise the result with its own next revision, expecting its
own. If that conflicts, it reads its record again and resolves again. After that every function of
transitions.py works on it. An owner that lost stops and says nothing more: to give back its assignment first, as
it was, would be another end of the same epoch, and might win.

*Where things stand.* In ``previous`` and ``story`` what happened beside the line comes first, sorted; then the line
in its own order, which is where the next step is added. A line of a story begins with ``created``; that of
``previous`` has one entry for each epoch that has ended.

Weaknesses. A wish (to pause, to cancel) that is made on a copy while the owner takes a step in its own store can
lose: its entry in the story stays, the mark does not, and whoever exchanges records has to make the wish anew. The
steps of a peer that lies count like any other's: who may be believed is for those who exchange records
(peers/trust.py), and ``check`` (core/run/validation.py) says whether a record can be one at all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from math import inf
from typing import Any, TypeVar

from asterism.core.errors import AsterismError
from asterism.core.history import Entry
from asterism.core.run.run import (
    ASSIGNED,
    CLAIMED,
    COMPLETED,
    KEEP_RULES,
    OWNED,
    PROCESSING,
    Assignment,
    Run,
    Superseded,
)
from asterism.core.run.transitions import FORGOTTEN

_NAMES = tuple(field.name for field in fields(Run))
FIXED = _NAMES[: _NAMES.index("revision")]
"""What is said when a run is created, and never again."""

_HEAD = tuple(name for name in _NAMES if name not in (*FIXED, "revision", "previous", "story", "superseded"))
_STAGES = {ASSIGNED: 1, CLAIMED: 2, PROCESSING: 3}

KEPT = "kept"
"""What an owner says (``assigning.keep``) that was taken for lost and is not."""

T = TypeVar("T")
Rank = tuple[tuple[str, Any], ...]
"""Rules by name, the first one that tells two records apart decides."""


class NotTheSameRun(AsterismError):
    """Two records with one id that are not of one run, or that name a rule unknown here: forged or broken. ``fields``
    says in what."""

    def __init__(self, run_id: str, why: str, names: Sequence[str]) -> None:
        self.run_id, self.fields = run_id, tuple(names)
        super().__init__(
            f"these are not two records of run {run_id}: {why}. One of them is forged or broken; keep yours"
        )


def merge_records(a: Run, b: Run) -> Run:
    """The one record that two stores go on with. Raises NotTheSameRun."""
    _require_same_run(a, b)
    return a if a == b else _combined(_winner(a, b), a, b)


def merge_keeping(mine: Run, theirs: Run) -> Run:
    """As ``resolve``, but the line of ``mine`` is kept whatever it is: for who knows that the other is no news of it.
    Raises NotTheSameRun."""
    _require_same_run(mine, theirs)
    return mine if mine == theirs else _combined(mine, mine, theirs)


def _combined(won: Run, a: Run, b: Run) -> Run:
    return won.changed(
        revision=max(a.revision, b.revision),
        previous=(
            *_side_entries((*a.previous, *b.previous), own_assignments(won), _assignment_key),
            *own_assignments(won),
        ),
        superseded=_side_entries((*_results(a), *_results(b)), _result(won), _result_key),
        story=(*_side_entries((*a.story, *b.story), _own_story(won), _entry_key), *_own_story(won)),
    )


def outranks(mine: Run, theirs: Run) -> bool:
    """Whether the line of ``mine`` is the one that is kept. Raises NotTheSameRun."""
    _require_same_run(mine, theirs)
    return _winner(mine, theirs) is mine


def own_result(run: Run) -> tuple[Superseded, ...]:
    """What it was completed with, as it would be kept if another result won; nothing if it was not completed."""
    return _result(run)


def differing_fields(mine: Run, theirs: Run) -> list[str]:
    """The fields in which two records differ, beside what is fixed and what only grows."""
    return [name for name in _HEAD if getattr(mine, name) != getattr(theirs, name)]


def is_forgotten(run: Run) -> bool:
    """Whether a record says only that nobody knows how the run ended."""
    return bool(run.story) and run.story[-1].what == FORGOTTEN


def own_story(run: Run) -> tuple[Entry, ...]:
    """The story of its own line: without what is known to have happened beside it, in other stores."""
    return _own_story(run)


def next_revision(mine: Run, resolved: Run) -> Run | None:
    """What a store that has ``mine`` writes in its place, expecting the revision of ``mine``; None if there is nothing
    new in ``resolved``. Its own revisions go on: with that of another store, which may be the greatest there is, no
    step could be counted any more."""
    if resolved.changed(revision=mine.revision) == mine:
        return None
    return resolved.changed(revision=mine.revision + 1)


def loss_reason(mine: Run, resolved: Run) -> str | None:
    """Why the owner of ``mine`` has to stop, now that its record was resolved, and by which rule: for its user. None if
    it still owns the run, or never did. Also why a result of ``mine`` is not the result of the run."""
    if mine.status is COMPLETED:
        if _result(mine) == _result(resolved):
            return None
        lost = f"the result of {mine.device} (epoch {mine.epoch}) is kept, but is not the result of run {mine.id}"
    elif mine.grant is None or mine.grant == resolved.grant:
        return None
    else:
        lost = f"{mine.device} does not own run {mine.id} any more (epoch {mine.epoch})"
    return f"{lost}: {_deciding_rule(mine, resolved)}"


# -- the order ---------------------------------------------------------------------------------------------------------


def _winner(a: Run, b: Run) -> Run:
    rank_a, rank_b = _rank(a), _rank(b)
    if rank_a != rank_b:
        return a if rank_a > rank_b else b
    return a if _text_form(a) >= _text_form(b) else b


def _rank(run: Run) -> Rank:
    """Two ranks are compared like words: rule by rule, and up to the first that differs the rules are the same."""
    keep = "epoch" if run.status is COMPLETED else run.keep
    completed = ("completed", run.status is COMPLETED)
    return (completed, *_ORDERS[keep](run), ("session", run.session or ""), *_within_assignment(run))


def _by_epoch(run: Run) -> Rank:
    return (("epoch", run.epoch), *_by_end(run), ("free", run.device is None), *_by_time(run))


def _by_end(run: Run) -> Rank:
    """That nobody knows how it ended is said by who did not hear of it."""
    return (("terminal", run.ended), ("known", not is_forgotten(run)))


def _by_progress(run: Run) -> Rank:
    *later, earlier, device = _by_epoch(run)
    return (*later, ("progress", _steps_done(run)), earlier, device)


def _by_time(run: Run) -> Rank:
    since = run.assigned_at if run.assigned_at is not None else inf
    return (("earlier", -since), ("device", run.device or ""))


def _by_origin(run: Run) -> Rank:
    """Grant by grant from the first one on. A line that goes on where another ends is the greater."""
    kept = _times_kept(run)
    grants = [(-one.assigned_at, one.device, kept[one.epoch]) for one in own_assignments(run)]
    if run.status in OWNED:
        grants.append((-(run.assigned_at or 0.0), run.device or "", kept[run.epoch]))
    return (("origin", tuple(grants)), ("free", run.status not in OWNED), *_by_end(run))


def _times_kept(run: Run) -> Counter[int]:
    """How often its owner kept it, by epoch: counted from the end, since the oldest entries may have been left out."""
    kept: Counter[int] = Counter()
    epoch = run.epoch
    for entry in reversed(_own_story(run)):
        kept[epoch] += entry.what == KEPT
        epoch -= entry.what.startswith("assigning to ")
    return kept


def was_taken_away(mine: Run, theirs: Run) -> bool:
    """Whether the other line goes on after the assignment that is under way in ours, since its owner was taken for
    lost."""
    if mine.grant is None or theirs.epoch < mine.epoch:
        return False
    ended = next((one for one in own_assignments(theirs) if one.epoch == mine.epoch), None)
    own = (mine.device, mine.assigned_at, "timeout")
    return ended is not None and (ended.device, ended.assigned_at, ended.reason) == own


_ORDERS = {"epoch": _by_epoch, "original": _by_origin, "furthest": _by_progress}


def _within_assignment(run: Run) -> Rank:
    """What tells two records of one grant apart."""
    return (("stage", _STAGES.get(run.status, 0)), ("steps", len(_own_story(run))), ("reported", _steps_done(run)))


def _steps_done(run: Run) -> int:
    return run.progress.step if run.progress is not None else -1


def _text_form(run: Run) -> str:
    """The whole line, for records that no rule tells apart: then it does not matter which is kept, only that all peers
    keep the same."""
    head = [getattr(run, name) for name in _HEAD]
    return _json([head, own_assignments(run), _own_story(run)])


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=dict)


# -- lines, and what is beside them ------------------------------------------------------------------------------------


def own_assignments(run: Run) -> tuple[Assignment, ...]:
    """The assignments of its own line that have ended: one for each epoch, but for one that is still owned or was
    completed."""
    count = run.epoch - (run.status in OWNED or run.status is COMPLETED)
    return run.previous[max(0, len(run.previous) - count) :]


def _own_story(run: Run) -> tuple[Entry, ...]:
    """The story of its own line."""
    begins = [index for index, entry in enumerate(run.story) if entry.what == "created"]
    return run.story[begins[-1] :] if begins else run.story


def _result(run: Run) -> tuple[Superseded, ...]:
    if run.status is not COMPLETED:
        return ()
    return (Superseded(run.device or "", run.epoch, run.ended_at or 0.0, run.output),)


def _results(run: Run) -> tuple[Superseded, ...]:
    return (*run.superseded, *_result(run))


def _side_entries(known: Iterable[T], line: Iterable[T], place: Callable[[T], Any]) -> tuple[T, ...]:
    """What is known and not in the line: once each, in an order that does not depend on who heard of it first."""
    items = {place(item): item for item in known}
    for item in line:
        items.pop(place(item), None)
    return tuple(items[key] for key in sorted(items))


def _assignment_key(one: Assignment) -> tuple[Any, ...]:
    return (one.epoch, one.assigned_at, one.device, one.ended_at, one.reason, one.detail)


def _entry_key(entry: Entry) -> tuple[Any, ...]:
    return (entry.at, entry.what, entry.why)


def _result_key(result: Superseded) -> tuple[Any, ...]:
    return (result.epoch, result.device, result.ended_at, _json(result.output))


# -- in words ----------------------------------------------------------------------------------------------------------


def _require_same_run(a: Run, b: Run) -> None:
    differ = [name for name in FIXED if getattr(a, name) != getattr(b, name)]
    if differ:
        said = "; ".join(
            f"{name} is {getattr(a, name)!r} in one and {getattr(b, name)!r} in the other" for name in differ
        )
        raise NotTheSameRun(a.id, said, differ)
    if a.keep not in _ORDERS:
        raise NotTheSameRun(a.id, f"they keep by {a.keep!r}, and that is none of {', '.join(KEEP_RULES)}", ["keep"])


def _deciding_rule(mine: Run, won: Run) -> str:
    """The first rule that tells them apart, in words."""
    pairs = zip(_rank(mine), _rank(won), strict=False)
    nothing: tuple[str, Any, Any] = ("", 0, 0)
    rule, ours, theirs = next(((name, a, b) for (name, a), (_, b) in pairs if a != b), nothing)
    who, now = f"{won.device}", _state_text(won)
    if rule == "origin":
        rule, ours, theirs, who = _first_difference(ours, theirs)
    match rule:
        case "completed":
            return f"{who} has completed it in epoch {won.epoch}, and a result counts more than work under way"
        case "epoch":
            return f"it was given away again since, and the later assignment counts: in epoch {won.epoch}, {now}"
        case "terminal":
            return f"an end counts more than work of the same epoch: {now}"
        case "free":
            return f"an assignment that was ended counts more than one of the same epoch that was not: {now}"
        case "progress":
            return f"{who} is further on ({won.progress} against {mine.progress or 'nothing'}), and the furthest counts"
        case "earlier":
            gap = f"{theirs - ours:.3g} s earlier, by the clocks of the stores"
            return f"{who} was given it {gap}, and the earlier assignment counts: {now}"
        case "kept":
            return f"{who} had it first and was never lost, only out of reach, and the original owner counts: {now}"
        case "device":
            return f"{who} was given it at the same moment, and then the greater name counts: {now}"
        case "session":
            return f"{who} was given it at the same moment in another of its lives, and the greater name counts: {now}"
    return f"there are two records of one assignment, and the one that tells more counts: {now}"


def _first_difference(
    ours: Sequence[tuple[float, str, int]], theirs: Sequence[tuple[float, str, int]]
) -> tuple[str, float, float, str]:
    """Where two lines part: the rule, the two times and who was given the run in the line that won."""
    for (our_time, our_device, our_kept), (their_time, their_device, their_kept) in zip(ours, theirs, strict=False):
        if our_time != their_time:
            return "earlier", our_time, their_time, their_device
        if our_device != their_device:
            return "device", 0, 0, their_device
        if our_kept != their_kept:
            return "kept", our_kept, their_kept, their_device
    return "epoch", 0, 0, theirs[-1][1]


def _state_text(run: Run) -> str:
    if run.status is COMPLETED:
        return f"{run.device} completed it"
    if run.ended:
        return f"it failed ({run.error})"
    return f"{run.device} has it" if run.status in OWNED else "it waits for a device"
