"""Peers that are cut off from each other, whatever may happen to a run in their stores, and what must be true when they
meet: functions (``check_…``) over random histories, so that ablations can show what each part of the order is for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

from hypothesis import strategies as st

from asterism.core.errors import RunRefused
from asterism.core.run import merge as resolving
from asterism.core.run import transitions
from asterism.core.run.merge import loss_reason, next_revision
from asterism.core.run.run import Owner, Progress, Run
from asterism.core.run.work import KEEP_RULES, Workflow
from asterism.store import row_codec
from tests.core.run.run_scenes import KITCHEN, LAPTOP, grant_of

DAY = 86_400.0
TOUGH = Workflow("transcode", shell="true", retries=3, losses=3, rounds=3, backoff=0.0, version=3)
ATTIC = Owner("attic", "attic-1")
OWNERS = (KITCHEN, LAPTOP, ATTIC)


def resolve(a: Run, b: Run) -> Run:
    return resolving.merge_records(a, b)  # by its module, so that an ablation is seen


# -- random histories in stores that are cut off from each other -------------------------------------------------------

Event = Callable[[Run, float, int], Run]

EVENTS: dict[str, Event] = {
    "take": lambda run, now, who: transitions.take(run, OWNERS[who], now, scores={OWNERS[who].device: now}),
    "take, start": lambda run, now, who: transitions.take(run, OWNERS[who], now, starts=True),
    "assign": lambda run, now, who: transitions.assign(
        run, OWNERS[who], by="hub", now=now, scores={"kitchen": 50.0, "laptop": 40.0}
    ),
    "claim": lambda run, now, who: transitions.claim(run, grant_of(run), now),
    "start": lambda run, now, who: transitions.start(run, grant_of(run), now),
    "complete": lambda run, now, who: transitions.complete(run, grant_of(run), {"by": who}, now),
    "fail": lambda run, now, who: transitions.fail(run, grant_of(run), "exit code 1", now, final=who == 2),
    "decline": lambda run, now, who: transitions.decline(run, grant_of(run), "on battery", now),
    "release": lambda run, now, who: transitions.release(run, grant_of(run), "released", "x", now, Progress(who, 10)),
    "lose": lambda run, now, who: transitions.lose(run, now, "silence"),
    "keep": lambda run, now, who: transitions.confirm_ownership(run, grant_of(run), "it is at work", now),
    "next_round": lambda run, now, who: transitions.offer_again(run, now),
    "pause": lambda run, now, who: transitions.pause(run, now, "ann"),
    "resume": lambda run, now, who: transitions.resume(run, now, "ann"),
    "cancel": lambda run, now, who: transitions.cancel(run, now, "ann"),
    "forget": lambda run, now, who: transitions.mark_forgotten(run, now, "nobody knows"),
    "report": lambda run, now, who: run if run.ended else run.changed(progress=Progress(who, 10)),
}


WAITS = ["take, start", "take, start", "take", "assign", "next_round", "pause", "resume", "cancel"]
LIKELY = {
    "created": WAITS,
    "reassigning": WAITS,
    "assigned": ["claim", "claim", "decline", "lose", "pause", "cancel", "forget"],
    "claimed": ["start", "start", "start", "release", "lose", "pause", "resume", "cancel", "decline", "keep"],
    "processing": [
        *("complete", "complete", "fail", "release", "lose", "pause", "resume", "cancel", "report", "forget", "keep"),
    ],
    "completed": ["complete"],
    "failed": ["pause"],
}
"""What is worth trying in which state."""


class Step(NamedTuple):
    """Something happens in one store, or (``origin``) another sends it its record."""

    store: int
    choice: int
    who: int
    tick: float
    origin: int | None = None


class Peers:
    """``seen`` has every record that was ever in a store, ``lines`` each one with its successor. No dataclass, or else
    Hypothesis would print every record in it."""

    def __init__(self, records: list[Run], clocks: list[float], before: Peers | None = None) -> None:
        self.records, self.clocks = records, clocks
        self.seen: list[Run] = list(before.seen) if before is not None else list(records)
        self.lines: list[tuple[Run, Run]] = list(before.lines) if before is not None else []

    def __repr__(self) -> str:
        last = [f"{entry.at:g} {entry.what}" for run in self.records for entry in run.story[-3:]]
        return f"{len(self.records)} peers, {self.records[0].keep}, {len(self.seen)} records, at last {last}"

    def take(self, step: Step) -> None:
        here = step.store % len(self.records)
        self.clocks[here] += step.tick
        before = self.records[here]
        if step.origin is not None:
            self.send(step.origin, here)
            return
        words = LIKELY[before.status]
        event = words[step.choice % len(words)]
        try:
            after = EVENTS[event](before, self.clocks[here], step.who)
        except RunRefused:
            return
        if after is not before:
            if event != "report":  # a report is not a step: it adds no entry
                self.lines.append((before, after))
            self.put(here, after)

    def send(self, origin: int, to: int) -> bool:
        """Whether it was news."""
        mine = self.records[to]
        written = next_revision(mine, resolve(mine, self.records[origin]))
        if written is None:
            return False
        assert written.revision > mine.revision, "a store cannot write that"
        self.put(to, written)
        return True

    def put(self, here: int, run: Run) -> None:
        self.records[here] = run
        self.seen.append(run)


def steps(peers: int, most: int) -> st.SearchStrategy[list[Step]]:
    places, ticks = st.integers(0, peers - 1), st.sampled_from([0.0, 0.0, 1.0, 100.0])
    happens = st.builds(Step, places, st.integers(0, 10), st.integers(0, 2), ticks, st.none())
    meets = st.builds(Step, places, st.just(0), st.just(0), ticks, places)
    return st.lists(st.one_of(happens, happens, happens, meets), max_size=most)


@st.composite
def histories(draw: st.DrawFn) -> Peers:
    count = draw(st.integers(2, 3))
    clocks = [draw(st.sampled_from([0.0, 0.0, 1.0, DAY])) for _ in range(count)]
    run = transitions.create("r1", TOUGH, {}, by="ann", now=0.0, keep=draw(st.sampled_from(KEEP_RULES)))
    common = Peers([run], [0.0])
    for step in draw(steps(1, 4)):
        common.take(step)
    peers = Peers(common.records * count, clocks, common)
    for step in draw(steps(count, 20)):
        peers.take(step)
    return peers


def apart_from_revision(run: Run) -> Run:
    return run.changed(revision=0)


# -- what is true of all of them ---------------------------------------------------------------------------------------


def check_laws(records: Sequence[Run]) -> None:
    for a in records:
        assert resolve(a, a) == a, "a record resolved with itself is another"
    for a, b in product(records, repeat=2):
        both = resolve(a, b)
        assert both == resolve(b, a), "it matters who of two comes first"
        assert resolve(a, both) == both, "it matters that one is heard of twice"
        assert resolve(both, b) == both, "it matters that one is heard of twice"
    for a, b, c in product(records, repeat=3):
        assert resolve(resolve(a, b), c) == resolve(a, resolve(b, c)), "it matters which two of three meet first"


def check_lag(before: Run, after: Run) -> None:
    """``after`` is what became of ``before`` in one step."""
    merged = resolve(before, after)
    same = merged.changed(story=after.story, previous=after.previous, revision=after.revision)
    assert same == after, "a copy that lags behind undid a step"
    assert merged.story[-1] == after.story[-1], "a copy that lags behind undid a step"
    assert set(merged.story) == set(after.story)
    assert set(merged.previous) == set(after.previous)


def check_healed(peers: Peers, order: Sequence[tuple[int, int]]) -> None:
    """All peers exchange records, in some order, until no record changes any more."""
    apart, seen = list(peers.records), list(peers.seen)
    for _ in range(len(apart) + 1):
        if not [pair for pair in order if peers.send(*pair)]:
            break
    else:
        raise AssertionError("peers answer each other for ever")
    final = peers.records[0]
    assert all(apart_from_revision(record) == apart_from_revision(final) for record in peers.records), (
        "peers do not agree"
    )
    check_nothing_lost(seen, final)
    check_owners(apart, final)


def check_nothing_lost(seen: Sequence[Run], final: Run) -> None:
    results = [(result.device, result.epoch, result.ended_at, result.output) for result in final.superseded]
    if final.status == "completed":
        results.append((f"{final.device}", final.epoch, final.ended_at or 0.0, final.output))
    assert len(set(map(repr, results))) == len(results), "a result is there twice"
    for run in seen:
        if run.status == "completed":
            assert final.status == "completed", "a completed run was given away again"
            assert (run.device, run.epoch, run.ended_at, run.output) in results, "a result was lost"
        assert set(run.story) <= set(final.story), "an entry of the story was lost"
        assert set(run.previous) <= set(final.previous), "an assignment was lost"


def check_owners(apart: Sequence[Run], final: Run) -> None:
    for mine in apart:
        why = loss_reason(mine, final)
        if mine.grant is not None:
            assert (why is None) == (mine.grant == final.grant), "a loser was not told, or an owner was sent away"
            assert why is None or why.startswith(f"{mine.device} no longer owns run r1"), why
        elif mine.status == "completed":
            won = (final.device, final.epoch, final.ended_at, final.output)
            stands = won == (mine.device, mine.epoch, mine.ended_at, mine.output)
            assert (why is None) == stands, "a result was superseded, and nobody was told"
        else:
            assert why is None, "nobody lost"


def check_works_on(run: Run) -> None:
    """What the core says of a record after peers have met: it can be brought to its end."""
    if run.paused is not None:
        run = transitions.resume(run, 2 * DAY, "ann")
    if not run.ended:
        if run.offered:
            run = transitions.take(run, ATTIC, 2 * DAY)
        if run.status == "assigned":
            run = transitions.claim(run, grant_of(run), 2 * DAY)
        if run.status == "claimed":
            run = transitions.start(run, grant_of(run), 2 * DAY)
        run = transitions.complete(run, grant_of(run), 42, 2 * DAY)
    assert run.ended
    row = (*row_codec.fixed(run), *row_codec.moving(run))
    assert row_codec.run_of(row) == run, "a store cannot keep it"


def spread(records: Sequence[Run], most: int) -> list[Run]:
    """Some of many, the last of them for certain: three of each would be too many otherwise."""
    return list(records[:: -max(1, len(records) // most)])[:most]
