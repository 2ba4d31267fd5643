"""Start-up of a process: names imported on first use, and the garbage collector."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

GC_PROGRAM = """
import gc
from asterism.base.startup import GC_THRESHOLD, tune_gc
before = gc.get_threshold()[0]
tune_gc()
print(before < GC_THRESHOLD == gc.get_threshold()[0], gc.get_freeze_count() > 1000)
"""

OLD_CYCLES_PROGRAM = """
import gc
from asterism.base.startup import GC_THRESHOLD, tune_gc
tune_gc()
before = gc.get_stats()[2]["collections"]
kept = [[] for _ in range(60 * GC_THRESHOLD)]
print(gc.get_stats()[2]["collections"] > before)
"""

PACKAGES = ("asterism", "asterism.durable", "asterism.fleet", "asterism.series", "asterism.store", "asterism.testing")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package: str) -> None:
    module = import_module(package)
    for name in module.__all__:
        public = getattr(module, name)
        assert not hasattr(public, "__name__") or public.__name__.rpartition(".")[2] == name
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    name = "nothing"
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute '{name}'"):
        getattr(import_module(package), name)


@pytest.mark.parametrize(
    ("program", "not_imported"),
    [
        ("import asterism.store", ["sqlite3", "asyncpg", "asterism.store.memory"]),
        ("from asterism.store import Store, MemoryStore", ["sqlite3", "asyncpg"]),
        ("import asterism.testing", ["pytest", "hypothesis", "asterism.store", "asterism.fleet.fleet"]),
        (
            "from asterism.testing import run, SimLoop",
            ["pytest", "hypothesis", "asterism.store", "asterism.fleet.fleet"],
        ),
        ("from asterism.testing import check_device", ["pytest", "hypothesis"]),
    ],
)
def test_only_what_is_asked_for_is_imported(program: str, not_imported: list[str]) -> None:
    check = f"{program}\nimport sys; print(*sorted({set(not_imported)} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == ""


def test_the_collector_runs_less_often_and_skips_objects_of_the_start() -> None:
    """In a process of its own, since it changes the collector of the whole process."""
    done = subprocess.run([sys.executable, "-c", GC_PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_cycles_of_objects_that_were_long_in_use_are_found_in_time() -> None:
    done = subprocess.run([sys.executable, "-c", OLD_CYCLES_PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
