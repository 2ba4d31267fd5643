"""Tables in CSV: no cell is a formula in a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """The lines of a table. A ``'`` is put before a text that a spreadsheet would calculate; a number stays."""
    return "\n".join(map(_line, rows))


def _line(row: Iterable[Any]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\r\n").writerow(map(_plain, row))  # so a cell with either of them is quoted
    return file.getvalue().removesuffix("\r\n")


def _plain(cell: Any) -> Any:
    is_formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell
