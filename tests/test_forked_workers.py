"""Tests in forked workers: what they report, and a worker that dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.forked_workers import _parts

ROOT = Path(__file__).resolve().parents[1]

TESTS = """
import os
import signal
import pytest

made = []

@pytest.fixture(scope="module")
def place(tmp_path_factory):
    made.append(tmp_path_factory.mktemp("place"))
    yield made[-1]
    assert made.pop().exists()

def test_fails(place):
    print("said before")
    assert [1, 2] == [1, 3]

@pytest.mark.parametrize("number", range(200))
def test_passes(number, place):
    assert made == [place]

@pytest.mark.parametrize("number", range(4))
def test_dies(number):
    if number == 1:
        child = os.fork()
        if child == 0:
            signal.pause()
        with open("child", "w") as file:
            file.write(str(child))
        os._exit(7)

@pytest.mark.skip(reason="not today")
def test_is_skipped(): pass

def test_has_a_broken_end(request):
    request.addfinalizer(lambda: 1 / 0)
"""


PLUGINS = ("-p", "xdist.plugin", "-p", "tests.forked_workers", "-p", "no:cacheprovider", "-ra")


def pytest_in_workers(folder: Path, *words: str) -> str:
    (folder / "test_some.py").write_text(TESTS, encoding="utf-8")
    with (folder / "output").open("w") as output:  # a pipe would be open while the child of a test is there
        subprocess.run(
            [sys.executable, "-m", "pytest", "-c", "/dev/null", *PLUGINS, "--workers", "2", *words, str(folder)],
            cwd=folder,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=600,
        )
    return (folder / "output").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.long
def test_every_test_is_reported_once_also_if_a_worker_dies(tmp_path: Path) -> None:
    output = pytest_in_workers(tmp_path)
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)  # it outlived its worker, and nobody waited for it
    assert "2 failed, 204 passed, 1 skipped, 1 error in" in output, output
    assert "assert [1, 2] == [1, 3]" in output
    assert "said before" in output
    assert "ended with 7 while it ran " in output
    assert "test_some.py::test_dies[1]" in output
    assert "ZeroDivisionError" in output
    assert "not today" in output


@pytest.mark.long
def test_the_first_failure_ends_all_if_that_is_asked_for(tmp_path: Path) -> None:
    output = pytest_in_workers(tmp_path, "-x")
    assert "stopping after 1 failures" in output, output
    assert re.search(r"1 failed, \d{1,2} passed in", output), "what was handed out is still run"


def test_a_slow_test_is_a_part_of_its_own_unless_its_file_stays_together() -> None:
    def items(file: str, *marks: pytest.Mark) -> list[Any]:
        marker = {mark.name: mark for mark in marks}.get
        return [SimpleNamespace(path=file, get_closest_marker=marker) for _ in range(3)]

    slow, together = pytest.mark.slow.mark, pytest.mark.slow(together=True).mark
    every = [*items("a", slow), *items("b", together), *items("c"), *items("d", slow) * 20]
    parts = list(_parts(every, 1))
    assert parts[:5] == [[0], [1], [2], [3, 4, 5], [6, 7, 8]]
    assert all(len(part) == 1 for part in parts[5:])
