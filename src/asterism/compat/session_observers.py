"""The documented observers: session metrics, and the progress observer that calls an agent."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.vocabulary import (
    GALAXY,
    TASK_ENDS,
    Event,
    IEventObserver,
    Naming,
    TaskEvent,
)
from asterism.core.plan.diff import Outline, diff
from asterism.core.plan.edits import AddDependency, AddTask, RemoveDependency, RemoveTask, UpdateDependency, UpdateTask

_PROCESSING = ("processing_start_time", "processing_end_time", "processing_duration")


class SessionMetricsObserver(IEventObserver):
    """Counts events of the bus it is subscribed to; ``get_metrics`` returns the counters and statistics."""

    naming: ClassVar[Naming] = GALAXY

    def __init__(self, session_id: str, logger: logging.Logger | None = None) -> None:
        self.session_id = session_id
        self.logger = logger or logging.getLogger("asterism.compat.metrics")
        noun = self.naming.noun
        self.metrics: dict[str, Any] = {
            "session_id": session_id,
            "task_count": 0,
            "completed_tasks": 0,
            "failed_tasks": 0,
            "total_execution_time": 0.0,
            "task_timings": {},
            f"{noun}_count": 0,
            f"completed_{noun}s": 0,
            f"failed_{noun}s": 0,
            f"total_{noun}_time": 0.0,
            f"{noun}_timings": {},
            f"{noun}_modifications": {},
        }

    async def on_event(self, event: Event) -> None:
        what = event.event_type.value.rpartition("_")[2]
        if isinstance(event, TaskEvent):
            if what == "started":
                self._task_started(event)
            elif event.event_type in TASK_ENDS:
                self._task_ended(event, f"{what}_tasks")
        elif isinstance(event, self.naming.event) and event.event_type is self.naming.event_type(what):
            handlers = {"started": self._plan_started, "modified": self._plan_modified}
            handlers.get(what, self._plan_ended)(event, getattr(event, self.naming.id_key))

    # -- counters -----------------------------------------------------------------------------------------------

    def _task_started(self, event: TaskEvent) -> None:
        self.metrics["task_count"] += 1
        self.metrics["task_timings"][event.task_id] = {"start": event.timestamp}

    def _task_ended(self, event: TaskEvent, counter: str) -> None:
        self.metrics[counter] += 1
        timing = self.metrics["task_timings"].get(event.task_id)
        if timing is not None:
            timing["end"] = event.timestamp
            timing["duration"] = event.timestamp - timing["start"]
            self.metrics["total_execution_time"] += timing["duration"]

    def _plan_started(self, event: Event, plan_id: str) -> None:
        noun = self.naming.noun
        self.metrics[f"{noun}_count"] += 1
        self.metrics[f"{noun}_timings"][plan_id] = {
            "start_time": event.timestamp,
            "initial_statistics": _statistics(event.data.get(noun)),
            **{key: event.data.get(key) for key in _PROCESSING},
        }

    def _plan_ended(self, event: Event, plan_id: str) -> None:
        noun = self.naming.noun
        failed = event.event_type is self.naming.event_type("failed")
        self.metrics[f"failed_{noun}s" if failed else f"completed_{noun}s"] += 1
        timing = self.metrics[f"{noun}_timings"].get(plan_id)
        if timing is not None:
            timing["end_time"] = event.timestamp
            timing["duration"] = event.timestamp - timing["start_time"]
            timing["final_statistics"] = event.data.get("statistics") or _statistics(event.data.get(noun))
            self.metrics[f"total_{noun}_time"] += timing["duration"]

    def _plan_modified(self, event: Event, plan_id: str) -> None:
        old, new = event.data.get(f"old_{self.naming.noun}"), event.data.get(self.naming.new_key)
        record = {
            "timestamp": event.timestamp,
            "modification_type": event.data.get("modification_type", "unknown"),
            "on_task_id": event.data.get("on_task_id", []),
            "changes": changes_between(old, new),
            "new_statistics": _statistics(new),
            **{key: event.data.get(key) for key in _PROCESSING},
        }
        self.metrics[f"{self.naming.noun}_modifications"].setdefault(plan_id, []).append(record)

    # -- statistics ----------------------------------------------------------------------------------------------------

    def get_metrics(self) -> dict[str, Any]:
        """The counters, and the statistics of tasks, plans and modifications."""
        noun = self.naming.noun
        return {
            **self.metrics,
            "task_statistics": self._of_tasks(),
            f"{noun}_statistics": self._of_plans(),
            "modification_statistics": self._of_modifications(),
        }

    def _of_tasks(self) -> dict[str, Any]:
        total, completed, failed = (self.metrics[key] for key in ("task_count", "completed_tasks", "failed_tasks"))
        seconds = _durations(self.metrics["task_timings"].values())
        return {
            "total_tasks": total,
            "completed_tasks": completed,
            "failed_tasks": failed,
            "success_rate": _ratio(completed, total),
            "failure_rate": _ratio(failed, total),
            "average_task_duration": _ratio(sum(seconds), len(seconds)),
            "min_task_duration": min(seconds, default=0.0),
            "max_task_duration": max(seconds, default=0.0),
            "total_task_execution_time": self.metrics["total_execution_time"],
        }

    def _of_plans(self) -> dict[str, Any]:
        noun = self.naming.noun
        total, completed = self.metrics[f"{noun}_count"], self.metrics[f"completed_{noun}s"]
        timings = self.metrics[f"{noun}_timings"].values()
        seconds = _durations(timings)
        known = (timing.get("final_statistics") or timing["initial_statistics"] for timing in timings)
        tasks = [statistics["total_tasks"] for statistics in known if "total_tasks" in statistics]
        return {
            f"total_{noun}s": total,
            f"completed_{noun}s": completed,
            f"failed_{noun}s": self.metrics[f"failed_{noun}s"],
            "success_rate": _ratio(completed, total),
            f"average_{noun}_duration": _ratio(sum(seconds), len(seconds)),
            f"min_{noun}_duration": min(seconds, default=0.0),
            f"max_{noun}_duration": max(seconds, default=0.0),
            f"total_{noun}_time": self.metrics[f"total_{noun}_time"],
            f"average_tasks_per_{noun}": _ratio(sum(tasks), len(tasks)),
        }

    def _of_modifications(self) -> dict[str, Any]:
        noun = self.naming.noun
        records: dict[str, list[dict[str, Any]]] = self.metrics[f"{noun}_modifications"]
        counts = {plan_id: len(made) for plan_id, made in records.items()}
        return {
            "total_modifications": sum(counts.values()),
            f"{noun}s_modified": len(counts),
            f"average_modifications_per_{noun}": _ratio(sum(counts.values()), len(counts)),
            f"max_modifications_for_single_{noun}": max(counts.values(), default=0),
            f"most_modified_{noun}": max(counts, key=lambda plan_id: counts[plan_id], default=None),
            f"modifications_per_{noun}": counts,
            "modification_types_breakdown": dict(
                Counter(str(record["modification_type"]) for made in records.values() for record in made)
            ),
        }


def changes_between(old: Any, new: Any) -> dict[str, Any] | None:
    """The changes from one plan to another; None if one of them is missing."""
    if not isinstance(old, DocumentedPlan) or not isinstance(new, DocumentedPlan):
        return None
    edits = diff(Outline.of(old.plan), Outline.of(new.plan)).edits
    changes: dict[str, list[Any]] = {
        "added_tasks": [edit.task.id for edit in edits if isinstance(edit, AddTask)],
        "removed_tasks": [edit.task_id for edit in edits if isinstance(edit, RemoveTask)],
        "modified_tasks": [edit.task_id for edit in edits if isinstance(edit, UpdateTask)],
        "added_dependencies": [(edit.source, edit.target) for edit in edits if isinstance(edit, AddDependency)],
        "removed_dependencies": [(edit.source, edit.target) for edit in edits if isinstance(edit, RemoveDependency)],
        "modified_dependencies": [(edit.source, edit.target) for edit in edits if isinstance(edit, UpdateDependency)],
    }
    return {"modification_type": _kind_of(changes, new.naming.noun), **changes}


def _kind_of(changes: dict[str, list[Any]], noun: str) -> str:
    kinds = {name for name, what in changes.items() if what}
    if not kinds:
        return "no_change"
    if kinds <= {"added_tasks", "added_dependencies"} and changes["added_tasks"]:
        return "tasks_added"
    if kinds <= {"removed_tasks", "removed_dependencies"} and changes["removed_tasks"]:
        return "tasks_removed"
    return "task_properties_updated" if kinds == {"modified_tasks"} else f"{noun}_updated"


def _statistics(plan: Any) -> dict[str, Any]:
    return plan.get_statistics() if isinstance(plan, DocumentedPlan) else {}


def _durations(timings: Iterable[dict[str, Any]]) -> list[float]:
    return [timing["duration"] for timing in timings if "duration" in timing]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


class PlanProgressObserver(IEventObserver):
    """The common part of ConstellationProgressObserver and OrionProgressObserver.

    The agent has the documented ``add_task_completion_event`` and ``add_constellation_completion_event``."""

    naming: ClassVar[Naming] = GALAXY

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.task_results: dict[str, dict[str, Any]] = {}
        self.logger = logging.getLogger("asterism.compat.progress")

    async def on_event(self, event: Event) -> None:
        if isinstance(event, TaskEvent):
            self.task_results[event.task_id] = {
                "task_id": event.task_id,
                "status": event.status,
                "result": event.result,
                "error": event.error,
                "timestamp": event.timestamp,
            }
            if event.event_type in TASK_ENDS:
                await self.agent.add_task_completion_event(event)
        elif event.event_type is self.naming.event_type("completed"):
            await getattr(self.agent, f"add_{self.naming.noun}_completion_event")(event)
