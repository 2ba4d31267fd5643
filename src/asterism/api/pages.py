"""Lists that come in pages, read as one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from asterism.api.documents import Page

Item = TypeVar("Item")


async def read_pages(
    read: Callable[..., Awaitable[Page[Item]]],
    limit: int,
    most_at_once: int,
    after: str | None = None,
    **conditions: Any,
) -> Page[Item]:
    """At most ``limit`` items of a list, or all if it is 0, read by at most ``most_at_once``, from the position
    ``after`` on. ``next`` of the answer is None if there are no more."""
    items: list[Item] = []
    while True:
        wanted = min(limit - len(items), most_at_once) if limit else most_at_once
        page = await read(after=after, limit=wanted, **conditions)
        items += page.items
        after = page.next
        if after is None or (limit and len(items) >= limit):
            return Page(items=items, next=after, now=page.now)
