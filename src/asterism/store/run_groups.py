"""New runs in groups: what runs that are created together share is encoded once, and written once.

The rows are those of ``row_codec``. A batch of a thousand runs of one workflow is one group: its runs differ in id,
key, input and label.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from asterism.core.run.run import BLANK, Run
from asterism.store.row_codec import COLUMNS, FIXED, moving, row_of, to_text

VARYING = ("id", "key", "input", "label")
SHARED = tuple(name for name in COLUMNS if name not in VARYING)
"""The columns in which runs that are created together differ, and those that they share."""

_shared_once = itemgetter(*(name for name in FIXED if name not in VARYING))
_common = itemgetter(*(name for name in BLANK.__dict__ if name not in VARYING))
"""The fields behind SHARED: those that are written once, and all of them."""

FEWEST_GROUPED = 5
"""From how many runs on looking for what they share is worth it."""

INPUT_TEXT = "_input_text"
"""An attribute that a new run may have: its input, and the same as ``to_text`` encodes it, so that it need not be
encoded again. It counts as long as the input is this very object."""

_NO_TEXT = (None, "")


class RunGroup(NamedTuple):
    """New runs that were created together: the values of the columns SHARED, and of VARYING for each run."""

    shared: tuple[Any, ...]
    rows: list[tuple[Any, ...]]


def grouped(runs: Sequence[Run]) -> list[RunGroup]:
    """Return new runs in groups, in their order. What the runs of a group share is encoded once."""
    groups: list[RunGroup] = []
    known: tuple[Any, ...] | None = None
    for run in runs:
        fields = run.__dict__
        common = _common(fields)
        if common != known:
            known = common
            groups.append(RunGroup((*_shared_once(fields), *moving(run)), []))
            add = groups[-1].rows.append
        encoded, text = fields.get(INPUT_TEXT, _NO_TEXT)
        if encoded is not fields["input"]:
            text = to_text(run.input if type(run.input) is dict else dict(run.input))
        add((fields["id"], fields["key"], text, fields["label"]))
    return groups


def rows_of(runs: Sequence[Run]) -> list[tuple[Any, ...]]:
    """Return the rows of new runs, as ``row_of`` does for one."""
    return [row_of(run) for run in runs] if len(runs) < FEWEST_GROUPED else rows_in(grouped(runs))


def rows_in(groups: Sequence[RunGroup]) -> list[tuple[Any, ...]]:
    """Return the rows of all runs in these groups."""
    rows: list[tuple[Any, ...]] = []
    for (workflow, version, created_at, series, priority, pinned, timeout, batch, uses, *others), group in groups:
        first, second, third = (workflow, version, created_at, series), (priority, pinned, timeout), (batch, uses)
        rows += [(run_id, *first, key, *second, label, *third, text, *others) for run_id, key, text, label in group]
    return rows
