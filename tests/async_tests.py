"""A pytest plugin that runs ``async def`` tests, each on an event loop of its own.

A test runs with ``asyncio.run``. A test with the marker ``virtual_time`` runs on the simulated loop of
``asterism.testing``, where a timeout of ten minutes costs nothing:

    @pytest.mark.virtual_time            # or, for a whole module: pytestmark = pytest.mark.virtual_time
    async def test_a_lease_expires(stage: Stage) -> None: ...

    @pytest.mark.virtual_time(seed=3)    # callbacks that are ready together are shuffled; ``tick`` as in SimLoop
    @pytest.mark.virtual_time(seeds=20)  # the test runs once with each of the seeds 0 to 19, or of a list of seeds

A test that takes an argument ``seed`` (parametrized, or drawn by Hypothesis) runs with that seed.

``@async_fixture`` makes a fixture of an async generator. It is entered and left on the loop of the test, in the task
of the test, so that a timeout around its ``yield`` holds for the whole test. It may ask for fixtures of the ordinary
kind, and only async tests may ask for it. Hypothesis tests may be ``async def`` too: each example has its own loop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from asterism.testing.virtual_time import run as run_in_virtual_time

MARKER = "virtual_time(seed=None, tick=0.0, seeds=()): run an async test on the simulated loop of asterism.testing"

AsyncTest = Callable[..., Coroutine[Any, Any, None]]


class _Prepared:
    """The value of an async fixture until its test has a loop."""

    def __init__(self, manager: AbstractAsyncContextManager[Any]) -> None:
        self.manager = manager


def async_fixture(function: Any = None, **options: Any) -> Any:
    """A fixture that is an async generator; ``options`` are those of ``pytest.fixture``."""
    if function is None:
        return functools.partial(async_fixture, **options)
    manager = asynccontextmanager(function)

    @functools.wraps(function)
    def prepare(*arguments: Any, **named: Any) -> _Prepared:
        return _Prepared(manager(*arguments, **named))

    return pytest.fixture(prepare, **options)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("virtual_time")
    if marker is not None and marker.kwargs.get("seeds"):
        if "seed" not in metafunc.fixturenames:
            metafunc.fixturenames.append("seed")
        seeds = marker.kwargs["seeds"]
        metafunc.parametrize("seed", range(seeds) if isinstance(seeds, int) else seeds, ids=lambda seed: f"seed{seed}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    test = pyfuncitem.obj
    examples = getattr(test, "hypothesis", None)
    if examples is not None and inspect.iscoroutinefunction(examples.inner_test):
        examples.inner_test = _synchronous(examples.inner_test, pyfuncitem)
        return None  # Hypothesis calls it, once for each example
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    _run(pyfuncitem, _with_fixtures(test, arguments), pyfuncitem.funcargs.get("seed"))
    return True


def _synchronous(test: AsyncTest, item: pytest.Function) -> Callable[..., None]:
    @functools.wraps(test)
    def call(*arguments: Any, **named: Any) -> None:
        _run(item, test(*arguments, **named), named.get("seed"))

    return call


def _run(item: pytest.Function, test: Coroutine[Any, Any, None], seed: Any) -> None:
    marker = item.get_closest_marker("virtual_time")
    if marker is None:
        asyncio.run(test)
    else:
        run_in_virtual_time(test, marker.kwargs.get("seed", seed), marker.kwargs.get("tick", 0.0))


def _with_fixtures(test: AsyncTest, arguments: Mapping[str, Any]) -> Coroutine[Any, Any, None]:
    """The test as one coroutine, around which its async fixtures are entered and left."""
    if not any(isinstance(value, _Prepared) for value in arguments.values()):
        return test(**arguments)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            entered = {
                name: await stack.enter_async_context(value.manager) if isinstance(value, _Prepared) else value
                for name, value in arguments.items()
            }
            await test(**entered)

    coroutine: Any = main()
    coroutine.__name__, coroutine.__qualname__ = test.__name__, test.__qualname__  # what a stalled step is called
    return coroutine  # type: ignore[no-any-return]
