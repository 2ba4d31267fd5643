"""Plans that are written in Python: ``module:plan`` wherever a command takes a plan file.

The name leads to a ``Constellation``, or to a function without parameters that returns one. It becomes the text of a
plan file, so that it is checked, stored, scheduled and sent to a server as one. Its functions become import paths.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from asterism.core.errors import NotJson, PlanError
from asterism.core.json_values import JsonObject
from asterism.core.plan.constellation import Constellation, TaskView

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

_DEFAULT_ID = Constellation().id


def is_python_plan(path: str) -> bool:
    """Whether a path is the name of a plan in a module, and not that of a file."""
    return _NAME.fullmatch(path) is not None and not Path(path).exists()


def python_plan_text(path: str) -> str:
    """The plan at ``module:plan`` as the text of a plan file. Raises PlanError if there is none, or if it cannot be
    one."""
    plan = _plan(path)
    head: JsonObject = {"asterism": 1, "id": plan.id if plan.id != _DEFAULT_ID else path.partition(":")[2]}
    if plan.tags:
        head["tags"] = list(plan.tags)
    if plan.overlap is not None:
        policy, head["parallel"], *key = plan.overlap
        head["overlap"] = {"key": key[0], "policy": policy} if key else policy
    try:
        tasks = {view.id: _task(plan, view) for view in map(plan.__getitem__, plan.topological())}
        return json.dumps({**head, "tasks": tasks}, indent=1, ensure_ascii=False)
    except (NotJson, TypeError) as error:
        raise PlanError(f"{path} cannot be stored: {error}") from None


def _plan(path: str) -> Constellation:
    """Raises PlanError."""
    from asterism.execution.function_modules import load_object  # most plans are files, and it takes long

    try:
        plan = load_object(path)
        if callable(plan):
            plan = plan()
    except (Exception, SystemExit) as error:  # foreign code, which may raise anything
        raise PlanError(f"the plan {path} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(plan, Constellation):
        raise PlanError(f"{path} is not a Constellation, or a function that returns one, but {type(plan).__name__}")
    return plan


def _task(plan: Constellation, view: TaskView) -> JsonObject:
    """A task as a plan file has it. Raises NotJson."""
    from asterism.execution.function_modules import stored_path

    task = view.task
    values = task.to_json()
    del values["id"]
    for name, what in (("data", "data"), ("foreach", "elements")):
        if values.get(name):
            raise NotJson(f"task {task.id!r} has {what}, which a plan file cannot say")
    if task.call is not None:
        values["call"] = stored_path(task.call, task.id)
    if task.wait_for is not None and "event" in task.wait_for:
        values.pop("untrusted", None)  # it always is
    device, needs = values.pop("device", None), values.pop("needs", [])
    if device is not None or needs:
        values["device"] = {**({} if device is None else {"id": device}), "needs": needs}
    return {**values, **_after(plan, view)}


def _after(plan: Constellation, view: TaskView) -> JsonObject:
    after: dict[str, Any] = {}
    for dependency in plan.node(view.id).parents.values():
        if dependency.on != "teardown":
            terms = {"on": dependency.on, "when": dependency.when, "handled": dependency.handled}
            after[dependency.source] = {name: value for name, value in terms.items() if value}
    return {**({"after": after} if after else {}), **({} if view.tears_down is None else {"teardown": view.tears_down})}
