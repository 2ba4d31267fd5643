"""Every member that the public pages of the origin document, by class: it is there, and of the documented kind."""

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
        ATTRIBUTE: "task_id name description task_description tips target_device_id device_type status priority "
        "timeout retry_count task_data expected_output_type result error execution_start_time execution_end_time "
        "execution_duration created_at updated_at is_terminal is_ready_to_execute",
        METHOD: "validate get_validation_errors start_execution complete_with_success complete_with_failure retry "
        "cancel should_retry to_dict to_json to_basemodel to_request_string update_task_data add_dependency "
        "remove_dependency add_dependent",
        ASYNC: "execute",
        CLASSMETHOD: "from_dict from_json from_basemodel",
    },
    "TaskStarLine": {
        ATTRIBUTE: "line_id from_task_id to_task_id source_task_id target_task_id dependency_type "
        "condition condition_description condition_evaluator metadata last_evaluation_result "
        "last_evaluation_time created_at updated_at",
        METHOD: "is_satisfied evaluate_condition mark_satisfied reset_satisfaction set_condition_evaluator "
        "update_metadata to_dict to_json to_basemodel",
        CLASSMETHOD: "create_unconditional create_success_only create_conditional from_dict from_json from_basemodel",
    },
    "TaskConstellation": {
        ATTRIBUTE: "constellation_id name state tasks dependencies metadata task_count dependency_count "
        "execution_start_time execution_end_time execution_duration created_at updated_at",
        METHOD: "add_task remove_task get_task get_all_tasks get_ready_tasks get_running_tasks get_completed_tasks "
        "get_failed_tasks get_pending_tasks get_modifiable_tasks is_task_modifiable add_dependency remove_dependency "
        "get_dependency get_all_dependencies get_task_dependencies get_modifiable_dependencies "
        "is_dependency_modifiable validate_dag has_cycle get_topological_order start_execution start_task "
        "mark_task_completed complete_execution is_complete update_state get_longest_path "
        "get_critical_path_length_with_time get_max_width get_total_work get_parallelism_metrics get_statistics "
        "update_metadata to_dict to_json to_basemodel display_dag",
        CLASSMETHOD: "from_dict from_json from_basemodel",
    },
    "ConstellationEditor": {
        ATTRIBUTE: "constellation",
        METHOD: "add_task create_and_add_task update_task remove_task get_task list_tasks add_dependency "
        "create_and_add_dependency update_dependency remove_dependency get_dependency list_dependencies "
        "get_task_dependencies build_constellation build_from_tasks_and_dependencies clear_constellation "
        "batch_operations save_constellation load_constellation load_from_dict load_from_json_string undo redo "
        "can_undo can_redo get_undo_description get_redo_description clear_history get_history "
        "validate_constellation has_cycles get_topological_order get_ready_tasks get_statistics add_observer "
        "remove_observer create_subgraph merge_constellation display_constellation list_available_commands "
        "get_command_categories get_command_metadata execute_command_by_name",
    },
    "TaskConstellationOrchestrator": {
        METHOD: "set_device_manager set_modification_synchronizer",
        ASYNC: "orchestrate_constellation execute_constellation execute_single_task get_constellation_status "
        "get_available_devices assign_devices_automatically cancel_execution _sync_constellation_modifications",
    },
    "ConstellationManager": {
        METHOD: "reassign_task_device clear_device_assignments validate_constellation_assignments "
        "register_constellation unregister_constellation get_constellation list_constellations "
        "get_device_utilization get_task_device_info",
        ASYNC: "assign_devices_automatically get_constellation_status get_available_devices",
    },
    "ConstellationModificationSynchronizer": {
        METHOD: "merge_and_sync_constellation_states set_modification_timeout has_pending_modifications "
        "get_pending_count get_pending_task_ids get_current_constellation get_statistics clear_pending_modifications",
        ASYNC: "on_event wait_for_pending_modifications _auto_complete_on_timeout",
    },
    "EventBus": {METHOD: "subscribe unsubscribe", ASYNC: "publish_event"},
    "IEventObserver": {ASYNC: "on_event"},
    "IEventPublisher": {METHOD: "subscribe unsubscribe", ASYNC: "publish_event"},
    "EventType": {
        MEMBER: "TASK_STARTED TASK_COMPLETED TASK_FAILED CONSTELLATION_STARTED CONSTELLATION_COMPLETED "
        "CONSTELLATION_FAILED CONSTELLATION_MODIFIED AGENT_RESPONSE AGENT_ACTION DEVICE_CONNECTED "
        "DEVICE_DISCONNECTED DEVICE_STATUS_CHANGED",
    },
    "Event": {FIELD: "event_type source_id timestamp data"},
    "TaskEvent": {FIELD: "event_type source_id timestamp data task_id status result error"},
    "ConstellationEvent": {
        FIELD: "event_type source_id timestamp data constellation_id constellation_state new_ready_tasks",
    },
    "AgentEvent": {FIELD: "event_type source_id timestamp data agent_name agent_type output_type output_data"},
    "DeviceEvent": {FIELD: "event_type source_id timestamp data device_id device_status device_info all_devices"},
    "ExecutionResult": {
        FIELD: "task_id status result error metadata start_time end_time",
        ATTRIBUTE: "execution_time is_successful",
    },
    "TaskConfiguration": {FIELD: "timeout retry_count retry_delay priority metadata"},
    "SessionMetricsObserver": {METHOD: "get_metrics", ASYNC: "on_event", ATTRIBUTE: "metrics"},
    "ConstellationProgressObserver": {ASYNC: "on_event", ATTRIBUTE: "task_results agent"},
    "TaskConstellationSchema": {FIELD: "constellation_id name state tasks dependencies metadata"},
    "TaskStarSchema": {FIELD: "task_id name description tips target_device_id priority timeout status"},
    "TaskStarLineSchema": {FIELD: "line_id from_task_id to_task_id dependency_type condition_description metadata"},
}

TABLE = [
    (owner, member, kind)
    for owner, kinds in MEMBERS.items()
    for kind, members in kinds.items()
    for member in members.split()
]

ORION = {
    "TaskConstellation": "TaskOrion",
    "ConstellationEditor": "OrionEditor",
    "TaskConstellationOrchestrator": "TaskOrionOrchestrator",
    "ConstellationManager": "OrionManager",
    "ConstellationModificationSynchronizer": "OrionModificationSynchronizer",
    "ConstellationEvent": "OrionEvent",
    "ConstellationProgressObserver": "OrionProgressObserver",
    "TaskConstellationSchema": "TaskOrionSchema",
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
    if member in getattr(owner, "model_fields", {}):
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


def test_the_table_is_as_long_as_the_documents_are() -> None:
    assert len(TABLE) >= 143


def test_a_member_that_is_missing_or_of_another_kind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(galaxy.TaskConstellation, "constellation_id")
    monkeypatch.setattr(galaxy.TaskConstellation, "has_cycle", property(lambda self: False))
    assert wrong(galaxy, "TaskConstellation") == {
        "constellation_id": "missing, not attribute",
        "has_cycle": "attribute, not method",
    }
