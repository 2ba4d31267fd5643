"""The base of conformance suites: async tests that need no pytest plugin.

A suite is a class of plain ``async def`` tests. Subclass it for an implementation, and pytest collects the subclass:
neither a plugin nor an event-loop fixture is needed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

TEST_TIMEOUT = 900.0
"""A test that takes so many seconds hangs, and fails."""

AsyncTest = Callable[..., Coroutine[Any, Any, None]]


class ProcessOpener(NamedTuple):
    """How another process opens the same store or register: it imports ``function``, which is ``"module:name"``, and
    awaits what it returns for ``address``."""

    function: str
    address: str


class AsyncTests:
    """Methods ``async def test_…`` of a subclass run in an event loop of their own."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
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
