"""Notices of a store: reads the latest ones, prints them, and follows new ones."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import click

from asterism.base.text import clean
from asterism.cli.cli_context import format_time, note, print_json
from asterism.fleet.fleet import Fleet
from asterism.fleet.fleet_json import notice_json
from asterism.store.protocol import ENDED, Notice, Store
from asterism.store.store_errors import StoreUnavailable

PAGE = 1000
FOLLOW_INTERVAL = 1.0
"""How often to look for new notices, in seconds; the end of a run wakes earlier."""


class NoticeFilter(NamedTuple):
    """Which notices to show: of one run, of some kinds (empty: of all), from a time on."""

    run: str | None = None
    kinds: frozenset[str] = frozenset()
    since: float | None = None

    def matches(self, notice: Notice) -> bool:
        return (not self.kinds or notice.kind in self.kinds) and (self.since is None or notice.at >= self.since)


async def read_notices(
    store: Store, wanted: NoticeFilter, limit: int | None, after: int = 0
) -> tuple[int, Sequence[Notice]]:
    """The latest notices after a number, at most ``limit``, oldest first; and the number of the last that was read."""
    found: deque[Notice] = deque(maxlen=limit)
    while page := await store.notices(run=wanted.run, after=after, limit=PAGE):
        found.extend(notice for _, notice in page if wanted.matches(notice))
        after = page[-1][0]
    return after, found


async def follow_notices(fleet: Fleet, wanted: NoticeFilter, after: int, *, as_json: bool) -> None:
    """Print new notices until it is cancelled. While the store cannot be reached, it tries again."""
    watch = fleet.store.watch(frozenset({ENDED}))
    reachable = True
    with contextlib.closing(watch):
        while True:
            await watch.wait(FOLLOW_INTERVAL)
            try:
                after, found = await read_notices(fleet.store, wanted, None, after)
            except StoreUnavailable as error:
                if reachable:
                    note(f"The store cannot be reached: {error}. Trying again.")
                reachable = False
                continue
            reachable = True
            print_notices(found, as_json=as_json, as_lines=True)


def print_notices(found: Iterable[Notice], *, as_json: bool, as_lines: bool) -> None:
    """Print notices, one to a line. ``as_json`` prints a JSON array, or with ``as_lines`` an object for each line."""
    if as_json and not as_lines:
        print_json([notice_json(notice) for notice in found])
        return
    for notice in found:
        if as_json:
            print_json(notice_json(notice))
        else:
            click.echo(clean(f"{format_time(notice.at)}  {notice.kind:<9}  {notice.message}"))
