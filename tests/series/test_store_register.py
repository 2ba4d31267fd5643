"""The register in a store: separate from runs, with a bounded history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from asterism.core.series.machine import Series
from asterism.series import store_register
from asterism.series.claims import Claim, claim
from asterism.series.register import OutcomeUnknown, RegisterUnavailable
from asterism.series.store_register import StoreRegister
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRegister, Register, Write
from asterism.store.store_errors import (
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnwritable,
)

NAME = "RFC-093"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def register(store: MemoryStore) -> StoreRegister:
    return StoreRegister(store)


async def test_issues_and_runs_of_one_name_are_two_series(register: StoreRegister, store: MemoryStore) -> None:
    await store.commit([PutRegister(f"series/{NAME}", Series(NAME).claim("r1", 1.0).to_json(), None)])
    await claim(register, NAME, Claim(7))
    assert await register.names() == [NAME]
    kept = await store.register(f"series/{NAME}")
    assert kept is not None
    assert Series.from_json(kept.value).active == "r1"


async def test_old_changes_are_forgotten_and_the_last_ones_kept(
    register: StoreRegister, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_register, "KEPT_CHANGES", 10)
    monkeypatch.setattr(store_register, "TRIM_INTERVAL", 5)
    token = None
    for number in range(1, 43):
        token = await register.swap(NAME, token, str(number), f"change {number}")
        await register.swap(f"{NAME}/x", None, "other", "m") if number == 1 else None
    assert [change.text for change in await register.history(NAME, 99)] == [str(n) for n in range(42, 30, -1)]
    assert len(await register.history(f"{NAME}/x", 99)) == 1


async def test_a_store_that_was_restored_goes_on_counting_changes(register: StoreRegister, store: MemoryStore) -> None:
    """Revisions of registers begin anew there; the order of the history does not."""
    token = None
    for number in range(3):
        token = await register.swap(NAME, token, str(number), f"change {number}")
    restored = MemoryStore()
    await restored.load(store.dump())
    again = StoreRegister(restored)
    seen = await again.read(NAME)
    await again.swap(NAME, seen.token, "3", "change 3")
    assert [change.text for change in await again.history(NAME, 9)] == ["3", "2", "1", "0"]


async def test_a_value_that_nobody_here_wrote_is_taken_and_can_be_mended(
    register: StoreRegister, store: MemoryStore
) -> None:
    await store.commit([PutRegister(f"{store_register.STATE_PREFIX}{NAME}", [1, 2], None)])
    seen = await register.read(NAME)
    assert seen.text == "[1, 2]"
    await register.swap(NAME, seen.token, "mended", "m")
    assert (await register.read(NAME)).text == "mended"


class Failing(MemoryStore):
    error: StoreError

    async def commit(self, writes: Sequence[Write]) -> None:
        raise self.error

    async def register(self, key: str) -> Register | None:
        raise self.error

    async def registers(self, prefix: str, most: int | None = None) -> list[Register]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreUnavailable("gone"), OutcomeUnknown),
        (StoreBusy("locked"), RegisterUnavailable),
        (StoreFull("full"), RegisterUnavailable),
        (StoreReadOnly("read only"), RegisterUnavailable),
        (StoreUnwritable("read only"), RegisterUnavailable),
    ],
)
def test_what_the_store_says_is_said_in_the_words_of_a_register(error: StoreError, kind: type[Exception]) -> None:
    store = Failing()
    store.error = error
    with pytest.raises(kind):
        asyncio.run(StoreRegister(store).swap(NAME, None, "x", "m"))


async def test_a_store_that_is_out_of_reach_is_told_by_who_reads() -> None:
    store = Failing()
    store.error = StoreUnavailable("gone")
    register = StoreRegister(store)
    for attempt in (register.read(NAME), register.names(), register.history(NAME, 1)):
        with pytest.raises(RegisterUnavailable, match="gone"):
            await attempt


@pytest.mark.parametrize(
    "value",
    [
        *(5, [], "x", {}, {"at": 1.0}),
        {"at": "now", "message": "m", "text": "t", "token": "1.1"},
        {"at": 1.0, "message": None, "text": "t", "token": "1.1"},
        {"at": 1, "message": "", "text": "", "token": "", "x": 1},
    ],
)
async def test_a_change_that_something_else_wrote_is_shown_as_such(
    register: StoreRegister, store: MemoryStore, value: object
) -> None:
    await claim(register, NAME, Claim(7))
    await store.commit([PutRegister(f"{store_register.HISTORY_PREFIX}{NAME}/000000000009-x", value, None)])
    strange, ours = await register.history(NAME, 9)
    assert (strange.message, strange.text) == ("not written by Asterism", repr(value))
    assert ours.message == "claim #7"
