"""Errors of stores: Conflict, StoreUnavailable, StoreReadOnly, StoreCorrupt, StoreForeign, UnknownSchema, StoreMissing.

::

    StoreError
    ├── Conflict              another writer was faster: nothing of the commit happened
    ├── StoreUnavailable      out of reach for now; it is unknown whether the last commit happened
    │   ├── StoreBusy         locked by another process for too long; nothing happened
    │   ├── StoreFull         no space left; nothing happened
    │   └── StoreUnwritable   an open store cannot be written for now; nothing happened
    ├── StoreReadOnly         the store cannot be written
    ├── StoreCorrupt          the stored data is damaged
    │   └── CorruptRecord     one record cannot be read
    ├── StoreForeign          somebody else has prepared the store, or may change what it does
    ├── UnknownSchema         another version has written the store
    └── StoreMissing          the store does not exist, or its driver is not installed
        └── StoreNotFound     there is no store at this address: it was not created yet

StoreUnavailable and its subclasses are temporary: wait, look what happened, and try again.
"""

from __future__ import annotations

from asterism.core.errors import AsterismError


class StoreError(AsterismError):
    """The root of all errors of stores."""


class Conflict(StoreError):
    """Another writer was faster: nothing of the commit happened. ``what`` names the record that was not as expected:
    its kind (``run``, ``session``, ``register``, or ``key`` for the key of a run) and its name."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"another writer has changed {what}")

    @property
    def kind(self) -> str:
        """The kind of the record."""
        return self.what.partition(" ")[0]

    def concerns(self, kind: str, name: str) -> bool:
        """Whether this is the record that was not as expected."""
        return self.what == f"{kind} {name}"


class StoreUnavailable(StoreError):
    """Out of reach for now. It is unknown whether the last commit happened."""


class StoreBusy(StoreUnavailable):
    """Locked by another process for too long; nothing happened."""


class StoreFull(StoreUnavailable):
    """No space left; nothing happened."""


class StoreUnwritable(StoreUnavailable):
    """An open store can be read, but not written for now; nothing happened."""


class StoreReadOnly(StoreError):
    """The store can be read, but not written."""


class StoreCorrupt(StoreError):
    """The stored data is damaged. ``problem`` says how, without the advice. ``revision`` is that of a register whose
    value cannot be read: it can be replaced."""

    def __init__(self, problem: str, advice: str = "", revision: int | None = None) -> None:
        self.problem, self.revision = problem, revision
        super().__init__(f"{problem}; {advice}" if advice else problem)


class CorruptRecord(StoreCorrupt):
    """One record cannot be read. The message names the record, not the store."""


class StoreForeign(StoreError):
    """Somebody else has prepared the store: it has triggers, views or functions that are not ours, or their owner."""


class UnknownSchema(StoreError):
    """Another version has written the store."""


def check_schema(what: str, version: int, oldest: int, newest: int) -> None:
    """Raise UnknownSchema if another version than those that are known wrote a store or a backup."""
    if version > newest:
        raise UnknownSchema(
            f"{what} has schema version {version}, and this Asterism knows versions up to {newest}: use a later one"
        )
    if version < oldest:
        raise UnknownSchema(
            f"{what} has schema version {version}, and this Asterism knows versions from {oldest} on: let the plans "
            "and runs in it end with the Asterism that wrote it, and begin a new store"
        )


class StoreMissing(StoreError):
    """The store does not exist, or its driver is not installed."""


class StoreNotFound(StoreMissing):
    """There is no store at this address: no command has created it yet."""
