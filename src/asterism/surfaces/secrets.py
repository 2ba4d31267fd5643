"""The secrets of a plan, and what is shown in their place.

A device blots a secret out of everything that comes back from the task that uses it. A task that does not use it may
still print it, since commands see the whole environment; therefore everything that is shown or written is searched
again for every secret that the plan names anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from asterism.core.task import Task
from asterism.runtime.inputs import Resolved


class Secrets:
    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self._names: set[str] = set()
        self._known = Resolved({}, {}, frozenset())
        self.learn(tasks)

    def learn(self, tasks: Iterable[Task]) -> None:
        """Take in the secrets that these tasks name; an edit may bring new ones."""
        for task in tasks:
            if task.inputs or task.env or task.http:
                self._names.update(_named((task.inputs, task.env, task.http)))
        values = {os.environ.get(name, "") for name in self._names}
        self._known = Resolved({}, {}, frozenset(values - {""}))

    def hide(self, value: Any) -> Any:
        """The value, with every secret in its texts blotted out."""
        return self._known.hide(value)


def _named(value: Any) -> Iterator[str]:
    """The names in ``{"secret": NAME}``, however deep."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, list | tuple):
            stack.extend(value)
        elif hasattr(value, "items"):
            if set(value) == {"secret"} and isinstance(value["secret"], str):
                yield value["secret"]
            stack.extend(value.values())
