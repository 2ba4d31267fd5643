"""Migrations never change: a store that has applied one never sees a later change of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import asterism.store

WRITTEN = {
    "postgres/0002_tables.sql": "c21bd281cb02c99c441ec469fdeea458",
    "sqlite/002_tables.sql": "c832f05baccb920b8bada75281209cf1",
}
"""The hash of each migration. A new one gets its line here; a line never changes."""


def test_no_migration_changes_and_every_one_is_listed() -> None:
    [folder] = map(Path, asterism.store.__path__)
    written = {
        f"{path.parent.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()[:32]
        for path in folder.glob("*/migrations/*.sql")
    }
    assert written == WRITTEN
