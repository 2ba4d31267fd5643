"""The statements of ``queries.sql``, by name."""

from __future__ import annotations

import re
from importlib.resources import files

from asterism.store import row_codec

_COLUMNS = {
    "run_columns": ", ".join(row_codec.COLUMNS),
    "run_places": ", ".join("?" * len(row_codec.COLUMNS)),
    "run_changes": ", ".join(f"{name} = ?" for name in row_codec.MOVING),
    "owned_columns": ", ".join(f"runs.{name}" for name in row_codec.COLUMNS),
    "session_columns": ", ".join(f"sessions.{name}" for name in row_codec.SESSION_COLUMNS),
}


def _read() -> dict[str, str]:
    text = files(__package__).joinpath("queries.sql").read_text("utf-8")
    found = re.findall(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", text, re.DOTALL | re.MULTILINE)
    return {name: _statement(body) for name, body in found}


def _statement(body: str) -> str:
    lines = [line for line in body.splitlines() if not line.startswith("--")]
    return "\n".join(lines).strip().removesuffix(";").format_map(_COLUMNS)


QUERIES = _read()
