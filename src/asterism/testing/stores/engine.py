"""What an engine says of itself, and how a test gets its store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, TypeVar

from asterism.store.protocol import Store

Tests = TypeVar("Tests", bound="EngineTests")

PATIENCE = 60.0
"""How long to wait for what has to come, in seconds. Nothing takes as long as this unless it never comes."""

FOR_EVER = 300.0
"""A test that takes so long hangs, and says so."""


class Elsewhere(NamedTuple):
    """How another process opens the store: it imports ``opener``, ``"module:function"``, and awaits what it returns
    for ``address``."""

    opener: str
    address: str


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

    async def run(tests: Tests) -> None:
        async with AsyncExitStack() as closing:
            store = await tests.open_store()
            closing.push_async_callback(store.close)
            async with asyncio.timeout(FOR_EVER):
                await test(tests, store)
            await _in_order(store)

    return _as_a_method(lambda tests: asyncio.run(run(tests)), test)


def with_two(test: Callable[[Tests, Store, Store], Coroutine[Any, Any, None]]) -> Callable[[Tests], None]:
    """The test gets two connections to a fresh store; where one is all there is, the same one twice."""

    async def run(tests: Tests) -> None:
        async with AsyncExitStack() as closing:
            store = await tests.open_store()
            closing.push_async_callback(store.close)
            other = await tests.open_another(store)
            if other is not None:
                closing.push_async_callback(other.close)
            async with asyncio.timeout(FOR_EVER):
                await test(tests, store, other or store)
            await _in_order(store)

    return _as_a_method(lambda tests: asyncio.run(run(tests)), test)


async def _in_order(store: Store) -> None:
    problems = await store.check()
    if problems:
        raise AssertionError(f"the store is out of order: {'; '.join(problems)}")


def _as_a_method(method: Callable[[Tests], None], test: Callable[..., Any]) -> Callable[[Tests], None]:
    # not functools.wraps, for pytest would take the parameters of what is wrapped for its own fixtures
    method.__name__, method.__qualname__ = test.__name__, test.__qualname__
    method.__module__, method.__doc__ = test.__module__, test.__doc__
    return method
