"""Merges two records of one run that two stores wrote while apart; says why an owner lost.

Peers keep their own stores and exchange records from time to time. While they are apart, both may assign the same run.
``merge_records`` is commutative, associative and idempotent, so peers may exchange records in any order, as often as
they like, and receive a record more than once: in the end all have the same one.

*How.* A record has its own **history**, the steps that one store after the other made of the run, and **side entries**:
what is known to have happened only in other stores. Histories have a total order. The greatest is kept whole. Entries
of the others that are missing in it become side entries: ended assignments, story entries, results (``superseded``). A
maximum and a union of sets satisfy the three laws, whatever the records are. Nothing is mixed into a history, because
that would change its rank.

*The order.* The greater history is the one that is completed; has the higher epoch; has ended; has a known end, not
``forgotten``; has no owner any more; was assigned earlier; has the greater device name; session; stage (assigned,
claimed, processing); number of steps. Every step of transitions.py makes a record greater. So a copy that lags behind
never undoes later steps. For this reason a waiting run is greater than an owned one of the same epoch: it may be the
same run, given back.

*The rule* for records that are not completed is ``keep``, which is set when the run is created:

- ``epoch``: the order above. The later assignment wins, since it was made because the earlier one was given up.
- ``original``: where two histories diverge, the earlier assignment wins, even if the other history has later epochs. It
  trusts the clocks of the stores. If one history continues after an assignment that is still under way in the other,
  the owner was taken for lost. If it is lost, the longer history is right. If it was only unreachable, its store
  records that when it learns of the takeover (the step ``kept``), and of two histories with the same assignment the
  one in which it was kept more often wins. A copy from before the takeover has no such step, so a dead owner never
  wins over its replacement.

*Revisions* count the writes of one store, and differ between stores that made the same record. They are not part of the
order (the number of steps takes their place), and the merged record has the greater one. A store applies a merge with
``next_revision``: it compares all but the revision, writes nothing if nothing is new (or two peers would answer each
other without end), and otherwise writes the merged record with its own next revision, expecting its own. On a conflict
it reads its record again and merges again. After that every function of transitions.py works on it. An owner that lost
stops without another step: giving its assignment back would be another end of the same epoch, and might win.

*Layout.* In ``previous`` and ``story`` the side entries come first, sorted; then the own history in its own order, to
which the next step is appended. The own story begins with ``created``; the own part of ``previous`` has one entry for
each ended epoch.

*Limits.* A stop request that is made on a copy while the owner takes a step in its own store can lose: its story entry
stays, the mark does not, and the exchange of records must make the request again (peers/record_decisions.py). Steps of
a lying peer count like any other's: peers/record_decisions.py decides whom to believe, and peer_record_validation.py
whether a record can be one at all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, TypeVar

from asterism.core.errors import AsterismError
from asterism.core.history import Entry
from asterism.core.run.run import (
    ASSIGNED,
    CLAIMED,
    COMPLETED,
    OWNED,
    PROCESSING,
    Assignment,
    Run,
    Superseded,
)
from asterism.core.run.transitions import FORGOTTEN
from asterism.core.run.work import KEEP_RULES

_NAMES = Run.__struct_fields__
FIXED = tuple(name for name in _NAMES[: _NAMES.index("revision")] if name != "priority")
"""The fields that are set at creation and never change."""

_HEAD = tuple(name for name in _NAMES if name not in (*FIXED, "revision", "previous", "story", "superseded"))
_STAGES = {ASSIGNED: 1, CLAIMED: 2, PROCESSING: 3}

KEPT = "kept"
"""The story entry of an owner that was taken for lost and is not (``transitions.confirm_ownership``)."""

T = TypeVar("T")
Rank = tuple[tuple[str, Any], ...]
"""Rules by name. The first rule that differs decides."""


class NotTheSameRun(AsterismError):
    """Two records with one id differ in fields that never change, or name an unknown rule: one is false or broken.
    ``fields`` are those fields."""

    def __init__(self, run_id: str, why: str, names: Sequence[str]) -> None:
        self.run_id, self.fields = run_id, tuple(names)
        super().__init__(
            f"these are not two records of run {run_id}: {why}. One of them is false or broken; keep your own"
        )


def merge_records(a: Run, b: Run) -> Run:
    """The record with which both stores continue. Raises NotTheSameRun."""
    _require_same_run(a, b)
    return a if a == b else _combined(_winner(a, b), a, b)


def merge_keeping(mine: Run, theirs: Run) -> Run:
    """As ``merge_records``, but the history of ``mine`` wins in any case: for a caller that knows that ``theirs`` has
    no news of it. Raises NotTheSameRun."""
    _require_same_run(mine, theirs)
    return mine if mine == theirs else _combined(mine, mine, theirs)


def _combined(won: Run, a: Run, b: Run) -> Run:
    return won.changed(
        revision=max(a.revision, b.revision),
        previous=(
            *_side_entries((*a.previous, *b.previous), own_assignments(won), _assignment_key),
            *own_assignments(won),
        ),
        superseded=_side_entries((*_all_results(a), *_all_results(b)), own_result(won), _result_key),
        story=(*_side_entries((*a.story, *b.story), own_story(won), _entry_key), *own_story(won)),
    )


def outranks(mine: Run, theirs: Run) -> bool:
    """Whether the history of ``mine`` wins. Raises NotTheSameRun."""
    _require_same_run(mine, theirs)
    return _winner(mine, theirs) is mine


def differing_fields(mine: Run, theirs: Run) -> list[str]:
    """The fields in which two records differ, without those that never change and those that only grow."""
    return [name for name in _HEAD if getattr(mine, name) != getattr(theirs, name)]


def is_forgotten(run: Run) -> bool:
    """Whether the record only says that the end of the run is unknown."""
    return bool(run.story) and run.story[-1].what == FORGOTTEN


def next_revision(mine: Run, merged: Run) -> Run | None:
    """The record that a store with ``mine`` writes, expecting the revision of ``mine``; None if ``merged`` has nothing
    new. The store's own revisions continue: the revision of another store may be the greatest possible, and then no
    step could be counted."""
    if merged.changed(revision=mine.revision) == mine:
        return None
    return merged.changed(revision=mine.revision + 1)


def loss_reason(mine: Run, merged: Run) -> str | None:
    """Why the owner of ``mine`` must stop after the merge, and by which rule, for its user; or why the result of
    ``mine`` is not the result of the run. None if it still owns the run, or never did."""
    if mine.status is COMPLETED:
        if own_result(mine) == own_result(merged):
            return None
        lost = f"the result of {mine.device} (epoch {mine.epoch}) is kept, but it is not the result of run {mine.id}"
    elif mine.grant is None or mine.grant == merged.grant:
        return None
    else:
        lost = f"{mine.device} no longer owns run {mine.id} (epoch {mine.epoch})"
    return f"{lost}: {_deciding_rule(mine, merged)}"


# -- the order ---------------------------------------------------------------------------------------------------------


def _winner(a: Run, b: Run) -> Run:
    rank_a, rank_b = _rank(a), _rank(b)
    if rank_a != rank_b:
        return a if rank_a > rank_b else b
    return a if _text_form(a) >= _text_form(b) else b


def _rank(run: Run) -> Rank:
    """Ranks are compared rule by rule. Up to the first that differs, both have the same rules."""
    keep = "epoch" if run.status is COMPLETED else run.keep
    completed = ("completed", run.status is COMPLETED)
    return (completed, *_ORDERS[keep](run), ("session", run.session or ""), *_within_assignment(run))


def _by_epoch(run: Run) -> Rank:
    return (("epoch", run.epoch), *_by_end(run), ("free", run.device is None), *_by_time(run))


def _by_end(run: Run) -> Rank:
    """A known end outranks ``forgotten``: only a store that missed the end records that."""
    return (("terminal", run.ended), ("known", not is_forgotten(run)))


def _by_time(run: Run) -> Rank:
    since = run.assigned_at if run.assigned_at is not None else inf
    return (("earlier", -since), ("device", run.device or ""))


def _by_origin(run: Run) -> Rank:
    """Assignment by assignment, from the first. A history that continues where another ends is greater."""
    keeps = _times_kept(run)
    grants = [
        (-assignment.assigned_at, assignment.device, keeps[assignment.epoch]) for assignment in own_assignments(run)
    ]
    if run.status in OWNED:
        grants.append((-(run.assigned_at or 0.0), run.device or "", keeps[run.epoch]))
    return (("origin", tuple(grants)), ("free", run.status not in OWNED), *_by_end(run))


def _times_kept(run: Run) -> Counter[int]:
    """How often its owner kept it, by epoch, counted from the end: the oldest entries may have been dropped."""
    counts: Counter[int] = Counter()
    epoch = run.epoch
    for entry in reversed(own_story(run)):
        counts[epoch] += entry.what == KEPT
        epoch -= entry.what.startswith("assigning to ")
    return counts


def was_taken_away(mine: Run, theirs: Run) -> bool:
    """Whether ``theirs`` continues after the assignment that is under way in ``mine``, because its owner was taken for
    lost."""
    if mine.grant is None or theirs.epoch < mine.epoch:
        return False
    ended = next((assignment for assignment in own_assignments(theirs) if assignment.epoch == mine.epoch), None)
    own = (mine.device, mine.assigned_at, "timeout")
    return ended is not None and (ended.device, ended.assigned_at, ended.reason) == own


_ORDERS = {"epoch": _by_epoch, "original": _by_origin}


def _within_assignment(run: Run) -> Rank:
    """The order of two records of one assignment."""
    reported = run.progress.step if run.progress is not None else -1
    return (("stage", _STAGES.get(run.status, 0)), ("steps", len(own_story(run))), ("reported", reported))


def _text_form(run: Run) -> str:
    """The whole history as text, for records that no rule distinguishes: any may win, but the same one at all peers."""
    head = [getattr(run, name) for name in _HEAD]
    return _json([head, own_assignments(run), own_story(run)])


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=dict)


# -- own history and side entries --------------------------------------------------------------------------------------


def own_assignments(run: Run) -> tuple[Assignment, ...]:
    """The ended assignments of its own history: one for each epoch, except one that is under way or completed."""
    count = run.epoch - (run.status in OWNED or run.status is COMPLETED)
    return run.previous[max(0, len(run.previous) - count) :]


def own_story(run: Run) -> tuple[Entry, ...]:
    """The story of its own history, without side entries of other stores."""
    begins = [index for index, entry in enumerate(run.story) if entry.what == "created"]
    return run.story[begins[-1] :] if begins else run.story


def own_result(run: Run) -> tuple[Superseded, ...]:
    """The result of the record, in the form in which a lost result is kept; empty if it is not completed."""
    if run.status is not COMPLETED:
        return ()
    return (Superseded(run.device or "", run.epoch, run.ended_at or 0.0, run.output),)


def _all_results(run: Run) -> tuple[Superseded, ...]:
    return (*run.superseded, *own_result(run))


def _side_entries(known: Iterable[T], own: Iterable[T], key: Callable[[T], Any]) -> tuple[T, ...]:
    """The known items that are not in ``own``, once each, in an order that does not depend on who knew them first."""
    items = {key(item): item for item in known}
    for item in own:
        items.pop(key(item), None)
    return tuple(items[item_key] for item_key in sorted(items))


def _assignment_key(entry: Assignment) -> tuple[Any, ...]:
    # without the score, one of two entries that differ in it would be kept by the order of the arguments
    score = (entry.score is not None, entry.score or 0.0)
    return (entry.epoch, entry.assigned_at, entry.device, entry.ended_at, entry.reason, entry.detail, score)


def _entry_key(entry: Entry) -> tuple[Any, ...]:
    return (entry.at, entry.what, entry.why)


def _result_key(result: Superseded) -> tuple[Any, ...]:
    return (result.epoch, result.device, result.ended_at, _json(result.output))


# -- explanations ------------------------------------------------------------------------------------------------------


def _require_same_run(a: Run, b: Run) -> None:
    differ = [name for name in FIXED if getattr(a, name) != getattr(b, name)]
    if differ:
        said = "; ".join(
            f"{name} is {getattr(a, name)!r} in one and {getattr(b, name)!r} in the other" for name in differ
        )
        raise NotTheSameRun(a.id, said, differ)
    if a.keep not in _ORDERS:
        raise NotTheSameRun(a.id, f"their rule is {a.keep!r}, which is not one of {', '.join(KEEP_RULES)}", ["keep"])


def _deciding_rule(mine: Run, won: Run) -> str:
    """The first rule that distinguishes them, in words."""
    pairs = zip(_rank(mine), _rank(won), strict=False)
    nothing: tuple[str, Any, Any] = ("", 0, 0)
    rule, ours, theirs = next(((name, a, b) for (name, a), (_, b) in pairs if a != b), nothing)
    who, now = f"{won.device}", _state_text(won)
    if rule == "origin":
        rule, ours, theirs, who = _first_difference(ours, theirs)
    match rule:
        case "completed":
            return f"{who} completed it in epoch {won.epoch}, and a result outranks work under way"
        case "epoch":
            return f"it was assigned again since, and the later assignment wins: in epoch {won.epoch}, {now}"
        case "terminal":
            return f"an end outranks work of the same epoch: {now}"
        case "free":
            return f"an ended assignment outranks one of the same epoch that has not ended: {now}"
        case "earlier":
            gap = f"{theirs - ours:.3g} s earlier, by the clocks of the stores"
            return f"it was assigned to {who} {gap}, and the earlier assignment wins: {now}"
        case "kept":
            return f"{who} had it first and was only unreachable, not lost, and the original owner wins: {now}"
        case "device":
            return f"it was assigned to {who} at the same moment, and then the greater name wins: {now}"
        case "session":
            return f"it was assigned to another session of {who} at the same moment, and the greater id wins: {now}"
    return f"there are two records of one assignment, and the one with more steps wins: {now}"


def _first_difference(
    ours: Sequence[tuple[float, str, int]], theirs: Sequence[tuple[float, str, int]]
) -> tuple[str, float, float, str]:
    """Where two histories diverge: the rule, the two times, and the device in the history that won."""
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
