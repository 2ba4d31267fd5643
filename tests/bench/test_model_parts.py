"""The parts of the benchmarks of models, which are exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asterism.cli.demo import release_demo
from asterism.cli.demo.workshop import Workshop
from bench import models


def test_the_release_is_the_one_of_the_demonstration(tmp_path: Path) -> None:
    """Its tasks, its dependencies, and the edits of its editor."""
    shop = Workshop(tmp_path)
    plan = release_demo.release(shop)
    assert {name: set(node.parents) for name, node in plan.nodes.items()} == {
        name: set(after) for name, (_, after) in models.RELEASE.items()
    }
    editor = release_demo.Maintainer(shop)
    for made, simulated in ((editor.repair(), models.REPAIR), (editor.prune(), models.PRUNE)):
        assert sorted(map(written, made)) == sorted(map(shown, simulated))


def written(edit: object) -> str:
    """An edit of the demonstration, as the tasks that it names."""
    task = getattr(edit, "task", None)
    fields = [task.id] if task is not None else [getattr(edit, name, "") for name in ("source", "target", "task_id")]
    return " ".join([type(edit).__name__, *filter(None, fields)])


def shown(edit: dict[str, Any]) -> str:
    """The same of an edit of the scripted model."""
    kind = "".join(word.capitalize() for word in edit["op"].split("_"))
    fields = [edit["task"]["id"]] if "task" in edit else [edit.get(name) for name in ("source", "target", "task_id")]
    return " ".join([kind, *filter(None, fields)])


def test_a_filter_avoids_most_calls_of_a_release_that_is_repaired() -> None:
    everything, demo, failures = models.calls_by_filter().values()
    assert everything[0] > 5 * demo[0]
    assert min(demo[0], failures[0]) >= 2  # one for the bug, and one for the PDF
    assert everything[1] == 0
    assert demo[1] > 10
    assert failures[1] > 10


def test_without_its_edits_the_release_is_not_published() -> None:
    desk = models.LocalDevice("desk", slots=models.SLOTS, run=models._failing_work)
    editor = models.ModelEditor("bench:scripted", caller=models.ScriptedCaller(models.LATENCY), ask="all")
    result = models.run(models.Orchestrator([desk], editor=editor).run(models.plan_of(models.RELEASE)))
    assert result["publish"].status != "completed"


def test_answers_that_are_not_used_give_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in ("task 'test-numbers' failed", "task 'find-typesetter' completed"):
        answers = {line: found for line, found in models.ANSWERS.items() if line != missing}
        if "typesetter" in missing:
            del answers["task 'docs-pdf' failed"]
        monkeypatch.setattr(models, "ANSWERS", answers)
        with pytest.raises(AssertionError, match=r"have not completed|bundle-docs depends on"):
            models.calls_by_filter()
        monkeypatch.undo()


def test_a_task_that_failed_or_was_left_out_gives_no_makespan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_work", models._failing_work)
    with pytest.raises(AssertionError, match="test-numbers is failed"):
        models.edited(models.RELEASE, "scoped", "failure")
    models.check_worked(models.TIMELINE, ["a", "c", "b"])
    for worked in (["a", "b"], ["a", "b", "c", "c"]):
        with pytest.raises(AssertionError, match="executions of 3 tasks"):
            models.check_worked(models.TIMELINE, worked)


def test_a_slow_model_holds_only_what_it_reviews() -> None:
    """The example of the timeline: c follows a while b still runs. Engines that wait for the wave begin it later."""
    found = models.makespans(models.TIMELINE)
    assert found["asterism, scoped, asked about failures only"] == 6.0
    ours = [found[f"asterism, {policy}"] for policy in ("speculative", "scoped", "global")]
    assert ours == sorted(ours, key=float)
    for engine in ("langgraph, wave by wave", "pydantic_graph, wave by wave"):
        assert found[engine] in (None, 14.0)  # None: it is not installed
    assert ours[-1] < 14.0


def test_a_prompt_does_not_grow_with_the_plan() -> None:
    small, large = (models.prompt_length(count) for count in (10, 1_000))
    assert large <= models.GROWTH * small
