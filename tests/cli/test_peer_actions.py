"""Tables and JSON of peers and syncs."""

from __future__ import annotations

from pathlib import Path

import pytest

from asterism.cli.fleet.peer_actions import RefusalLog, clock_note, peer_statuses, peers_table, sync_json, sync_lines
from asterism.fleet.fleet import Fleet
from asterism.peers.exchange import SyncResult
from asterism.peers.invitations import invite
from asterism.peers.registry import PeerRegistry
from asterism.store.protocol import Notice
from asterism.store.sqlite import SqliteStore

REFUSED = Notice(5.0, "refused", "run 1 of laptop is malformed", "1")


def lines(met: SyncResult, *refusals: Notice, width: int | None = None) -> list[str]:
    return [str(line) for line in sync_lines("kitchen", met, refusals, width)]


def test_a_sync_is_summarised_in_numbers() -> None:
    assert lines(SyncResult()) == ["Synced with kitchen: 0 records sent, 0 records received."]
    assert lines(SyncResult(1, 1200)) == ["Synced with kitchen: 1 record sent, 1,200 records received."]


def test_refusals_and_losses_are_printed_with_their_reason() -> None:
    assert lines(SyncResult(refused=1, lost=("laptop no longer owns run 7",)), REFUSED) == [
        "Synced with kitchen: 0 records sent, 0 records received, 1 record refused.",
        "Refused: run 1 of laptop is malformed",
        "Lost: laptop no longer owns run 7",
    ]


def test_closed_copies_and_rollbacks_are_printed() -> None:
    assert lines(SyncResult(closed=("run 7: how it ended is not known",), put_back="here"))[1:] == [
        "Closed: run 7: how it ended is not known",
        "This store was restored from an older copy: all records were exchanged again.",
    ]
    assert lines(SyncResult(put_back="there"))[1].startswith("The store of kitchen was restored from an older copy")


def test_refusals_of_the_peer_are_printed_with_their_reasons() -> None:
    assert lines(SyncResult(2, refused_there=("run 7: it is\x1b[2J forged", "1 more, without a reason")))[1:] == [
        "Refused by kitchen: run 7: it is·[2J forged",
        "Refused by kitchen: 1 more, without a reason",
    ]


def test_refusals_that_were_reported_before_are_not_repeated() -> None:
    assert lines(SyncResult(refused=2))[1:] == [
        "These refusals were reported before: `asterism runs show RUN` shows the reason."
    ]


def test_long_reasons_are_broken_between_words() -> None:
    broken = lines(SyncResult(lost=("a " * 50,)), width=40)
    assert all(len(line) <= 40 for line in broken[1:])
    assert len(broken) == 4


@pytest.mark.parametrize(
    ("skew", "words"),
    [
        (0.0, ""),
        (-60.0, ""),
        (61.0, "the clock of kitchen is 61 s ahead"),
        (-86_400.0, "the clock of kitchen is 24 h behind"),
    ],
)
def test_clock_differences_are_printed(skew: float, words: str) -> None:
    assert clock_note("kitchen", skew) == words
    assert (lines(SyncResult(skew=skew))[1:] == [f"T{words[1:]}."]) is bool(words)


def test_a_sync_as_json() -> None:
    assert sync_json("kitchen", SyncResult(1, 2, 3, ("lost",), 0.5, ("run 7: no",)), [REFUSED]) == {
        "peer": "kitchen",
        "sent": 1,
        "taken": 2,
        "refused": 3,
        "refusals": ["run 1 of laptop is malformed"],
        "refused_there": ["run 7: no"],
        "closed": [],
        "put_back": None,
        "lost": ["lost"],
        "skew": 0.5,
    }


async def test_only_new_refusals_are_reported(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "kitchen.db")
    await store.commit([Notice(1.0, "refused", "before")])
    refusals = await RefusalLog(store).begin()
    assert await refusals.new() == []
    more = [Notice(2.0, "refused", "one"), Notice(2.0, "failed", "not ours"), Notice(2.0, "impostor", "two")]
    await store.commit(more)
    assert [notice.message for notice in await refusals.new()] == ["one", "two"]
    assert await refusals.new() == []
    await store.close()


async def test_peers_in_every_state(tmp_path: Path) -> None:
    clock = [1000.0]
    store = await SqliteStore.open(tmp_path / "kitchen.db", clock=lambda: clock[0])
    async with Fleet(store) as fleet:
        peers = PeerRegistry(store)
        await peers.add("accepted", url="https://here:7420", pin="ab")
        await peers.add("silent", url="https://there:7420", pin="cd", store="0123456789")
        await peers.record_contact("silent", 0.0)
        await invite(store, "expired", url="https://here", own_name="me", valid_for=10)
        clock[0] += 3601
        await peers.add("met", store="abcdefghij")
        await peers.record_contact("met", 7201.0)
        await invite(store, "invited", url="https://here", own_name="me", valid_for=60)
        statuses = await peer_statuses(fleet)
        assert {status.peer.name: status.state for status in statuses} == {
            name: name for name in ("accepted", "expired", "invited", "met", "silent")
        }
        table = [" ".join(str(line).split()) for line in peers_table(statuses, clock[0], None)]
        assert table[:2] == ["PEER STATE HEARD STORE ADDRESS NOTE", "accepted accepted never https://here:7420"]
        assert table[2] == "expired expired never invite it again"
        assert table[3] == "invited invited never the invitation expires in 60 s"
        assert table[4] == "met met 0 s abcdefgh the clock of met is 2 h ahead"
        assert table[5] == "silent silent 60 min 01234567 https://there:7420"
