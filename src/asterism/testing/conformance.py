"""The bases of conformance suites: async tests that need no pytest plugin, and how a test gets its store.

A suite is a class of plain ``async def`` tests. Subclass it for an implementation, and pytest collects the subclass:
neither a plugin nor an event-loop fixture is needed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from asterism.store.protocol import Store, feed_of
from asterism.store.store_errors import StoreError

TEST_TIMEOUT = 900.0
"""A test that takes so many seconds hangs, and fails."""

WAKE_TIMEOUT = 300.0
"""How long a test waits for something that has to happen, in seconds. Only a failure takes that long."""

AsyncTest = Callable[..., Coroutine[Any, Any, None]]


class ProcessOpener(NamedTuple):
    """How another process opens the same store or register: it imports ``function``, which is ``"module:name"``, and
    awaits what it returns for ``address``."""

    function: str
    address: str


class AsyncTests:
    """Methods ``async def test_…`` of a subclass run in an event loop of their own."""

    def __init_subclass__(cls, **terms: Any) -> None:
        super().__init_subclass__(**terms)
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, _synchronous(test))

    async def run_test(self, test: AsyncTest) -> None:
        """Call a test with what its parameters name. Override this to open and close that."""
        await test(self)


def _synchronous(test: AsyncTest) -> Callable[[AsyncTests], None]:
    async def in_time(tests: AsyncTests) -> None:
        async with asyncio.timeout(TEST_TIMEOUT):
            await tests.run_test(test)

    def method(tests: AsyncTests) -> None:
        asyncio.run(in_time(tests))

    # not functools.wraps: pytest would take the parameters of the wrapped function for fixtures
    method.__name__, method.__qualname__ = test.__name__, test.__qualname__
    method.__module__, method.__doc__ = test.__module__, test.__doc__
    return method


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
                await _check_feed_is_refused(store)
        else:
            await test(self, store)


async def _check_feed_is_refused(store: Store) -> None:
    try:
        await feed_of(store).start_feed()
    except StoreError:
        return
    raise AssertionError("a store without a feed has to refuse to start it with StoreError")
