"""Tables in CSV: texts of strangers are no formulas, numbers and other texts stay as they are."""

from __future__ import annotations

import csv
import io

import pytest

from asterism.cli.csv_table import csv_text


@pytest.mark.parametrize("cell", ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", "\r=1", "-1-1", "=", '=HYPERLINK("x")'])
def test_a_cell_that_a_spreadsheet_would_calculate_is_quoted(cell: str) -> None:
    [row] = csv.reader(io.StringIO(csv_text([["id", cell]]), newline=""))
    assert row == ["id", f"'{cell}"]


@pytest.mark.parametrize("cell", ["", "text", "a=b", "-7", "+3.5e-2", '{"a": 1}', "'x", " =1", 7, -1.5, None])
def test_other_cells_stay_as_they_are(cell: object) -> None:
    [row] = csv.reader([csv_text([["id", cell]])])
    assert row == ["id", "" if cell is None else str(cell)]
