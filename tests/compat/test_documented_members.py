"""Every member that the documents show, and what our own examples use, by class: it is there, and of that kind."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from typing import Any

import pytest

from asterism.compat import galaxy, orion

ATTRIBUTE, METHOD, ASYNC, CLASSMETHOD, MEMBER, FIELD = "attribute", "method", "async", "classmethod", "member", "field"

MEMBERS: dict[str, dict[str, str]] = {
    "TaskStar": {
        ATTRIBUTE: "task_id name description tips target_device_id device_type status priority timeout retry_count "
        "task_data expected_output_type result error execution_start_time execution_end_time is_terminal "
        "is_ready_to_execute",
        METHOD: "start_execution cancel to_request_string update_task_data",
        ASYNC: "execute",
    },
    "TaskStarLine": {
        FIELD: "line_id from_task_id to_task_id dependency_type condition_description condition_evaluator metadata",
        CLASSMETHOD: "create_unconditional create_success_only create_conditional",
    },
    "TaskConstellation": {
        ATTRIBUTE: "constellation_id name state tasks dependencies metadata task_count dependency_count "
        "execution_duration",
        METHOD: "add_task remove_task get_task get_ready_tasks get_running_tasks get_pending_tasks add_dependency "
        "remove_dependency validate_dag mark_task_completed is_complete update_state get_statistics",
    },
    "TaskConstellationOrchestrator": {
        METHOD: "set_device_manager set_modification_synchronizer set_device_timeout set_lock_policy",
        ASYNC: "orchestrate_constellation cancel_execution",
    },
    "ConstellationModificationSynchronizer": {
        METHOD: "merge_and_sync_constellation_states set_modification_timeout has_pending_modifications "
        "get_pending_task_ids get_statistics",
        ASYNC: "on_event wait_for_pending_modifications",
    },
    "EventBus": {METHOD: "subscribe unsubscribe", ASYNC: "publish_event"},
    "IEventObserver": {ASYNC: "on_event"},
    "EventType": {
        MEMBER: "TASK_STARTED TASK_COMPLETED TASK_FAILED CONSTELLATION_STARTED CONSTELLATION_COMPLETED "
        "CONSTELLATION_FAILED CONSTELLATION_MODIFIED DEVICE_CONNECTED DEVICE_DISCONNECTED",
    },
    "Event": {FIELD: "event_type source_id timestamp data"},
    "TaskEvent": {FIELD: "event_type source_id timestamp data task_id status result error"},
    "ConstellationEvent": {
        FIELD: "event_type source_id timestamp data constellation_id constellation_state new_ready_tasks",
    },
    "DeviceEvent": {FIELD: "event_type source_id timestamp data device_id device_status device_info all_devices"},
    "ExecutionResult": {
        FIELD: "task_id status result error metadata start_time end_time",
        ATTRIBUTE: "execution_time is_successful",
    },
    "SessionMetricsObserver": {METHOD: "get_metrics", ASYNC: "on_event", ATTRIBUTE: "metrics"},
    "ConstellationProgressObserver": {ASYNC: "on_event", ATTRIBUTE: "task_results agent"},
}

TABLE = [
    (owner, member, kind)
    for owner, kinds in MEMBERS.items()
    for kind, members in kinds.items()
    for member in members.split()
]

ORION = {
    "TaskConstellation": "TaskOrion",
    "TaskConstellationOrchestrator": "TaskOrionOrchestrator",
    "ConstellationModificationSynchronizer": "OrionModificationSynchronizer",
    "ConstellationEvent": "OrionEvent",
    "ConstellationProgressObserver": "OrionProgressObserver",
}

INSTANCES = {
    "TaskConstellation": lambda module: _called(module, "TaskConstellation")(),
    "SessionMetricsObserver": lambda module: module.SessionMetricsObserver("session"),
    "ConstellationProgressObserver": lambda module: _called(module, "ConstellationProgressObserver")(agent=None),
}
"""Classes whose attributes are made by their constructor."""


def _called(module: Any, owner: str) -> Any:
    return getattr(module, ORION[owner] if module is orion and owner in ORION else owner)


def kind_of(thing: Any, member: str) -> str:
    """The kind of a member of a class or an instance."""
    owner = thing if isinstance(thing, type) else type(thing)
    if dataclasses.is_dataclass(owner) and member in {field.name for field in dataclasses.fields(owner)}:
        return FIELD
    if isinstance(owner, enum.EnumMeta) and member in owner.__members__:
        return MEMBER
    attribute = inspect.getattr_static(thing, member)
    if isinstance(attribute, classmethod):
        return CLASSMETHOD
    if inspect.iscoroutinefunction(attribute):
        return ASYNC
    return METHOD if inspect.isfunction(attribute) else ATTRIBUTE


def wrong(module: Any, owner: str) -> dict[str, str]:
    """The documented members of a class that are missing, or of another kind."""
    make = INSTANCES.get(owner)
    thing = make(module) if make else _called(module, owner)
    mistakes = {}
    for member, kind in [(member, kind) for known, member, kind in TABLE if known == owner]:
        name = (
            member if module is galaxy else member.replace("constellation", "orion").replace("CONSTELLATION", "ORION")
        )
        try:
            actual = kind_of(thing, name)
        except AttributeError:
            actual = "missing"
        if actual != kind:
            mistakes[name] = f"{actual}, not {kind}"
    return mistakes


@pytest.mark.parametrize("module", [galaxy, orion], ids=["galaxy", "orion"])
@pytest.mark.parametrize("owner", MEMBERS)
def test_every_documented_member_is_there(module: Any, owner: str) -> None:
    assert (ORION.get(owner, owner) if module is orion else owner) in module.__all__
    assert wrong(module, owner) == {}


def test_a_member_that_is_missing_or_of_another_kind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(galaxy.TaskConstellation, "constellation_id")
    monkeypatch.setattr(galaxy.TaskConstellation, "is_complete", property(lambda self: False))
    assert wrong(galaxy, "TaskConstellation") == {
        "constellation_id": "missing, not attribute",
        "is_complete": "attribute, not method",
    }
