"""A store that counts what is written through it: how many writes a run costs, and when the last one has ended.

It does not know what is written inside the store itself, such as the rows of an index.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from asterism.core.run.run import Run
from asterism.store.protocol import PutRun, Store, TakeRequest, Write


class Counting:
    """Use it as the store that it wraps. ``writes`` counts records by kind (``create``, ``take``, ``change`` and
    ``other``), ``commits`` the calls that wrote them. ``ended`` is called for every run that has ended, durably."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.clock = store.clock  # asked for all the time, and nothing that is written
        self.writes: Counter[str] = Counter()
        self.commits = 0
        self.ended: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, writes: Sequence[Write]) -> None:
        await self._store.commit(writes)
        self.commits += 1
        for write in writes:
            if type(write) is not PutRun:
                self.writes["other"] += 1
                continue
            self.writes["create" if write.expected is None else "change"] += 1
            if write.run.ended:
                self.ended()

    async def take(self, offer: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        taken = await self._store.take(offer, step)
        self.commits += bool(taken)
        self.writes["take"] += len(taken)
        return taken


def counted(store: Store) -> tuple[Store, Counting]:
    """The store to use, and the same one as what it counted."""
    counting = Counting(store)
    return cast(Store, counting), counting
