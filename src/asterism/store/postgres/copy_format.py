"""New runs in the text format of COPY: what the runs of a group share is written once and repeated as it is.

The driver could encode the rows, but value by value, which takes longer than all else that is done for a new run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from asterism.store.run_groups import SHARED, VARYING, RunGroup

COLUMNS = (*VARYING, *SHARED)
"""The columns, in the order of ``copy_lines``."""

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def copy_lines(groups: Iterable[RunGroup]) -> bytes:
    """Return the lines of new runs. Raises UnicodeError for text that cannot be stored."""
    lines = []
    for shared, rows in groups:
        end = "\t".join(map(_field, shared))
        for run_id, key, text, label in rows:
            if key is None and label is None and text.isascii() and "\\" not in text and run_id.isalnum():
                lines.append(f"{run_id}\t\\N\t{text}\t\\N\t{end}\n")  # JSON in ASCII escapes what COPY would
            else:
                lines.append(f"{_field(run_id)}\t{_field(key)}\t{_field(text)}\t{_field(label)}\t{end}\n")
    return "".join(lines).encode()


def _field(value: Any) -> str:
    if value is None:
        return r"\N"
    if type(value) is not str:
        return repr(value)
    return value if value.isprintable() and "\\" not in value else value.translate(_ESCAPES)
