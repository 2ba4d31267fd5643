"""The tracer counts each function of a package once, whatever the thread, and every way yields functions and files."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from bench.call_paths import __main__ as command
from bench.call_paths import tasks
from bench.call_paths.tracer import Tracer
from bench.call_paths.ways import PACKAGE, WAYS, Traced, trace

SOURCE = """
import asyncio
import threading


def imported():
    return 1


class Thing:
    size = imported()

    @property
    def length(self):
        return measured()


def measured():
    return [one for one in (lambda: (1, 2))()]


async def inner():
    await asyncio.sleep(0)


async def outer():
    await inner()
    await inner()


def in_thread():
    thread = threading.Thread(target=measured)
    thread.start()
    thread.join()
"""


def _load(folder: Path) -> ModuleType:
    file = folder / "chain.py"
    file.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("chain", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _names(tracer: Tracer) -> list[str]:
    return sorted(function.name for function in tracer.walks[-1])


def test_a_function_counts_once_and_a_property_does_not(tmp_path: Path) -> None:
    chain = _load(tmp_path)
    tracer = Tracer(tmp_path)
    with tracer:
        chain.measured()
        tracer.start()
        _ = chain.Thing().length, chain.Thing().length
        tracer.stop()
        chain.imported()
    assert _names(tracer) == ["measured", "measured.<locals>.<lambda>"]
    assert tracer.tree().splitlines() == [
        "measured  (chain.py:18)  ×2",
        "  measured.<locals>.<lambda>  (chain.py:19)  ×2",
    ]


def test_coroutines_are_nested_and_counted_each_time_they_resume(tmp_path: Path) -> None:
    chain = _load(tmp_path)
    tracer = Tracer(tmp_path)
    with tracer:
        tracer.start()
        asyncio.run(chain.outer())
        tracer.stop()
    assert _names(tracer) == ["inner", "outer"]
    assert [line.split("  (")[0] for line in tracer.tree().splitlines()] == ["outer", "  inner"]


def test_what_an_import_calls_does_not_count(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path)
    with tracer:
        tracer.start()
        _load(tmp_path)
        tracer.stop()
    assert _names(tracer) == []


def test_threads_that_start_while_it_is_installed_are_traced(tmp_path: Path) -> None:
    chain = _load(tmp_path)
    tracer = Tracer(tmp_path)
    with tracer:
        tracer.start()
        chain.in_thread()
        tracer.stop()
    assert _names(tracer) == ["in_thread", "measured", "measured.<locals>.<lambda>"]
    assert "\n\n" in tracer.tree()
    assert threading.getprofile() is None


@pytest.fixture(scope="module")
def ways() -> dict[str, Traced]:
    return {name: trace(way) for name, way in WAYS.items()}


@pytest.mark.long  # walks all ways
def test_every_way_yields_functions_of_the_package(ways: dict[str, Traced]) -> None:
    for name, found in ways.items():
        assert len(found.functions) >= 15, name
        assert len(found.files) >= 5, name
        assert all((PACKAGE / file).is_file() for file in found.files)
        assert found.tree


@pytest.mark.long
def test_a_longer_way_passes_more(ways: dict[str, Traced]) -> None:
    assert len(ways["next-task"].functions) < len(ways["next-task-editor"].functions)
    assert len(ways["durable-end"].functions) < len(ways["durable-commit"].functions)
    assert not any(file.startswith("store/") for file in ways["next-task"].files)


@pytest.mark.long
def test_a_way_in_memory_is_the_same_every_time() -> None:
    for name in ("next-task", "next-task-editor"):
        found = trace(WAYS[name])
        assert trace(WAYS[name]).functions == found.functions
        assert len(found.functions) >= 15


@pytest.mark.long
def test_a_way_that_was_not_gone_to_its_end_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    way = WAYS["next-task"]
    with pytest.raises(AssertionError, match="next-task was gone 11 times, not 12"):
        trace(replace(way, times=12))

    async def failing() -> None:
        await tasks.nothing()
        raise ValueError("it fails")

    monkeypatch.setattr(tasks, "marked", failing)
    with pytest.raises(AssertionError, match="0 is failed ValueError: it fails"):
        trace(way)


@pytest.mark.long
def test_the_command_prints_a_table_a_tree_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["next-task", "--json", str(tmp_path / "found.json")]) == 0
    assert capsys.readouterr().out.startswith("| way | functions at ")
    assert '"next-task"' in (tmp_path / "found.json").read_text("utf-8")
    assert command.main(["--tree", "next-task"]) == 0
    assert ".py:" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command.main(["nowhere"])
