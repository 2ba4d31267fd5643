"""Waiting for the end of a credential: it ends also if another wait stops at that moment, or one look fails."""

from __future__ import annotations

import asyncio

import pytest

from asterism.api.credentials import Credentials
from asterism.server.request_guard import LOOK_INTERVAL, CredentialEnds
from asterism.store.memory import MemoryStore

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "ablation"])
async def test_a_wait_that_begins_as_the_last_one_leaves_ends_with_its_credential(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr(CredentialEnds, "_stop_looking", lambda self: self._looking.cancel())
    store = MemoryStore()
    credentials, ends = Credentials(store), CredentialEnds(store)
    first, second = [await credentials.create(name, ["observe"], by="operator") for name in ("first", "second")]
    leaves = asyncio.create_task(ends.wait(first.credential))
    await asyncio.sleep(1.0)
    leaves.cancel()
    begins = asyncio.create_task(ends.wait(second.credential))
    await asyncio.sleep(1.0)
    await credentials.revoke(second.credential.id)
    await asyncio.sleep(2 * LOOK_INTERVAL)
    assert begins.done() is guarded
    begins.cancel()
    await asyncio.gather(leaves, begins, return_exceptions=True)


async def test_a_look_that_fails_is_logged_and_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    credentials, ends = Credentials(store), CredentialEnds(store)
    new = await credentials.create("reader", ["observe"], by="operator")
    waits = asyncio.create_task(ends.wait(new.credential))
    await asyncio.sleep(1.0)

    async def broken() -> None:
        raise ValueError("a record that cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(ends._credentials, "all", broken)
        await asyncio.sleep(LOOK_INTERVAL)
    assert "cannot look for credentials that ended" in caplog.text
    await credentials.revoke(new.credential.id)
    await asyncio.sleep(2 * LOOK_INTERVAL)
    assert waits.done()
