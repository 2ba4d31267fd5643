"""A register whose value is damaged is reported with a sentence that names it, wherever it is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asterism.api.credentials import Credentials
from asterism.core.errors import EditRejected
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import EditBatch
from asterism.core.record import replace
from asterism.durable.approval_store import TERM, approval_prefix, waiting_approvals
from asterism.durable.editor_budget import go_on_without_editor, read_account
from asterism.durable.journal_store import Head, insert_plan
from asterism.durable.rejected_edits import record_rejection, rejected_edits
from asterism.fleet import settings
from asterism.fleet.fleet import Fleet
from asterism.gateway.enrolment import DeviceCredentials, find_device, revoke
from asterism.models.cassette import StoreCassette
from asterism.peers.registry import PeerRegistry
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRegister, Register
from asterism.store.store_errors import CorruptRecord

PLAN = "nightly"
HEAD = Head(PLAN, "executing", 0.0, {TERM: {}})
TOKEN = f"ast_{'a' * 10}_{'b' * 43}"

Read = Callable[[Fleet], Awaitable[Any]]

READS: dict[str, tuple[str, Read]] = {
    "waiting edits": (f"{approval_prefix(PLAN)}1", lambda fleet: waiting_approvals(fleet.store, HEAD)),
    "the account of a plan": (f"budget/{PLAN}", lambda fleet: read_account(fleet.store, PLAN)),
    "a decision about a budget": (f"budget/{PLAN}", lambda fleet: go_on_without_editor(fleet, PLAN)),
    "a call of a model": (f"budget/{PLAN}", lambda fleet: StoreCassette(fleet.store).change(PLAN, replace)),
    "the exchanges of a model": (f"exchange/{PLAN}/000001", lambda fleet: StoreCassette(fleet.store).exchanges(PLAN)),
    "the credential of a token": (f"credential/{'a' * 10}", lambda fleet: Credentials(fleet.store).find(TOKEN)),
    "a revoked credential": ("credential/a", lambda fleet: Credentials(fleet.store).revoke("a")),
    "a peer": ("peer/b", lambda fleet: PeerRegistry(fleet.store).get("b")),
    "an enrolled device": ("gateway/device/box", lambda fleet: find_device(fleet.store, "box")),
    "a revoked device": ("gateway/device/box", lambda fleet: revoke(fleet.store, "box")),
    "the secret of the gateway": ("gateway/secret", lambda fleet: DeviceCredentials.open(fleet.store)),
    "the latest version of a workflow": ("workflow/work", lambda fleet: fleet.workflows.latest("work")),
    "settings": ("settings", lambda fleet: settings.read(fleet.store)),
    "changed settings": ("settings", lambda fleet: settings.write(fleet.store, {})),
}


STRICT = READS.keys() - {"a peer", "settings", "changed settings"}
"""Without those whose fields all have a default, and whose unknown fields are those of a later version."""


@pytest.mark.parametrize(
    ("key", "read", "value"),
    [
        *(pytest.param(*row, 7, id=f"{name}, a number") for name, row in READS.items()),
        *(pytest.param(*row, {"a": 7}, id=f"{name}, other fields") for name, row in READS.items() if name in STRICT),
    ],
)
async def test_a_damaged_register_is_reported_with_its_name(key: str, read: Read, value: Any) -> None:
    async with Fleet(MemoryStore()) as fleet:
        await insert_plan(fleet.store, Constellation(PLAN))
        await fleet.store.commit([PutRegister(key, value, None)])
        with pytest.raises(CorruptRecord, match=f"^register {key} cannot be read: "):
            await read(fleet)


async def test_a_rejection_is_not_recorded_beside_a_damaged_one() -> None:
    """As for a store that is out of reach: the edit was rejected, and its author hears that."""
    async with Fleet(MemoryStore()) as fleet:
        await insert_plan(fleet.store, Constellation(PLAN))
        await fleet.store.commit([PutRegister(f"rejected/{PLAN}/01", {"a": 7}, None)])
        await record_rejection(fleet.store, PLAN, 1, EditBatch(()), EditRejected([]))
        assert [register.value for register in await fleet.store.registers(f"rejected/{PLAN}/")] == [{"a": 7}]


LISTS: dict[str, tuple[str, Read]] = {
    "rejected edits": (f"rejected/{PLAN}/02", lambda fleet: rejected_edits(fleet.store, PLAN)),
    "credentials": ("credential/left", lambda fleet: Credentials(fleet.store).all()),
    "peers": ("peer/left", lambda fleet: PeerRegistry(fleet.store).all()),
    "workflows": ("workflow/left", lambda fleet: fleet.workflows.all()),
}


@pytest.mark.parametrize(("key", "read"), LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("value", [7, {"name": 7, "number": "a", "version": []}])
async def test_a_damaged_register_is_left_out_of_a_list_and_named(
    key: str, read: Read, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    unnamed = value if value == 7 or not key.startswith("peer/") else {"url": 7}
    async with Fleet(MemoryStore()) as fleet:
        await insert_plan(fleet.store, Constellation(PLAN))
        await fleet.store.commit([PutRegister(key, unnamed, None)])
        assert await read(fleet) == []
    assert f"register {key} cannot be read" in caplog.text


def test_the_error_has_the_revision_with_which_the_register_can_be_replaced() -> None:
    with pytest.raises(CorruptRecord) as damaged:
        Register("settings", 7, 3).read(lambda value: value["a"])
    assert damaged.value.revision == 3


def test_a_register_that_can_be_read_and_an_error_of_its_reader() -> None:
    assert Register("settings", {"a": 1}, 3).read(lambda value: value["a"]) == 1

    def refuse(value: Any) -> None:
        raise settings.InvalidSettings("a must be 2")

    with pytest.raises(settings.InvalidSettings, match=r"^a must be 2$"):
        Register("settings", {"a": 1}, 3).read(refuse)


async def test_weights_that_are_no_numbers_by_name_are_refused() -> None:
    async with Fleet(MemoryStore()) as fleet:
        await fleet.store.commit([PutRegister("settings", {"weights": 7}, None)])
        with pytest.raises(settings.InvalidSettings, match="weights must be numbers by name, not 7"):
            await settings.read(fleet.store)
