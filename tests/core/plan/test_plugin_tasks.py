"""Tasks whose work a plug-in does: what they need, how they are shown, and edits that the plug-in refuses."""

from __future__ import annotations

import pytest

from asterism.core.errors import EditRejected
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask
from asterism.core.plan.task import Task, absent_plugin, needs_of, needs_text, plugin_text
from asterism.core.plan.work_patterns import work_fits

CONTAINER = Task("a", plugin={"container": {"image": "alpine", "argv": ["echo", "hello"]}})


def test_a_task_needs_its_plugin_as_a_capability() -> None:
    assert needs_of(CONTAINER) == {"plugin:container"}
    assert needs_of(Task("a", shell="true")) == set()


def test_the_work_of_a_plugin_is_one_line() -> None:
    assert CONTAINER.plugin is not None
    assert plugin_text(CONTAINER.plugin) == "container: image=alpine, argv=echo hello"


def test_capabilities_and_plugins_are_told_apart() -> None:
    assert needs_text(["plugin:container", "gpu", "disk"]) == "'disk', 'gpu', the plug-in 'container'"


def test_a_plugin_that_no_device_has_is_named() -> None:
    devices = [frozenset({"gpu"}), frozenset({"plugin:spark"})]
    assert absent_plugin(["gpu", "plugin:spark"], devices) is None
    assert absent_plugin(["plugin:container"], devices) == "it needs the plug-in 'container', which no device has"


def test_an_edit_that_the_plugin_refuses_is_rejected_with_the_reason() -> None:
    plan = Constellation("nightly")
    plan.edit([AddTask(CONTAINER)])
    plan.check_plugin = lambda plugin: "image: it is not text"
    with pytest.raises(EditRejected, match="task 'b': image: it is not text") as caught:
        plan.edit([AddTask(Task("b", plugin={"container": {"image": 1}}))])
    assert [violation.rule for violation in caught.value.violations] == ["plugin"]
    assert list(plan.nodes) == ["a"]


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [("plugin:container", True), ("plugin:*", True), ("*", True), ("plugin:spark", False), ("*:*", False)],
)
def test_a_pattern_of_functions_allows_no_plugin(pattern: str, fits: bool) -> None:
    assert work_fits(CONTAINER, [pattern]) is fits
