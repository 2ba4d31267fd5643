"""Undo stack of a plan: the accepted batches that can still be undone, newest last.

The batch that expands a group (``Task.foreach``) is not among them: nobody asked for it, and the group would be
expanded again at once.

Replay of the journal fills it, so every process that reads the plan knows it. It is not part of a snapshot: batches
before the last compaction of the journal cannot be undone.
"""

from __future__ import annotations

from dataclasses import replace

from asterism.core.errors import EditRejected, Violation
from asterism.core.plan.apply import Applied
from asterism.core.plan.edits import EditBatch, UpdateTask

UNDO_LIMIT = 100
"""How many batches are remembered."""


class UndoStack:
    def __init__(self) -> None:
        self._inverses: dict[int, EditBatch | None] = {}  # by version; None for a batch that cannot be undone

    def record(self, applied: Applied) -> None:
        """An accepted batch is remembered; the undo of one forgets that one."""
        if not applied.batch.edits or _expands_a_group(applied.batch):
            return
        undone = applied.batch.undoes
        if undone is not None and undone in self._inverses:
            newest = next(reversed(self._inverses)) == undone
            del self._inverses[undone]
            if newest:
                self._rebase(applied.version)
            return
        self._inverses[applied.version] = applied.inverse
        if len(self._inverses) > UNDO_LIMIT:
            del self._inverses[next(iter(self._inverses))]

    def _rebase(self, version: int) -> None:
        """The newest batch was undone, so the plan is as it was after the one before: nothing has changed since for the
        undo of that one, and it is not stale."""
        before = next(reversed(self._inverses), None)
        if before is not None and (inverse := self._inverses[before]) is not None:
            self._inverses[before] = replace(inverse, base_version=version)

    def batch(self, author: str, reason: str = "") -> EditBatch:
        """The batch that undoes the newest one. Raises EditRejected if there is none, or if it cannot be undone."""
        if not self._inverses:
            raise EditRejected([Violation(None, "no_undo", "there is no edit that can be undone")])
        version, inverse = next(reversed(self._inverses.items()))
        if inverse is None:
            message = f"version {version} cannot be undone: it cancelled a task or removed the taint"
            raise EditRejected([Violation(None, "no_undo", message)])
        why = f"undo version {version}" + (f": {reason}" if reason else "")
        return replace(inverse, author=author, reason=why, undoes=version)


def _expands_a_group(batch: EditBatch) -> bool:
    last = batch.edits[-1]
    return isinstance(last, UpdateTask) and "of" in (last.changes.get("foreach") or ())
