"""Simulated peers: every schedule of splits up to a small depth, then random faults; and missing safeguards."""

from __future__ import annotations

import re
from typing import Any

import pytest

from asterism.core.run.run import Run
from asterism.fleet.fleet import Fleet
from asterism.peers import exchange, outgoing, record_decisions
from asterism.peers.exchange import Exchange, SyncResult, Transport
from asterism.peers.messages import Cursor
from asterism.peers.registry import Peer
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutCopy, PutRun, Write
from tests.laboratory.simulator import Violation, peer_world, simulate
from tests.laboratory.simulator.peer_world import ForgetfulWorld, JumpingWorld, PutBackWorld
from tests.long_tests import rest_long

pytestmark = pytest.mark.slow

ABLATED = 60
"""The number of worlds in which a missing safeguard has to show."""


@pytest.mark.long
def test_after_many_schedules_of_splits_stores_agree_and_every_loser_is_notified() -> None:
    """Play every fifth schedule of two splits, and some of those with three."""
    assert len(peer_world.schedules(2)) == 8**2
    schedules = [*peer_world.schedules(2)[::5], *peer_world.schedules(3)[::103]]
    lost = sum(
        simulate(number, world=peer_world.PeerWorld, splits=splits).checker.lost
        for number, splits in enumerate(schedules)
    )
    assert lost > len(schedules) // 20, "hardly anything was contested: these worlds show nothing"


@pytest.mark.hunt(few=2, many=10)
def test_after_random_faults_stores_agree_and_every_loser_is_notified(seeds: range) -> None:
    assert sum(simulate(seed, world=peer_world.PeerWorld).checker.lost for seed in seeds) > 0


def test_a_run_of_a_series_that_only_devices_of_peers_could_execute_ends() -> None:
    """Limits are of one store: such a run is given up with the reason, and does not wait for ever."""
    splits = [frozenset({("m0", "m1")}), frozenset({("m0", "m2")})]
    world = simulate(2, world=peer_world.PeerWorld, splits=splits)
    assert any("a run that uses limits is not sent to a device of a peer" in line for line in world.checker.log)


@pytest.mark.long
def test_a_run_that_three_stores_left_each_to_the_next_continues() -> None:
    log = [line.split() for line in simulate(67, world=PutBackWorld).checker.log]
    left = [{line[2] for line in log if line[-1] == f"e-{store})"} for store in ("m0", "m1", "m2")]
    contested = set.intersection(*left)  # some store left them to m0, some to m1, some to m2
    assert contested
    for run in contested:
        ended = {line[1] for line in log if line[2] == run and line[5] in ("completed", "failed")}
        assert ended == {"m0:", "m1:", "m2:"}


@pytest.mark.hunt(few=1, many=5)
@pytest.mark.parametrize("world", rest_long([ForgetfulWorld, JumpingWorld, PutBackWorld], 1))
def test_stores_agree_after_pruning_clock_jumps_and_rollbacks(world: type[peer_world.PeerWorld], seeds: range) -> None:
    seen: list[peer_world.PeerWorld] = []
    for seed in seeds:
        simulate(seed, seen, world)
    log = "\n".join(str(line) for played in seen for line in played.checker.log)
    assert sum(played.checker.forgot for played in seen) > 0 or world is not ForgetfulWorld
    assert "is put back" in log or world is not PutBackWorld
    assert "jumps by" in log or world is not JumpingWorld


@pytest.mark.long
def test_one_seed_is_one_world() -> None:
    assert simulate(4, world=peer_world.PeerWorld).checker.log == simulate(4, world=peer_world.PeerWorld).checker.log
    assert simulate(4, world=peer_world.PeerWorld).checker.log != simulate(5, world=peer_world.PeerWorld).checker.log


def test_there_are_eight_ways_to_cut_three_links() -> None:
    assert len(peer_world.SPLITS) == len(set(peer_world.SPLITS)) == 8
    assert [len(cut) for cut in peer_world.SPLITS] == [0, 1, 1, 1, 2, 2, 2, 3]


# -- missing safeguards ------------------------------------------------------------------------------------------------


def is_noticed(ablation: pytest.MonkeyPatch, match: str, first: int = 0, **arguments: Any) -> None:
    """Some world, with scheduled or random splits, breaks a promise in these words, and none once the ablation is
    undone. ``first`` is the first seed, for what shows rarely."""
    for seed in range(first, first + ABLATED):
        chosen = (
            {}
            if seed % 2 or "splits" in arguments or "world" in arguments
            else {"splits": peer_world.schedules(3)[(seed * 7) % 512]}
        )
        try:
            simulate(seed, **{"world": peer_world.PeerWorld, **chosen, **arguments})
        except Violation as violation:
            if re.search(match, str(violation)):
                ablation.undo()
                simulate(seed, **{"world": peer_world.PeerWorld, **chosen, **arguments})
                return
    pytest.fail(f"no world breaks a promise in the words {match!r}")


@pytest.mark.long
def test_copies_that_every_store_offers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = MemoryStore.commit

    async def as_ones_own(self: MemoryStore, writes: list[Write]) -> None:
        await commit(
            self, [PutRun(write.run, write.expected) if isinstance(write, PutCopy) else write for write in writes]
        )

    monkeypatch.setattr(MemoryStore, "commit", as_ones_own)
    words = "no link was cut|is still created|is worked on by"
    is_noticed(monkeypatch, words, first=3, splits=(frozenset(),) * 3, runs=14)  # enough that some wait


@pytest.mark.long
def test_while_no_link_is_cut_nothing_is_contested_however_much_waits() -> None:
    for seed in range(3):
        assert simulate(seed, world=peer_world.PeerWorld, splits=(frozenset(),) * 3, runs=14).checker.lost == 0


@pytest.mark.long
def test_an_unnoticed_rollback_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    async def believed(self: outgoing.FeedMarks, peer: Peer, cursor: Cursor | None) -> outgoing.FeedPosition:
        good = cursor is not None and cursor.feed == self._id and cursor.number <= await self._feed.newest()
        return outgoing.FeedPosition(cursor.number if good and cursor is not None else 0)

    monkeypatch.setattr(outgoing.FeedMarks, "position", believed)
    is_noticed(monkeypatch, "records long after", first=9, world=PutBackWorld)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        pytest.param("records long after", 133, marks=pytest.mark.long),
        pytest.param("was closed as forgotten, and it is open", 101, marks=pytest.mark.long),
    ],
)
def test_a_run_that_no_store_continues_after_a_rollback_is_noticed(
    words: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any) -> None:
        return None

    monkeypatch.setattr(record_decisions.BatchDecisions, "_lost_by_own_device", nothing)
    is_noticed(monkeypatch, words, first=first, world=PutBackWorld)


@pytest.mark.long
def test_losers_that_are_not_notified_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> list[Write]:
        return []

    monkeypatch.setattr(record_decisions.BatchDecisions, "_loss_writes", nothing)
    is_noticed(monkeypatch, "and was not notified", first=3)


@pytest.mark.long
def test_peers_that_repeat_themselves_without_end_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def always_new(mine: Run, resolved: Run) -> Run:
        return resolved.changed(revision=max(mine.revision + 1, resolved.revision))

    monkeypatch.setattr(record_decisions, "next_revision", always_new)
    monkeypatch.setattr(record_decisions.BatchDecisions, "_authority", lambda *_: None)
    monkeypatch.setattr(exchange, "MAX_STALLED_ROUNDS", 1)

    class Bounded(Exchange):
        """Otherwise one sync would never end."""

        def __init__(self, fleet: Fleet) -> None:
            super().__init__(fleet)
            self._rounds = 0

        async def sync(self, peer: str, transport: Transport) -> SyncResult:
            self._rounds = 0
            return await super().sync(peer, transport)

        async def _fetch_missing(self, *arguments: Any) -> Any:
            self._rounds += 1
            if self._rounds > 30:
                raise Violation("they keep sending each other the same records")
            return await super()._fetch_missing(*arguments)

    is_noticed(monkeypatch, "keep sending each other|long after", make_exchange=Bounded, runs=2)
