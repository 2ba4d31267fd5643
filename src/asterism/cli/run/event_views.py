"""Events for people: a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from rich.text import Text

from asterism.api.documents import SentEvent
from asterism.base.durations import format_age
from asterism.base.text import clean
from asterism.cli.screen import Cell, Column, table_of

MOST_TAKERS = 3
"""How many of those who have taken an event the table names."""


def events_table(events: Sequence[SentEvent], now: float, width: int | None) -> list[Text]:
    columns: dict[Column, Callable[[SentEvent], Cell]] = {
        Column("NUMBER", right=True): lambda event: str(event.number),
        Column("EVENT", least=8, name=True): lambda event: clean(event.name),
        Column("AGE", right=True): lambda event: format_age(now - event.at),
        Column("BY"): lambda event: clean(event.by),
        Column("KEY"): lambda event: clean(event.key or ""),
        Column("DATA"): lambda event: "" if event.data is None else clean(json.dumps(event.data)),
        Column("TAKEN BY"): _takers,
    }
    return table_of(events, columns, width)


def _takers(event: SentEvent) -> str:
    names = [clean(f"{taker.plan}/{taker.task}" if taker.task else taker.plan) for taker in event.taken_by]
    more = f" and {len(names) - MOST_TAKERS:,} more" if len(names) > MOST_TAKERS else ""
    return ", ".join(names[:MOST_TAKERS]) + more
