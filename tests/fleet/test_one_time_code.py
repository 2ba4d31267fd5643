"""One-time codes: exchanged once, repeated by who exchanged them, and refused to everybody else."""

from __future__ import annotations

import pytest

from asterism.core.errors import AsterismError
from asterism.fleet.one_time_code import KEPT_FOR, Refusal, code_writes, is_first_use, secret_hash
from asterism.store.memory import MemoryStore

REFUSAL = Refusal(AsterismError, "this code", "ask for another one")


def test_a_code_is_used_once_and_repeated_by_the_same_proof() -> None:
    assert is_first_use("proof", None, False, REFUSAL)
    assert not is_first_use("proof", "proof", False, REFUSAL)
    assert not is_first_use("proof", "proof", True, REFUSAL), "the first answer may have been lost"
    for proof in ("other", None):
        with pytest.raises(AsterismError, match="this code was already used: if not by you, ask for another one"):
            is_first_use(proof, "proof", False, REFUSAL)
    with pytest.raises(AsterismError, match="this code has expired: ask for another one"):
        is_first_use("proof", None, True, REFUSAL)


async def test_the_store_keeps_the_hash_of_a_code_and_drops_what_is_long_over() -> None:
    store = MemoryStore()
    now = store.clock()
    for code, until in {"old": now - 2 * KEPT_FOR, "set back": now + 2 * KEPT_FOR, "late": now - 60.0}.items():
        await store.commit(await code_writes(store, "codes/", code, {"until": until}))
    await store.commit(await code_writes(store, "codes/", "new", {"until": now + 60.0}))
    keys = [register.key for register in await store.registers("codes/")]
    assert keys == sorted(f"codes/{secret_hash(code)}" for code in ("late", "new"))
