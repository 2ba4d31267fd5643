"""Migrations never change: a store that has applied one never sees a later change of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import asterism.store

WRITTEN = {
    "postgres/0001_tables.sql": "6198fd6c26d0622a34ad738fb793cbad",
    "postgres/0002_writing.sql": "8157de16435c7e3a28341281954cb1f9",
    "postgres/0003_queue.sql": "f7631e3ab062978aa2ceee652ba724c7",
    "postgres/0004_keeping_registers.sql": "51da4c2ec9ef69eaf11be886f3a119d4",
    "postgres/0005_logs.sql": "20f0d33c74734229a46359df4f37e016",
    "postgres/0006_labels.sql": "05cb99b827a59b24f7ebeee49ce075e3",
    "postgres/0007_plans.sql": "2d3f63e4c65b267204e4badf6362355e",
    "postgres/0008_devices.sql": "d5dbb2eace315bee706cbc099e6e5665",
    "postgres/0009_reading_the_queue.sql": "b137d8bfd1b4e1d376461173a2b58d3d",
    "postgres/0010_batches.sql": "c586f144644b15a61c5470f6f0aa7d00",
    "postgres/0011_limits.sql": "fbfe82a1f7087c7b2193794ea0dd85fb",
    "sqlite/001_runs.sql": "860d5285a515ce6d4d250b330651f592",
    "sqlite/002_feed.sql": "3ab51624911c3c6e330d78d7e05c4da3",
    "sqlite/003_ends.sql": "e0667695c22acb1e5227128ea1723037",
    "sqlite/004_contributions.sql": "13243dcef8a797e935634f00fa3d4e95",
    "sqlite/005_logs.sql": "79cf7e528c7d4f6926f09a369527601c",
    "sqlite/006_labels.sql": "21c661bcc1ed6f2d83532f64d5881fd4",
    "sqlite/007_plans.sql": "7c6b6766181527e64fe7b5d570142ef3",
    "sqlite/008_lists.sql": "289c08be4679f070a9c7e6ea90adec02",
    "sqlite/009_batches.sql": "d5c146db8bcc5ee98640d77ab00a972c",
    "sqlite/010_limits.sql": "f2f6c7b2324e5000dcfdaf09f14a77f1",
}
"""The hash of each migration. A new one gets its line here; a line never changes."""


def test_no_migration_changes_and_every_one_is_listed() -> None:
    [folder] = map(Path, asterism.store.__path__)
    written = {
        f"{path.parent.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()[:32]
        for path in folder.glob("*/migrations/*.sql")
    }
    assert written == WRITTEN
