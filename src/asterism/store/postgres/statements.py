"""SQL statements of the PostgreSQL engine, read from ``statements.sql``, by name."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources

from asterism.store.row_codec import COLUMNS, SESSION_COLUMNS

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_COLUMNS = {
    "{run}": ", ".join(COLUMNS),
    "{session}": ", ".join(SESSION_COLUMNS),
    "{run_of_runs}": ", ".join(f"runs.{name}" for name in COLUMNS),
    "{session_of_sessions}": ", ".join(f"sessions.{name}" for name in SESSION_COLUMNS),
}


@functools.cache
def statements() -> Mapping[str, str]:
    text = (resources.files(__package__) / "statements.sql").read_text("utf-8")
    _, *parts = _NAME.split(text)
    found = {name: _COMMENT.sub("", sql).strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}
    for placeholder, columns in _COLUMNS.items():
        found = {name: sql.replace(placeholder, columns) for name, sql in found.items()}
    find = found.pop("find")
    found["find_oldest"] = find.replace("{after}", "id > $13").replace("{order}", "")
    found["find_newest"] = find.replace("{after}", "id < $13").replace("{order}", "DESC")
    return found
