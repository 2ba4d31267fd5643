"""A memory with a limit: of what comes and goes without an end, the newest entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Remembered(OrderedDict[Key, Value]):
    """The newest ``most`` entries: what is set is the newest, and the oldest goes for it."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
