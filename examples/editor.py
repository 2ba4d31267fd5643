"""An editor for plan.yaml: ``asterism run examples/plan.yaml --editor editor:throw_more``.

An editor is a function of the plan and of what has just ended. It answers with edits, or with None.
"""

from __future__ import annotations

from collections.abc import Sequence

from asterism import ConstellationView, EditBatch, Event, Task, TaskEvent, edits

ENOUGH = 100


async def throw_more(view: ConstellationView, events: Sequence[Event]) -> EditBatch | None:
    """If there are too few throws, throw again, and let everybody use the new throws instead."""
    ended = [event.task_id for event in events if isinstance(event, TaskEvent) and event.kind == "task_completed"]
    if "throw" not in ended or "throw-more" in view or len(view["throw"].value) >= ENOUGH:
        return None
    again = Task(
        "throw-more",
        call="random:choices",
        inputs={"population": [1, 2, 3, 4, 5, 6], "k": ENOUGH},
        description=f"{ENOUGH} throws instead",
    )
    changes: list[edits.Edit] = [edits.AddTask(again), edits.AddDependency("throw", "throw-more")]
    for name in ("mean", "spread"):
        changes += [
            edits.UpdateTask(name, inputs={"data": {"from": "throw-more"}}),
            edits.RemoveDependency("throw", name),
            edits.AddDependency("throw-more", name),
        ]
    return EditBatch(tuple(changes), reason=f"{len(view['throw'].value)} throws are too few")
