"""The comparison of Pythons: interpreters are found by what they say they are, tests that did not run give no figure,
and the page names the versions that were not tried."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import pythons

THIS = "{}.{}".format(*sys.version_info)


def _fake(folder: Path, said: str, code: int = 0) -> Path:
    """A program in place of an interpreter."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\necho '{said}'\nexit {code}\n")
    program.chmod(0o755)
    return program


def test_an_interpreter_is_found_by_the_version_that_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("BENCH_PYTHONS", f"{sys.executable}:{_fake(tmp_path, '3.99t')}")
    assert pythons.interpreters([THIS, "3.98", "3.99", "3.99t"]) == {
        THIS: Path(sys.executable),
        "3.99t": tmp_path / "python",
    }


def test_an_interpreter_that_does_not_start_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("BENCH_PYTHONS", str(_fake(tmp_path, "3.99", code=1)))
    assert pythons.interpreters(["3.99"]) == {}


def test_the_last_line_of_the_tests_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = _fake(
        tmp_path, "..F\nFAILED tests/a.py::test_a - AssertionError\n1 failed, 7 passed in 3.21s (0:00:03)", 1
    )
    assert pythons.run_tests(program) == "1 failed, 7 passed"
    assert "FAILED tests/a.py::test_a" in capsys.readouterr().err


def test_tests_that_did_not_run_give_no_page(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"the tests did not run on (.|\n)*no tests ran in 0\.01s"):
        pythons.run_tests(_fake(tmp_path, "no tests ran in 0.01s", 5))


def test_the_page_has_the_better_round_and_names_what_was_not_tried() -> None:
    rounds: list[dict[str, float | str]] = [
        {
            "version": "3.99.1",
            "compiled by": "GCC 1",
            "chain, times bare asyncio": ratio,
            "chain, processor time per task": ratio / 1e5,
            "bytes per pending task": 600.4,
            "durable wide, tasks per second": 1000.0 * ratio,
            "durable wide, share of raw commits": ratio / 10,
        }
        for ratio in (3.0, 2.0)
    ]
    text = pythons.page({"3.99": pythons.Tested("9 passed", rounds)}, ["3.99", "3.99t", "4.0"])
    assert "|  | 3.99.1 |" in text
    assert "| tests | 9 passed |" in text
    assert "| compiled by | GCC 1 |" in text
    assert "| chain, times bare asyncio | 2.00 |" in text
    assert "| chain, processor time per task | 20.0 µs |" in text
    assert "| bytes per pending task | 600 |" in text
    assert "| durable wide, tasks per second | 3,000 |" in text
    assert "| durable wide, share of raw commits | 30% |" in text
    assert "**Not tried**, because there was no such interpreter: 3.99, free-threaded; 4.0." in text


@pytest.mark.long
def test_the_figures_of_this_python_have_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pythons.cost, "SHAPES", {"few": pythons.cost.SMALL["chain"]})
    monkeypatch.setattr(pythons.memory, "bytes_per_task", lambda: 1.0)
    few = pythons.speed.compare(["asterism", "raw"], rounds=1, tasks=20)
    monkeypatch.setattr(pythons.speed, "compare", lambda peers, rounds, tasks: few)
    figures = pythons.figures()
    assert str(figures["version"]).startswith(platform.python_version())
    assert {"few, times bare asyncio", "durable chain, share of raw commits"} <= set(figures)


def test_the_comparison_has_a_page() -> None:
    assert command.PAGES["pythons"][2] == "benchmarks-pythons.md"
