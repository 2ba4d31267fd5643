"""The base of all conformance tests of stores: how a test gets its store."""

from __future__ import annotations

import inspect

from asterism.store.protocol import Store, feed_of
from asterism.store.store_errors import StoreError
from asterism.testing.conformance import AsyncTest, AsyncTests, ProcessOpener
from asterism.testing.store_conformance.sample_records import raising

WAKE_TIMEOUT = 300.0
"""How long a test waits for something that has to happen, in seconds. Only a failure takes that long."""


class StoreTests(AsyncTests):
    """The parameters of a test say what it gets: ``store``, a fresh store, which has to pass its own check at the end;
    ``other``, a second connection to that store, or the same one if there can be only one; ``feed``, the change feed of
    the store, which is started. An engine without a feed has to refuse to start it.
    """

    tells_topics_apart = True
    """Whether commits of other topics leave a watch alone. A watch may be woken without need in any case, but where
    this is True not every commit wakes it."""

    has_feed = True
    """Whether the engine can exchange records with peers. One that cannot raises StoreError."""

    async def open_store(self) -> Store:
        """Open a fresh, empty store. Has to be overridden."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to open a store: override open_store")

    async def open_another(self, store: Store) -> Store | None:
        """Open a second connection to ``store``; None if the engine lives in one process and needs none."""
        return None

    async def process_opener(self, store: Store) -> ProcessOpener:
        """Return how another process opens ``store``."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say how another process opens a store: override process_opener"
        )

    async def run_test(self, test: AsyncTest) -> None:
        store = await self.open_store()
        try:
            await self._call(test, store)
            problems = await store.check()
            if problems:
                raise AssertionError(f"the check of the store found problems: {'; '.join(problems)}")
        finally:
            await store.close()

    async def _call(self, test: AsyncTest, store: Store) -> None:
        parameters = inspect.signature(test).parameters
        if "other" in parameters:
            other = await self.open_another(store)
            try:
                await test(self, store, other or store)
            finally:
                if other is not None:
                    await other.close()
        elif "feed" in parameters:
            if self.has_feed:
                await feed_of(store).start_feed()
                await test(self, store, feed_of(store))
            else:
                with raising(StoreError):
                    await feed_of(store).start_feed()
        else:
            await test(self, store)
