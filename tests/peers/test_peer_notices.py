"""Limits for a peer that always sends new records to refuse, or always announces new devices."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.session import ENDED
from asterism.peers import peer_notices, remote_devices
from asterism.store import row_codec
from asterism.store.memory import MemoryStore
from asterism.store.protocol import Notice, PutRegister
from tests.peers.exchange_fixtures import FLOW, Liar, Side, a_device

DAY = 86_400.0


class Counted(MemoryStore):
    """A store that counts how often its notices are read."""

    looked = 0

    async def notices(self, **options: Any) -> list[tuple[int, Notice]]:
        self.looked += 1
        return await super().notices(**options)


async def victim(store: MemoryStore | None = None) -> tuple[Side, Liar]:
    laptop = Side("laptop", store)
    laptop.store.clock = lambda: 1_000_000.0 + laptop.clock.now
    await laptop.joined()
    await laptop.exchange.peers.add("kitchen")
    return laptop, Liar(laptop)


def broken(run: Run, number: int) -> list[Any]:
    """A record with a priority that is out of range."""
    lie = run.changed(priority=2_000_000 + number)
    return [*row_codec.fixed(lie), *row_codec.moving(lie)]


async def test_refusal_notices_of_one_run_are_limited() -> None:
    laptop, liar = await victim()
    run = await laptop.create()
    lies = [broken(run, number) for number in range(2 * peer_notices.MAX_NOTICES_PER_RUN)]
    for _ in range(2):
        answer = await liar.says(*lies)
        assert answer["refused"] == len(lies)
        assert len(await laptop.notices("refused")) == peer_notices.MAX_NOTICES_PER_RUN


async def test_refusal_notices_of_one_peer_are_limited_per_day() -> None:
    laptop, liar = await victim()
    run = await laptop.create()
    for first in (0, 500, 0):
        await liar.says(*(broken(run.changed(id=f"run-{first + number}"), 1) for number in range(500)))
    notices = await laptop.notices("refused")
    assert len(notices) == peer_notices.MAX_REFUSALS_PER_DAY + 1
    assert "further ones are not reported today" in notices[-1]
    laptop.clock.now += DAY
    await liar.says(broken(run.changed(id="run-9999"), 1))
    assert len(await laptop.notices("refused")) == peer_notices.MAX_REFUSALS_PER_DAY + 2
    laptop.clock.now -= 30 * DAY  # the store's clock is set back
    await liar.says(broken(run.changed(id="run-9998"), 1))
    assert len(await laptop.notices("refused")) == peer_notices.MAX_REFUSALS_PER_DAY + 3


async def test_the_memory_of_refusals_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(peer_notices, "MAX_RUNS", 10)
    laptop, liar = await victim()
    run = await laptop.create()
    await liar.says(*(broken(run.changed(id=f"run-{number}"), 1) for number in range(50)))
    register = await laptop.store.register("peer/kitchen/refused")
    assert list(register.value["runs"]) == [f"run-{number}" for number in range(40, 50)]


async def test_the_search_for_refusal_reasons_is_limited() -> None:
    store = Counted()
    laptop, liar = await victim(store)
    lies = [forged(laptop, f"run-{number}") for number in range(500)]
    answer = await liar.says(*lies)
    assert answer["refused"] == 500
    assert len(answer["reasons"]) == 5
    assert store.looked <= peer_notices.MAX_RECORDS_SEARCHED
    store.looked = 0
    # most give no notice
    await liar.says(*(forged(laptop, f"other-{number}") for number in range(500)))
    assert store.looked <= peer_notices.MAX_RECORDS_SEARCHED


async def test_notices_about_invalid_devices_are_limited_per_day() -> None:
    laptop, liar = await victim()
    for first in (0, 300):
        await liar.says(devices=[a_device(id=f"d{first + number}", slots=-1) for number in range(300)])
    notices = await laptop.notices("refused")
    assert len(notices) == peer_notices.MAX_REFUSALS_PER_DAY + 1
    await liar.says(clock=laptop.store.clock() - 600.0)  # other topics still give notices
    assert len(await laptop.notices("clock")) == 1
    await liar.says()
    laptop.clock.now += DAY
    await liar.says(devices=[a_device(id="late", slots=-1)])
    assert len(await laptop.notices("refused")) == peer_notices.MAX_REFUSALS_PER_DAY + 2


# -- the reasons that the peer receives --------------------------------------------------------------------------------


async def reasons_for(run: Run, liar: Liar) -> list[str]:
    """The reasons that the peer receives for its record, which is refused."""
    answer = await liar.says(run)
    assert answer["refused"] == 1
    return list(answer["reasons"])


def forged(laptop: Side, name: str = "run-1") -> Run:
    """A record that is refused: it says that our device has claimed a run that we do not have."""
    run = transitions.create(name, FLOW, {}, by="liar", now=laptop.store.clock())
    return transitions.take(run, laptop.owner, laptop.store.clock())


async def test_a_peer_receives_the_reason_with_each_sync() -> None:
    laptop, liar = await victim()
    run = forged(laptop)
    reason = (
        "laptop is a device of this store, which has no report of it that the run is claimed; such a report is not "
        "accepted from a peer, also if this store was restored from an older copy and has lost it"
    )
    for _ in range(2):
        assert await reasons_for(run, liar) == [f"run run-1: {reason}"]
    assert await laptop.notices("refused") == [f"the record of run run-1 from peer kitchen was refused: {reason}"]


@pytest.mark.parametrize("register_forgot", [False, True])
async def test_the_reason_is_found_in_a_notice_that_was_given_before(register_forgot: bool) -> None:
    laptop, liar = await victim()
    run = forged(laptop)
    stored = Notice(
        1.0, "refused", "the record of run run-1 from peer kitchen was refused: its workflow is gone", "run-1"
    )
    digest = hashlib.sha256(stored.message.encode()).hexdigest()[:12]
    runs = {} if register_forgot else {"run-1": [digest] * peer_notices.MAX_NOTICES_PER_RUN}
    day = {"since": laptop.store.clock(), "given": peer_notices.MAX_REFUSALS_PER_DAY}  # so that no notice is added
    await laptop.store.commit([stored, PutRegister("peer/kitchen/refused", {**day, "runs": runs}, None)])
    assert await reasons_for(run, liar) == ["run run-1: its workflow is gone"]


async def test_a_notice_that_was_given_is_recognised_whatever_its_text() -> None:
    laptop, liar = await victim()
    run = forged(laptop)
    stored = Notice(1.0, "refused", "a text of a later version", "run-1")
    digest = hashlib.sha256(stored.message.encode()).hexdigest()[:12]
    runs = {"run-1": [digest] * peer_notices.MAX_NOTICES_PER_RUN}  # so that no notice is added
    value = {"since": laptop.store.clock(), "given": 1, "runs": runs}
    await laptop.store.commit([stored, PutRegister("peer/kitchen/refused", value, None)])
    assert await reasons_for(run, liar) == ["run run-1: a text of a later version"]


async def test_notices_about_other_peers_and_of_other_kinds_are_no_reasons() -> None:
    laptop, liar = await victim()
    run = forged(laptop)
    text = "the record of run run-1 from peer {} was refused: it is secret"
    value = {"since": laptop.store.clock(), "given": peer_notices.MAX_REFUSALS_PER_DAY, "runs": {}}
    await laptop.store.commit(
        [
            Notice(1.0, "refused", text.format("garage"), "run-1"),
            Notice(1.0, "refused", "run run-1 was not sent to peer kitchen: it is too large", "run-1"),
            Notice(1.0, "failed", text.format("kitchen"), "run-1"),
            PutRegister("peer/kitchen/refused", value, None),
        ]
    )
    assert await reasons_for(run, liar) == []


# -- devices -----------------------------------------------------------------------------------------------------------


async def test_the_memory_of_ended_remote_devices_is_limited() -> None:
    laptop, liar = await victim()
    for number in range(4):
        await liar.says(
            devices=[a_device(id=f"d{number}-{serial}", device=f"d{number}-{serial}") for serial in range(700)]
        )
    ended = [session for session in await laptop.store.sessions(ended=True) if session.state == ENDED]
    assert len(ended) == remote_devices.MAX_ENDED_SESSIONS
    assert len(await laptop.store.sessions()) == 701


async def test_an_unannounced_device_with_an_own_run_is_not_forgotten() -> None:
    laptop, liar = await victim()
    run = await laptop.create()
    await liar.says(devices=[a_device(id="busy-1", device="busy")])
    await laptop.step(
        run.id,
        lambda record: transitions.take(record, Owner("busy", "busy-1"), laptop.store.clock(), starts=True),
    )
    for number in range(4):
        laptop.clock.now += 1.0
        await liar.says(
            devices=[a_device(id=f"d{number}-{serial}", device=f"d{number}-{serial}") for serial in range(700)]
        )
    assert "busy-1" in {session.id for session in await laptop.store.sessions()}
