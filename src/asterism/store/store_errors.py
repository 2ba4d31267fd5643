"""What can go wrong with a store.

::

    StoreError
    ├── Conflict              somebody else was first: nothing of the commit happened
    ├── StoreUnavailable      out of reach just now; whether the last commit happened is not known
    │   ├── StoreBusy         locked by another process for too long; nothing happened
    │   ├── StoreFull         no room left; nothing happened
    │   └── StoreUnwritable   it was open, and can be read and not written just now; nothing happened
    ├── StoreReadOnly         it can be read and not written
    ├── StoreCorrupt          what is in it cannot be right
    ├── UnknownSchema         it was written by a later version
    └── StoreMissing          there is no such store, or what it takes to reach it is not installed

Those under StoreUnavailable pass: whoever meets one waits, looks what is true, and tries again.
"""

from __future__ import annotations

from asterism.core.errors import AsterismError


class StoreError(AsterismError):
    """The root of the tree."""


class Conflict(StoreError):
    """Another writer was faster: nothing of the commit happened. ``what`` names the record that was not as expected:
    its kind (``run``, ``session``, ``register``, or ``key`` for the key of a run) and its name."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what} has changed meanwhile")

    @property
    def kind(self) -> str:
        """The kind of the record."""
        return self.what.partition(" ")[0]

    def concerns(self, kind: str, name: str) -> bool:
        """Whether this is the record that was not as expected."""
        return self.what == f"{kind} {name}"


class StoreUnavailable(StoreError):
    """Out of reach just now. Whether the last commit happened is not known."""


class StoreBusy(StoreUnavailable):
    """Locked by another process for too long; nothing happened."""


class StoreFull(StoreUnavailable):
    """No room left; nothing happened."""


class StoreUnwritable(StoreUnavailable):
    """It was open, and can be read and not written just now; nothing happened."""


class StoreReadOnly(StoreError):
    """It can be read and not written."""


class StoreCorrupt(StoreError):
    """What is in it cannot be right. ``problem`` is what, without the advice."""

    def __init__(self, problem: str, advice: str = "") -> None:
        self.problem = problem
        super().__init__(f"{problem}; {advice}" if advice else problem)


class UnknownSchema(StoreError):
    """It was written by a later version."""


class StoreMissing(StoreError):
    """There is no such store, or what it takes to reach it is not installed."""


class StoreNotFound(StoreMissing):
    """There is no store at this address: no command has created it yet."""
