"""What an engine says of itself, and how a test gets its store."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from asterism.store.protocol import Store
from asterism.testing.conformance import Elsewhere, as_a_test

Tests = TypeVar("Tests", bound="EngineTests")

PATIENCE = 300.0
"""How long to wait for what has to come, in seconds. Nothing takes as long as this unless it never comes."""


class EngineTests:
    """The base of all tests here. The methods are to be overridden."""

    tells_topics_apart = True
    """Whether a watch is left alone by commits of other topics. It may be woken for nothing in any case, but where
    this is True it is not woken for everything."""

    has_feed = True
    """Whether it can exchange records with peers. An engine that cannot says so."""

    async def open_store(self) -> Store:
        """A fresh and empty store."""
        raise NotImplementedError(f"{type(self).__name__} does not say how a store is opened: override open_store")

    async def open_another(self, store: Store) -> Store | None:
        """A second connection to ``store``; None if the engine lives in one process and needs none."""
        return None

    async def elsewhere(self, store: Store) -> Elsewhere:
        """How another process opens ``store``."""
        raise NotImplementedError(f"{type(self).__name__} does not say how others open a store: override elsewhere")


def with_store(test: Callable[[Tests, Store], Coroutine[Any, Any, None]]) -> Callable[[Tests], None]:
    """The test gets a fresh store, which has to be in order when it has ended."""

    async def scene(tests: Tests) -> None:
        async with AsyncExitStack() as closing:
            store = await tests.open_store()
            closing.push_async_callback(store.close)
            await test(tests, store)
            problems = await store.check()
            if problems:
                raise AssertionError(f"the store is out of order: {'; '.join(problems)}")

    return as_a_test(scene, test)


def with_two(test: Callable[[Tests, Store, Store], Coroutine[Any, Any, None]]) -> Callable[[Tests], None]:
    """The test gets two connections to a fresh store; where one is all there is, the same one twice."""

    @functools.wraps(test)
    async def scene(tests: Tests, store: Store) -> None:
        async with AsyncExitStack() as closing:
            other = await tests.open_another(store)
            if other is not None:
                closing.push_async_callback(other.close)
            await test(tests, store, other or store)

    return with_store(scene)
