"""A pytest plugin for tests that take long: the markers ``long``, ``hunt`` and ``slow``.

``make test`` runs every test without the marker ``long``, ``make test-long`` those with it (and those with Hypothesis,
see ``property_tests``), and ``.ci/run`` both.

A hunt tries a property with many seeds. It asks for the argument ``seeds`` and runs twice: over the first few seeds in
``make test``, so that every safeguard is exercised there too, and over all others in ``make test-long``:

    @pytest.mark.hunt(few=100, many=3000)
    def test_no_interleaving_breaks_a_promise(seeds: range) -> None:
        for seed in seeds: ...

The number of seeds is fixed, and so is each seed: the outcome depends neither on luck nor on the speed of the machine.
With ``EVERY_SEED=N`` in the environment a hunt with many seeds tries every Nth of the others: ``.ci/run`` has minutes,
a nightly hunt has hours. With ``LONG_PART=2/4`` only the second of four parts of the long tests runs; the parts are the
same on every machine.

If a few rows of a table are enough in ``make test``, they come first: ``parametrize("row", rest_long(ROWS, 3))``.

``-m long`` alone, as in ``.ci/run``, imports only the files that have such tests.

A test that takes many seconds also in ``make test`` has the marker ``slow``: it starts before the others, so that no
worker is busy with it when all others have finished. With ``slow(together=True)`` as the ``pytestmark`` of a file, one
worker runs all its tests: its fixtures take longer than they do.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

MARKERS = (
    "long: takes long; `make test` leaves it out, `make test-long` runs it",
    "hunt(few, many): call the test with `seeds`, the first `few`; in `make test-long` with those up to `many`",
    "slow(together=False): takes many seconds; starts before the other tests, and `together` with those of its file",
)


FEW_SEEDS = 10
"""A hunt with at most so many other seeds tries all of them, whatever ``EVERY_SEED`` says."""


def every_seed() -> int:
    """N of ``EVERY_SEED=N``: of the other seeds, or parts, every Nth is tried."""
    return int(os.environ.get("EVERY_SEED", "1"))


def rest_long(rows: Sequence[Any], few: int) -> list[Any]:
    """The rows of a table for ``parametrize``: the first few as they are, all others with the marker ``long``."""
    others = (row if isinstance(row, tuple) else (row,) for row in rows[few:])
    return [*rows[:few], *(pytest.param(*row, marks=pytest.mark.long) for row in others)]


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("hunt")
    if marker is not None and "seeds" in metafunc.fixturenames:
        few, many = marker.kwargs["few"], marker.kwargs["many"]
        rest = range(few, many, every_seed() if many - few > FEW_SEEDS else 1)
        others = pytest.param(rest, id=f"{len(rest)} more seeds", marks=pytest.mark.long)
        metafunc.parametrize("seeds", [pytest.param(range(few), id=f"{few} seeds"), others])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """To import all test files is most of the work of a worker before its first test."""
    alone = config.option.markexpr == "long" and collection_path.suffix == ".py"
    return True if alone and not has_long_tests(collection_path) else None


def has_long_tests(file: Path) -> bool:
    """Whether the file marks tests, or a ``conftest.py`` in its folder or above."""
    return _marks(file) or any(_marks(folder / "conftest.py") for folder in file.parents[:3])


@functools.cache
def _marks(file: Path) -> bool:
    return file.exists() and re.search(r"pytest\.mark\.(long|hunt)\b|rest_long\(", file.read_text("utf-8")) is not None


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("long") is not None and not has_long_tests(item.path):
        raise pytest.UsageError(f"{item.path} has long tests, but says so nowhere: `-m long` would leave them out")


def is_in_part(name: str, part: str) -> bool:
    """Whether a test belongs to a part of all tests, such as ``2/4``."""
    number, _, parts = part.partition("/")
    return crc32(name.encode()) % int(parts) == int(number) - 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if part := os.environ.get("LONG_PART"):
        items[:] = [item for item in items if item.get_closest_marker("long") is None or is_in_part(item.nodeid, part)]
    items[:] = slow_first(items)


def slow_first(items: list[pytest.Item]) -> list[pytest.Item]:
    slow = [item for item in items if item.get_closest_marker("slow") is not None]
    return slow + [item for item in items if item.get_closest_marker("slow") is None]
