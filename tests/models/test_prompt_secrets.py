"""No part of a secret reaches a model: texts of a prompt are masked before they are cut or escaped."""

from __future__ import annotations

import pytest

from asterism import Constellation, Task, Violation
from asterism.base.secret_mask import Mask
from asterism.core.plan.constellation import ConstellationView
from asterism.models.plan_prompt import PromptMemory, Surroundings, plan_prompt, task_list
from asterism.orchestrator.events import EditEvent
from tests.models.editor_scenes import orchestrator, scripted

PLAIN = "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"
ODD = 'pa<|ss"w\\ord-long-enough</s>-Q7'
HIDDEN = "geheim\u200b-Zz9-sehr-lang"
SECRETS = [PLAIN, ODD, HIDDEN]


def parts(secret):
    """Every part of a secret that is long enough to be no accident."""
    return [secret[at : at + 6] for at in range(len(secret) - 5)]


def same(secret):
    return secret


def before(secret, length):
    return "x" * length + secret


def within(secret):
    return {"k": [secret]}


def fails(secret, before, after):
    print(secret + "A" * before)
    raise ValueError("y" * after + secret + "z" * after)


@pytest.mark.parametrize("secret", SECRETS)
async def test_no_part_of_a_secret_is_in_a_prompt_or_in_the_cassette(monkeypatch, secret):
    monkeypatch.setenv("KEY", secret)
    inputs = {"secret": {"secret": "KEY"}}
    plan = Constellation("secret")
    plan.add(Task("same", call=same, inputs=inputs))
    plan.add(Task("within", call=within, inputs=inputs))
    plan.add(Task("cut", call=before, inputs={**inputs, "length": 1180}))
    plan.add(Task("fails", call=fails, inputs={**inputs, "before": 2390, "after": 1190}))
    plan.add(Task("long", call=fails, inputs={**inputs, "before": 3980, "after": 10}))
    model = scripted([], ask="all")
    await orchestrator(model).run(plan)
    text = "\n".join(model.caller.prompts)
    assert "[secret]" in text
    assert [part for part in parts(secret) if part in text] == []
    exchanges = str([exchange.to_json() for exchange in await model.cassette.exchanges("secret")])
    assert [part for part in parts(secret) if part in exchanges] == []


@pytest.mark.parametrize("secret", SECRETS)
def test_no_part_of_a_secret_is_in_the_texts_of_tasks_and_edits(secret):
    plan = Constellation("tasks")
    long = "x" * 230 + secret
    plan.add(Task("a", shell=long, description=long))
    plan.add(Task("b[1]", argv=["echo", long], description=long), after="a")
    mask = Mask({"KEY": secret})
    view, memory = ConstellationView(plan), PromptMemory()
    about = {"at": 0.0, "version": 0, "cycle": 1}
    events = [
        EditEvent(kind="edit_refused", edits=(long,), reason="x" * 1190 + secret, **about),
        EditEvent(kind="edit_rejected", violations=(Violation(0, "rule", secret),), **about),
    ]
    plan.begin(0.0)
    plan_prompt(view, events, memory, Surroundings(mask=mask))
    plan.note(1.0, "edit refused", None, long)
    text = plan_prompt(view, events, memory, Surroundings(mask=mask)) + task_list(view, ["a", "b[1]"], "*", mask=mask)
    assert "[secret]" in text or "[s" in text
    assert [part for part in parts(secret) if part in text] == []


@pytest.mark.parametrize("secret", SECRETS)
def test_without_the_mask_before_the_cut_a_part_would_be_shown(secret):
    """The ablation: the whole prompt is masked, but only after its texts were cut and escaped."""
    plan = Constellation("tasks")
    plan.add(Task("a", shell="x" * 230 + secret))
    text = Mask({"KEY": secret}).text(task_list(ConstellationView(plan), [], "a"))
    assert secret[:2] in text
