"""The mask of a whole plan: whatever is recorded about its tasks is masked for every secret that the plan names.

A task that does not refer to a secret may print it all the same, since commands see the environment; and a result that
holds one may reach a condition or an expression, whose error then tells it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asterism.base.secret_mask import Mask, environment_mask, secrets_of_task
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.core.plan.status import COMPLETED, TaskStatus

Evaluate = Callable[[str, TaskStatus, Any], bool | str]


class PlanMask:
    """Made again when an edit may have brought new secrets; those of a task that was removed stay secrets."""

    def __init__(self, plan: Constellation) -> None:
        self._plan = plan
        self._seen: tuple[int, int] | None = None
        self._mask = Mask()
        self._names: set[str] = set()

    def __call__(self) -> Mask:
        """The mask as of now."""
        seen = (self._plan.version, len(self._plan.nodes))
        if seen != self._seen:
            for node in self._plan.nodes.values():
                self._names.update(secrets_of_task(node.task))
            self._seen, self._mask = seen, environment_mask(self._names)
        return self._mask

    def shown(self, value: Any) -> Any:
        """A copy of a value for a view, with every secret masked."""
        return self().data(value)

    def results(self) -> dict[str, Any]:
        """Copies of the results of all completed tasks, for a view. What may hold a secret that is not known here is
        withheld: the result of a task that refers to one, and of every task below it."""
        mask, done = self(), [node for node in self._plan.nodes.values() if node.status is COMPLETED]
        absent = frozenset(mask.absent)
        found = [node for node in done if not absent.isdisjoint(secrets_of_task(node.task))] if absent else []
        doubtful: set[Node] = set()
        while found:
            node = found.pop()
            if node not in doubtful:
                doubtful.add(node)
                found.extend(node.children.values())
        return {node.id: mask.result(node.value) if node in doubtful else mask.data(node.value) for node in done}

    def over(self, evaluate: Evaluate) -> Evaluate:
        """The same evaluation of conditions; the reason why one cannot be judged is masked."""

        def masked(text: str, status: TaskStatus, result: Any) -> bool | str:
            verdict = evaluate(text, status, result)
            return self().about_data(verdict) if isinstance(verdict, str) else verdict

        return masked
