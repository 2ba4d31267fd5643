"""Mask of a whole plan: hides the secrets that it names in all that is recorded or shown about it.

A task may print a secret that it does not refer to, because commands see the environment. A result that contains a
secret may reach a condition or an expression, whose error message then contains it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from asterism.base.expressions import Conditions
from asterism.base.secret_mask import Mask, environment_mask, secrets_of_task
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.core.plan.status import COMPLETED, FAILED, TaskStatus

Evaluate = Callable[[str, TaskStatus, Any], bool | str]


class PlanMask:
    """Follows the plan: an edit may add secrets. Those of a removed task stay masked."""

    def __init__(self, plan: Constellation) -> None:
        self._plan = plan
        self._seen: tuple[int, int] | None = None
        self._mask = Mask()
        self._names: set[str] = set()

    def __call__(self) -> Mask:
        """The current mask."""
        seen = (self._plan.version, len(self._plan.nodes))
        if seen != self._seen:
            for node in self._plan.nodes.values():
                self._names.update(secrets_of_task(node.task))
            self._seen, self._mask = seen, environment_mask(self._names)
        return self._mask

    def shown(self, value: Any) -> Any:
        """A copy of a value with every secret masked, for a view."""
        return self().data(value)

    def results(self) -> dict[str, Any]:
        """Masked copies of all results, for a view: also of groups that failed in part. A result that may contain a
        secret whose value this process does not know is withheld: that of a task which refers to it, and of every task
        below."""
        mask, done = self(), [node for node in self._plan.nodes.values() if has_result(node)]
        absent = frozenset(mask.absent)
        unchecked = [node for node in done if not absent.isdisjoint(secrets_of_task(node.task))] if absent else []
        doubtful: set[Node] = set()
        while unchecked:
            node = unchecked.pop()
            if node not in doubtful:
                doubtful.add(node)
                unchecked.extend(node.children.values())
        return {node.id: mask.result(node.value) if node in doubtful else mask.data(node.value) for node in done}

    def over(self, evaluate: Evaluate) -> Evaluate:
        """An evaluation of conditions whose error messages are masked."""

        def masked(text: str, status: TaskStatus, result: Any) -> bool | str:
            verdict = evaluate(text, status, result)
            return self().about_data(verdict) if isinstance(verdict, str) else verdict

        return masked


def has_result(node: Node) -> bool:
    """Whether a task has a result: it has completed, or is a group with the results of some elements."""
    return node.status is COMPLETED or (node.status is FAILED and node.value is not None)


def mask_conditions(plan: Constellation, conditions: Conditions) -> None:
    """Give a plan what evaluates its conditions, with masked error messages, and what checks them."""
    mask = PlanMask(weakref.proxy(plan))  # the plan has it: a plan without cycles is freed as soon as it is not used
    plan.evaluate, plan.check_condition = mask.over(conditions.evaluate), conditions.check
