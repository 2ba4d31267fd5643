"""The store in a file: SQLite, with one writer thread that commits for many at once."""

from __future__ import annotations

from asterism.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
