"""What the conformance suites share: how another process is told what to open, and how a scene becomes a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

Tests = TypeVar("Tests")

FOR_EVER = 900.0
"""A test that takes so many seconds hangs, and says so."""


class Elsewhere(NamedTuple):
    """How another process opens the same: it imports ``opener``, ``"module:function"``, and awaits what it returns for
    ``address``."""

    opener: str
    address: str


def as_a_test(scene: Callable[[Tests], Coroutine[Any, Any, None]], test: Callable[..., Any]) -> Callable[[Tests], None]:
    """A method that plays the scene in a loop of its own, under the name of ``test``."""

    async def in_time(tests: Tests) -> None:
        async with asyncio.timeout(FOR_EVER):
            await scene(tests)

    def method(tests: Tests) -> None:
        asyncio.run(in_time(tests))

    # not functools.wraps, for pytest would take the parameters of what is wrapped for its own fixtures
    method.__name__, method.__qualname__ = test.__name__, test.__qualname__
    method.__module__, method.__doc__ = test.__module__, test.__doc__
    return method
