"""The mask of a whole plan: whatever is recorded about its tasks is masked for every secret that the plan names.

A task that does not refer to a secret may print it all the same, since commands see the environment; and a result that
holds one may reach a condition or an expression, whose error then tells it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from asterism.core.constellation import Constellation
from asterism.core.status import TaskStatus
from asterism.runtime.mask import Mask, of_environment, secret_names

Evaluate = Callable[[str, TaskStatus, Any], bool | str]


class PlanMask:
    """Made again when an edit may have brought new secrets; those of a task that was removed stay secrets."""

    def __init__(self, plan: Constellation) -> None:
        self._plan = plan
        self._seen: tuple[int, int] | None = None
        self._mask = Mask()
        self._names: set[str] = set()
        self._absent: list[str] = []

    def __call__(self) -> Mask:
        """The mask as of now."""
        seen = (self._plan.version, len(self._plan.nodes))
        if seen != self._seen:
            for node in self._plan.nodes.values():
                if node.task.inputs or node.task.env or node.task.http:
                    self._names.update(secret_names((node.task.inputs, node.task.env, node.task.http)))
            self._seen, self._mask = seen, of_environment(self._names)
            self._absent = sorted(self._names - os.environ.keys())
        return self._mask

    def shown(self, value: Any) -> Any:
        """A copy of a value for a view, with every secret masked."""
        return self().shown(value)

    def about_data(self, text: str) -> str:
        """What an expression said about the data it was given, without any secret in it.

        In a store, a result may hold a secret of the device that returned it, and of which this process has only the
        name. Then nothing is told but that."""
        text = self().text(text)
        if not self._absent:
            return text
        names = ", ".join(map(repr, self._absent))
        return f"it could not be evaluated; what was wrong may show a secret that is not known here ({names})"

    def over(self, evaluate: Evaluate) -> Evaluate:
        """The same evaluation of conditions; the reason why one cannot be judged is masked."""

        def masked(text: str, status: TaskStatus, result: Any) -> bool | str:
            verdict = evaluate(text, status, result)
            return self.about_data(verdict) if isinstance(verdict, str) else verdict

        return masked
