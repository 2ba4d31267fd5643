"""Workflows that a process remembers."""

from __future__ import annotations

import pytest

from asterism.core.run.workflow import Workflow
from asterism.fleet import workflows
from asterism.fleet.workflows import Workflows
from asterism.store.memory import MemoryStore


async def test_a_process_remembers_the_newest_workflows_and_reads_the_others_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each plan adds workflows of its own, and a server lives through many plans."""
    monkeypatch.setattr(workflows, "MOST_KNOWN", 10)
    store = MemoryStore()
    known = Workflows(store)
    for number in range(30):
        await known.add(Workflow(f"plan:{number}", shell="true"))
    assert [known.remembered(f"plan:{number}", 1) is not None for number in range(30)] == [False] * 20 + [True] * 10
    assert (await known.get("plan:0", 1)).name == "plan:0"
    assert known.remembered("plan:0", 1) is not None
    await store.close()
