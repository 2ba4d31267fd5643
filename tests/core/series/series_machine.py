"""Random stories of a series, against a model that knows nothing of how it is written: a line of people, some of whom
may be told to wait, and one of whom may stand at the counter."""

from __future__ import annotations

import json

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asterism.core.series.machine import Item, Live, Series

ITEMS = st.integers(1, 6)
SOME = st.lists(ITEMS, max_size=6, unique=True)


class SeriesMachine(RuleBasedStateMachine):
    """``self.at`` is who stands at the counter, ``self.line`` who waits, in order."""

    @initialize()
    def begin(self) -> None:
        self.series = Series("RFC-093")
        self.now = 1000.0
        self.at: Item | None = None
        self.line: list[Item] = []
        self.paused = False
        self.until: float | None = None
        self.holder: str | None = None
        self.asked: dict[Item, float] = {}
        self.came: set[Item] = set()
        self.left: set[Item] = set()

    def became(self, after: Series, *, same: bool) -> None:
        """``same``: the model says that nothing changed."""
        before = self.series
        assert (after is before) == same, f"{before} became {after}"
        if not same:
            assert (after.revision, after.updated_at, after.name) == (before.revision + 1, self.now, before.name)
        self.series = after

    def seated(self, item: Item | None, lease: float | None) -> None:
        """Without a lease of its own it has the one it asked for while it waited."""
        self.at, self.holder = item, None
        self.line = [other for other in self.line if other != item]
        lease = self.asked.get(item) if lease is None and item is not None else lease
        self.until = None if lease is None or item is None else self.now + lease
        self.remember()

    def remember(self) -> None:
        """Who does not wait any more has asked for nothing."""
        self.asked = {item: self.asked[item] for item in self.line if item in self.asked}

    # -- what may happen -----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.001, 1.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 3)

    @rule(item=ITEMS, lease=st.sampled_from([None, None, 1.0, 50.0]), holder=st.sampled_from([None, "ann", "bob"]))
    def claim(self, item: Item, lease: float | None, holder: str | None) -> None:
        known = item == self.at or item in self.line
        free = self.at is None and not self.paused
        its_turn = free and (not self.line or self.line[0] == item)
        kept_from = item == self.at and None not in (holder, self.holder) and holder != self.holder
        takes = item == self.at and holder is not None and self.holder is None
        anew = self.until is None or takes
        sets = lease is not None and not kept_from and (anew if item == self.at else self.asked.get(item) != lease)
        after = self.series.claim(item, self.now, f"c{self.now}", lease, "ann", holder)
        self.became(after, same=known and not its_turn and not sets and not takes)
        if item == self.at:
            self.holder = self.holder or holder
            self.until = self.now + lease if sets and lease is not None else self.until
        elif its_turn:
            self.seated(item, lease)
            self.holder = holder
            assert (self.series.since, self.series.claim_id, self.series.by) == (self.now, f"c{self.now}", "ann")
        else:
            self.line += [] if known else [item]
            self.asked |= {} if lease is None else {item: lease}
        self.came.add(item)
        self.left.discard(item)

    @rule()
    def promote(self) -> None:
        up = self.at is None and not self.paused and bool(self.line)
        self.became(self.series.promote(self.now), same=not up)
        if up:
            self.seated(self.line[0], None)

    @rule(scanned=st.lists(st.tuples(ITEMS, st.integers(0, 3)), max_size=4, unique_by=lambda pair: pair[0]))
    def enqueue(self, scanned: list[tuple[int, int]]) -> None:
        new = [
            item
            for item, _ in sorted(scanned, key=lambda pair: (pair[1], pair[0]))
            if item not in [self.at, *self.line]
        ]
        self.became(self.series.enqueue(scanned, self.now), same=not new)
        self.line += new
        self.came |= set(new)
        self.left -= set(new)

    @rule(item=ITEMS)
    def front(self, item: Item) -> None:
        waits = item in self.line and self.line[0] != item
        self.became(self.series.front(item, self.now), same=not waits)
        if waits:
            self.line = [item, *(other for other in self.line if other != item)]

    @rule(item=ITEMS, how=st.sampled_from(["release", "leave"]))
    def go(self, item: Item, how: str) -> None:
        known, active = item == self.at or item in self.line, item == self.at
        self.became(getattr(self.series, how)(item, self.now), same=not known)
        self.line = [other for other in self.line if other != item]
        if active:
            up = self.line[0] if how == "leave" and self.line and not self.paused else None
            self.seated(up, None)
        self.remember()
        if known:
            self.left.add(item)

    @rule(after=st.sampled_from([0.0, 60.0]))
    def expire(self, after: float) -> None:
        """Now, or when every lease that there is now is over: by chance alone that would be rare."""
        self.now = round(self.now + after, 3)
        over = self.until is not None and self.until <= self.now
        gone = self.at
        self.became(self.series.expire(self.now), same=not over)
        if over and gone is not None:
            self.seated(None, None)
            self.left.add(gone)

    @rule(item=ITEMS, seconds=st.sampled_from([0.5, 100.0]), known=st.booleans())
    def renew(self, item: Item, seconds: float, known: bool) -> None:
        claim = "another claim" if not known else None
        longer = item == self.at and known and (self.until is None or self.now + seconds > self.until)
        self.became(self.series.renew(item, self.now, self.now + seconds, claim), same=not longer)
        if longer:
            self.until = round(self.now + seconds, 3)

    @rule()
    def pause(self) -> None:
        self.became(self.series.pause(self.now, "ann", "holiday"), same=self.paused)
        self.paused = True

    @rule()
    def resume(self) -> None:
        self.became(self.series.resume(self.now), same=not self.paused)
        self.paused = False

    @rule(live=SOME, assigned=SOME)
    def rebuild(self, live: list[Item], assigned: list[Item]) -> None:
        """The micro number of an item is its own number, the other way round."""
        before = (self.at, self.line)
        ordered = sorted(live, key=lambda item: -int(item))
        first = next((item for item in ordered if item in assigned), None)
        active = self.at if self.at in live else None if self.paused else first
        line = [item for item in ordered if item != active]
        live_items = [Live(item, -int(item), item in assigned) for item in live]
        self.became(self.series.rebuild(live_items, self.now), same=(active, line) == before)
        self.left |= {item for item in [before[0], *before[1]] if item is not None} - set(live)
        self.left -= set(live)
        self.came |= set(live)
        if active != self.at:
            self.seated(active, None)
        self.line = line
        self.remember()

    # -- what always holds ---------------------------------------------------------------------------------------------

    @invariant()
    def it_is_what_the_model_says(self) -> None:
        if not hasattr(self, "series"):
            return
        series = self.series
        assert (series.active, list(series.queue)) == (self.at, self.line)
        assert (series.paused is not None) == self.paused
        assert series.lease_until == self.until
        assert (series.holder, series.held_since is None) == (self.holder, self.holder is None)
        assert series.leases == tuple((item, self.asked[item]) for item in self.line if item in self.asked)

    @invariant()
    def nobody_is_lost_and_nobody_is_there_twice(self) -> None:
        if not hasattr(self, "series"):
            return
        here = [item for item in [self.series.active, *self.series.queue] if item is not None]
        assert len(set(here)) == len(here)
        assert set(here) == self.came - self.left
        assert [self.series.position(item) for item in self.series.queue] == [*range(1, len(self.series.queue) + 1)]

    @invariant()
    def it_can_be_written_and_read(self) -> None:
        if not hasattr(self, "series"):
            return
        assert Series.from_text(self.series.to_text(), "RFC-093") == self.series
        if self.series.active is not None or not self.series.queue or self.paused:
            assert Series.from_json(json.loads(json.dumps(self.series.to_json()))) == self.series
