"""Documented private names: reading works, and writing has an effect or raises.

An ordinary Python attribute would accept the write and nothing would come of it, for the facts are kept in the core.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NoReturn


class Alias:
    """A private name for a public attribute: reading and writing go there, with all its checks."""

    def __init__(self, public: str) -> None:
        self._public = public
        self._read = attrgetter(public)

    def __get__(self, thing: Any, owner: type) -> Any:
        return self if thing is None else self._read(thing)

    def __set__(self, thing: Any, value: Any) -> None:
        setattr(thing, self._public, value)


class ReadOnly:
    """A private name that can only be read. ``instead`` says how to change what it shows."""

    def __init__(self, public: str, instead: str) -> None:
        self._read = attrgetter(public)
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, thing: Any, owner: type) -> Any:
        return self if thing is None else self._read(thing)

    def __set__(self, thing: Any, value: Any) -> NoReturn:
        raise AttributeError(f"{type(thing).__name__}.{self._name} cannot be written: {self._instead}")
