"""Limits for people, made of their documents: a table, and who holds and waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

from asterism.api.documents import Limit, LimitDetails, LimitUser
from asterism.base.durations import format_age, format_duration
from asterism.base.status_colours import BOLD, DIM, tone
from asterism.base.text import clean, plural, short
from asterism.cli.screen import Cell, Column, table_of

MOST_NAMES = 3
"""How many names of a limit for each name are listed."""


def limit_text(limit: Limit) -> str:
    """What a limit allows: ``4 at a time, 10 within 1 min 00 s``."""
    parts = [] if limit.size is None else [f"{limit.size:,} at a time"]
    if limit.rate is not None and limit.period is not None:
        parts.append(f"{limit.rate:,} within {format_duration(limit.period)}")
    return ", ".join(parts)


def limits_table(limits: Sequence[Limit], width: int | None) -> list[Text]:
    columns: dict[Column, Callable[[Limit], Cell]] = {
        Column("LIMIT", least=8, name=True): lambda limit: limit.name,
        Column("ALLOWS"): limit_text,
        Column("IN USE"): _used,
        Column("WAITING", right=True): lambda limit: Text(f"{limit.waiting:,}", "" if limit.waiting else DIM),
    }
    return table_of(limits, columns, width)


def _used(limit: Limit) -> Text:
    if set(limit.used) <= {limit.name}:
        used = limit.used.get(limit.name, 0)
        return Text(f"{used:,}", tone("running") if used else DIM)
    names = [f"{clean(name)}: {used:,}" for name, used in limit.used.items()]
    more = [f"and {len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return Text(", ".join([*names[:MOST_NAMES], *more]), tone("running"))


def limit_lines(limit: LimitDetails, width: int | None) -> Iterator[Text]:
    """What a limit allows, who holds it, and who waits."""
    yield Text.assemble((clean(limit.name), BOLD), f"  {limit_text(limit)}; {plural(limit.waiting, 'run')} waiting")
    for title, users in (("Held by", limit.holders), ("Next", limit.next_runs)):
        if users:
            yield Text()
            yield Text(title, BOLD)
            yield from table_of(users, _columns(limit.now), width)


def _columns(now: float) -> dict[Column, Callable[[LimitUser], Cell]]:
    return {
        Column("RUN"): lambda user: short(user.id),
        Column("LABEL", least=8, name=True): lambda user: user.label,
        Column("WORKFLOW", least=8, name=True): lambda user: user.workflow,
        Column("DEVICE", least=8, name=True): lambda user: user.device or "",
        Column("USES"): lambda user: ", ".join(f"{clean(name)}: {amount:,}" for name, amount in user.uses.items()),
        Column("FOR", right=True): lambda user: format_age(now - user.since),
    }
