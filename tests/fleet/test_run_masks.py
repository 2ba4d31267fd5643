"""A list of runs reads the variables of the process once, not once for each run."""

from __future__ import annotations

import asyncio

import pytest

from asterism.base import secret_mask
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.fleet.run_queries import masks_of
from asterism.store.memory import MemoryStore


def test_runs_that_refer_to_the_same_secrets_share_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    read = secret_mask.environment_secrets

    def counted(listed: object) -> list[str]:
        nonlocal reads
        reads += 1
        return read()

    async def mask_all() -> None:
        fleet = Fleet(MemoryStore(lambda: 1000.0), by="ann")
        await fleet.workflows.add(Workflow("work", argv=("true",)))
        secret = {"secret": "SHOP_TOKEN"}
        runs = await fleet.create_many("work", [{}, {}, {}, {"token": secret}, {"token": secret}])
        masks = masks_of(runs)
        texts = [masks[run.id].text("the word swordfish-7") for run in runs]
        assert texts == ["the word [secret]"] * 5
        assert [masks[run.id].values for run in runs] == [{}] * 3 + [{"SHOP_TOKEN": "swordfish-7"}] * 2

    monkeypatch.setenv("SHOP_TOKEN", "swordfish-7")
    monkeypatch.setattr(secret_mask, "environment_secrets", counted)
    asyncio.run(mask_all())
    assert reads == 2
