"""A run with any step at any time by any party, and what must be true of it after each step.

``RunMachine`` is a machine of Hypothesis. It knows in its own words who owns the run, what is wished of it and how
often it went wrong. So it can tell beforehand whether a step is legal, and look afterwards whether the code thought so
too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asterism.core.errors import Fenced, RunRefused
from asterism.core.run import transitions
from asterism.core.run.run import Grant, Owner, Progress, Run
from asterism.core.run.work import Workflow
from tests.core.run.run_scenes import NAMES, check, check_step

OWNERS = [Owner("kitchen", "kitchen-1"), Owner("kitchen", "kitchen-2"), Owner("laptop", "laptop-1")]
owners = st.sampled_from(OWNERS)
ANYWHERE = ("assigned", "claimed", "processing")
ticks = st.sampled_from([0.0, 0.5, 1.0, 100.0])
counts = st.integers(0, 2)
reasons = st.sampled_from(["released", "conflict", "preempted"])
progresses = st.one_of(st.none(), st.builds(Progress, st.integers(0, 9), st.just(10)))
words = st.one_of(
    st.sampled_from([("claim",), ("start",), ("complete",), ("fail", True), ("fail", False), ("fail", False)]),
    st.tuples(st.just("decline"), st.booleans()),
    st.tuples(st.just("release"), reasons, progresses),
)
"""What an owner may say, with its terms."""

# Whose grant it is: mostly the owner's, else one that is forged, outdated or of another run.
speakers = st.sampled_from(["owner", "owner", "owner", "owner", "past", "future", "stranger", "other run"])


def outcome(say: Callable[[], Run]) -> tuple[Any, RunRefused | None]:
    """The next record, or the reason why the step was refused."""
    try:
        return say(), None
    except RunRefused as refusal:
        return None, refusal


class RunMachine(RuleBasedStateMachine):
    """``where`` is "waiting", "assigned", "claimed", "processing" or "over"."""

    @initialize(retries=counts, losses=counts, rounds=st.integers(1, 3), pinned=st.booleans())
    def begin(self, retries: int, losses: int, rounds: int, pinned: bool) -> None:
        self.flow = Workflow("w", shell="true", retries=retries, losses=losses, rounds=rounds, version=1)
        self.now = 0.0
        self.old: Run | None = None
        self.device = "kitchen" if pinned else None
        self.create()

    def create(self) -> None:
        self.run = transitions.create(
            "r2" if self.old is not None and self.old.id == "r1" else "r1",
            self.flow,
            {},
            by="ann",
            now=self.now,
            device=self.device,
            priority=7,
            retry_of=self.old.id if self.old is not None else None,
        )
        self.where, self.paused, self.stop_request = "waiting", False, ""
        self.owner: Grant | None = None
        self.grants: list[Grant] = []
        self.failures = self.losses = self.rounds = 0
        self.avoided = self.declined = self.judged = False

    # -- how a step is judged -----------------------------------------------------------------------------------------

    def step(self, legal: bool, say: Callable[[Run], Run], *, fenced: bool = False, tick: float = 1.0) -> bool:
        """Take a step; whether it happened."""
        self.now += tick
        before, untouched = self.run, [getattr(self.run, name) for name in NAMES]
        after, refusal = outcome(lambda: say(before))
        assert [getattr(before, name) for name in NAMES] == untouched, "the record before was changed"
        if refusal is not None:
            assert not legal, f"refused, and legal: {refusal}"
            assert isinstance(refusal, Fenced) == fenced, f"refused for another reason: {refusal}"
            assert refusal.story == before.story
            assert all(str(entry) in str(refusal) for entry in before.story)
            return False
        assert legal, f"allowed, and wrong: {before.status} -> {after.status}"
        check_step(before, after)
        self.run = after
        return after is not before

    def grant(self, speaker: str) -> Grant:
        """What ``speaker`` shows."""
        last = self.owner or (self.grants[-1] if self.grants else Grant(self.run.id, "kitchen-1", 0))
        match speaker:
            case "past":
                return self.grants[0] if self.grants else last
            case "future":
                return last._replace(epoch=last.epoch + 1)
            case "stranger":
                return last._replace(session="attic-1")
            case "other run":
                return last._replace(run="r2" if last.run == "r1" else "r1")
        return last

    def said(self, speaker: str, places: tuple[str, ...], say: Callable[[Run, Grant], Run], tick: float) -> bool:
        """A step of an owner: legal with the grant of the owner, and if the run is in one of ``places``."""
        grant = self.grant(speaker)
        right = self.owner is not None and grant == self.owner
        return self.step(right and self.where in places, lambda run: say(run, grant), fenced=not right, tick=tick)

    def freed(self) -> None:
        """Its owner has it no more, and what was wished of it comes true."""
        self.where = "over" if self.stop_request == "cancel" else "waiting"
        self.paused = self.stop_request == "pause"
        self.owner, self.stop_request = None, ""

    def over(self) -> None:
        self.where, self.owner, self.stop_request, self.paused = "over", None, "", False

    @rule()
    @precondition(lambda self: self.where == "over")
    def retry(self) -> None:
        """A retry by hand is another run: it leaves the old one as it is, and begins at nothing."""
        old, untouched = self.run, [getattr(self.run, name) for name in NAMES]
        self.old = old
        self.create()
        assert [getattr(old, name) for name in NAMES] == untouched
        assert (self.run.retry_of, self.run.epoch, self.run.previous) == (old.id, 0, ())

    # -- a coordinator speaks -----------------------------------------------------------------------------------------

    def given(self, to: Owner, where: str, say: Callable[[Run], Run], tick: float) -> None:
        free = self.where == "waiting" and not self.paused
        epoch = self.run.epoch
        if self.step(free and self.device in (None, to.device), say, tick=tick):
            self.owner = Grant(self.run.id, to.session, epoch + 1)
            self.where = where
            self.grants.append(self.owner)

    @rule(to=owners, tick=ticks)
    def assign(self, to: Owner, tick: float) -> None:
        self.given(to, "assigned", lambda run: transitions.assign(run, to, by="hub", now=self.now), tick)

    @rule(to=owners, tick=ticks)
    def take(self, to: Owner, tick: float) -> None:
        self.given(to, "claimed", lambda run: transitions.take(run, to, self.now), tick)

    @rule(tick=ticks)
    def lose(self, tick: float) -> None:
        if self.step(self.owner is not None, lambda r: transitions.lose(r, self.now, "silence"), tick=tick):
            self.losses += self.stop_request != "cancel"
            self.over() if self.losses > self.flow.losses else self.freed()
            self.avoided = True

    @rule()
    def next_round(self) -> None:
        free = self.where == "waiting" and not self.paused
        if self.step(free and self.avoided, lambda run: transitions.offer_again(run, self.now)):
            self.rounds += self.declined
            self.avoided = self.declined = False
            if self.rounds >= self.flow.rounds:
                self.over()

    @rule()
    def next_round_while_another_rests(self) -> None:
        free = self.where == "waiting" and not self.paused
        if self.step(free and self.avoided, lambda run: transitions.offer_again(run, self.now, resting=True)):
            self.avoided = self.declined  # those that declined are not asked again, and nothing is counted

    @rule(device=st.sampled_from(["kitchen", "laptop"]), tick=ticks)
    def refuse(self, device: str, tick: float) -> None:
        free = self.where == "waiting" and not self.paused
        if self.step(free, lambda run: transitions.refuse(run, device, "no", self.now), tick=tick):
            self.avoided = self.declined = True

    @rule(luck=st.integers(0, 3))
    def give_up(self, luck: int) -> None:
        free = self.where == "waiting" and not self.paused
        if luck and free:  # an end is the end of the story: let it be told for a while
            return
        if self.step(free, lambda run: transitions.give_up(run, self.now, "no device")):
            self.over()

    # -- steps of an owner, or of another party that claims to be the owner --------------------------------------------

    @rule(speaker=speakers, what=words, tick=ticks)
    def an_owner_says(self, speaker: str, what: tuple[Any, ...], tick: float) -> None:
        name, *arguments = what
        getattr(self, name)(speaker, tick, *arguments)

    def claim(self, speaker: str, tick: float) -> None:
        if self.said(speaker, ("assigned",), lambda r, g: transitions.claim(r, g, self.now), tick):
            self.where = "claimed"

    def start(self, speaker: str, tick: float) -> None:
        if self.said(speaker, ("claimed",), lambda r, g: transitions.start(r, g, self.now), tick):
            self.where = "processing"

    def complete(self, speaker: str, tick: float) -> None:
        if self.said(speaker, ("processing",), lambda r, g: transitions.complete(r, g, 42, self.now), tick):
            self.over()
            assert (self.run.status, self.run.output) == ("completed", 42)

    def fail(self, speaker: str, tick: float, final: bool) -> None:
        def say(run: Run, grant: Grant) -> Run:
            return transitions.fail(run, grant, "boom", self.now, final=final)

        if self.said(speaker, ANYWHERE, say, tick):
            self.failures += self.stop_request != "cancel"
            if final or self.failures > self.flow.retries:
                self.over()
                assert self.run.ended, "more failures than there may be"
            else:
                self.freed()
            self.avoided = True

    def decline(self, speaker: str, tick: float, full: bool) -> None:
        if self.said(speaker, ANYWHERE, lambda r, g: transitions.decline(r, g, "no", self.now, for_now=full), tick):
            cancelled = self.stop_request == "cancel"
            self.freed()
            if not full and not cancelled:
                self.avoided = self.declined = True

    def release(self, speaker: str, tick: float, reason: str, progress: Progress | None) -> None:
        kept = progress if progress is not None else self.run.progress
        if self.said(speaker, ANYWHERE, lambda r, g: transitions.release(r, g, reason, "x", self.now, progress), tick):
            self.freed()
            assert self.run.progress == kept, "progress was lost"
            assert self.run.previous[-1].reason == reason

    @rule(to=owners, end=st.sampled_from(["assigned", "claimed", "claimed", "processing", "processing", "over"]))
    def go_on(self, to: Owner, end: str) -> None:
        """Most of what happens to runs is what should, so that the rest can happen anywhere on the way."""
        if self.paused:
            self.resume(1.0)
        order = ["waiting", *ANYWHERE, "over"]
        while order.index(self.where) < order.index(end):
            here = self.where
            if here == "waiting":
                self.assign(to, 1.0) if end == "assigned" or to.device == "kitchen" else self.take(to, 1.0)
            else:
                {"assigned": self.claim, "claimed": self.start, "processing": self.complete}[here]("owner", 1.0)
            if self.where == here:  # it was refused
                return

    # -- a person speaks ----------------------------------------------------------------------------------------------

    @rule(luck=st.integers(0, 3), tick=ticks)
    def cancel(self, luck: int, tick: float) -> None:
        if luck and self.where in ("waiting", "assigned"):
            return
        if self.step(self.where != "over", lambda run: transitions.cancel(run, self.now, "ann"), tick=tick):
            if self.where in ("claimed", "processing"):
                self.stop_request = "cancel"
            else:
                self.over()

    @rule(tick=ticks)
    def pause(self, tick: float) -> None:
        legal = self.where != "over" and self.stop_request != "cancel"
        if self.step(legal, lambda run: transitions.pause(run, self.now, "ann"), tick=tick):
            if self.where in ("claimed", "processing"):
                self.stop_request = "pause"
            else:
                self.where, self.owner, self.paused = "waiting", None, True

    @rule(tick=ticks)
    def resume(self, tick: float) -> None:
        legal = self.paused or self.stop_request == "pause"
        if self.step(legal, lambda run: transitions.resume(run, self.now, "ann"), tick=tick):
            self.paused = False
            self.stop_request = ""

    # -- what is always true ------------------------------------------------------------------------------------------

    @invariant()
    def the_record_is_sound(self) -> None:
        if hasattr(self, "run"):
            check(self.run)

    @invariant()
    def the_record_says_what_happened(self) -> None:
        if not hasattr(self, "run"):
            return
        run = self.run
        where = {"created": "waiting", "reassigning": "waiting", "completed": "over", "failed": "over"}
        assert where.get(run.status, run.status) == self.where
        assert run.grant == self.owner, "another session owns it"
        assert (run.paused is not None, run.stop_request or "") == (self.paused, self.stop_request)
        assert run.epoch == len(self.grants), "an epoch counts grants, one by one"
        assert (run.pinned, run.priority) == (self.device, 7)
        assert (run.failures, run.losses, run.rounds) == (self.failures, self.losses, self.rounds), "wrongly counted"
        assert (bool(run.avoid), bool(run.declined)) == (self.avoided, self.declined) or run.ended

    @invariant()
    def nobody_of_the_past_is_believed(self) -> None:
        for grant in getattr(self, "grants", [])[-3:]:
            if grant != self.owner:
                self.must_refuse(partial(transitions.complete, self.run, grant, 0, self.now))
                self.must_refuse(partial(transitions.release, self.run, grant, "released", "", self.now))

    @invariant()
    def an_end_is_an_end(self) -> None:
        if getattr(self, "where", "") == "over" and not self.judged:  # it is the same record ever after
            self.judged = True
            run, now = self.run, self.now
            for say in (
                lambda: transitions.take(run, OWNERS[0], now),
                lambda: transitions.lose(run, now, ""),
                lambda: transitions.offer_again(run, now),
                lambda: transitions.give_up(run, now, ""),
                lambda: transitions.cancel(run, now, "ann"),
                lambda: transitions.pause(run, now, "ann"),
                lambda: transitions.resume(run, now, "ann"),
            ):
                self.must_refuse(say)

    def must_refuse(self, say: Callable[[], Run]) -> None:
        after, refusal = outcome(say)
        assert refusal is not None, f"allowed, and wrong: {self.run.status} -> {after.status}"

    def teardown(self) -> None:
        """From wherever it is, a run can be brought to its end, and it never takes more tries than its caps allow."""
        if not hasattr(self, "run"):
            return
        if self.paused or self.stop_request == "pause":
            self.resume(0.0)
        rounds = 0
        while self.where != "over":
            if self.where == "waiting":
                self.assign(to=OWNERS[0], tick=0.0)
            self.decline("owner", 0.0, False) if self.where == "assigned" else self.lose(tick=0.0)
            if self.where == "waiting" and self.avoided:
                self.next_round()
            rounds += 1
            assert rounds <= 1 + self.flow.rounds + self.flow.losses, "it could go on for ever"
            check(self.run)
