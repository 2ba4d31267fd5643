"""The benchmarks of durable constellations: every engine that is installed does every task and leaves a record of it,
a half-done plan is continued, and the page shows the figures."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import httpx
import pytest

from bench import __main__ as command
from bench.durable import calls, page, restate_server, resume, speed, waiting, work
from bench.durable.peers import PEERS, asterism_steps, installed, load, raw_steps, recorded, restate_steps
from bench.graphs import chain, independent, layers
from bench.measure import Sample


@pytest.mark.parametrize("name", PEERS)
def test_an_engine_does_every_task_of_every_shape_and_records_it(name: str) -> None:
    if not installed(name):
        pytest.skip(f"engine {name} is not installed: make bench-env")
    samples = speed.measure(name, [12, 8, 2 * work.WIDTH])
    assert [sample.tasks for sample in samples] == [12, 8, 2 * work.WIDTH]
    assert all(sample.wall > 0 for sample in samples)
    peer = load(name)
    assert any(letter.isdigit() for letter in peer.VERSION())
    assert peer.SETTINGS
    assert set(peer.LIMIT) == set(speed.SHAPES)


def test_what_an_engine_complains_about_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"No module named 'bench\.durable\.peers\.unheard_of_steps'"):
        speed.measure("unheard_of", [1, 1, 1])


def test_an_engine_that_kept_nothing_is_found_out() -> None:
    recorded(3, 3, "rows")
    with pytest.raises(AssertionError, match="2 rows for 3 tasks"):
        recorded(2, 3, "rows")


async def failing_step(number: int) -> None:
    await work.step(number)
    raise ValueError("it fails")


def test_tasks_that_are_done_but_not_in_the_file_give_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asterism_steps, "tune_gc", lambda: None)  # this process belongs to the tests
    with asterism_steps.session(tmp_path) as measure:
        assert measure(chain(3)).tasks == 3
        monkeypatch.setattr(asterism_steps, "STEP", f"{__name__}:failing_step")
        with pytest.raises(AssertionError, match=r"0 is failed .*it fails"):
            measure(independent(3))
    with pytest.raises(AssertionError, match="the plan has 3 tasks, not 4"):
        asyncio.run(asterism_steps.check_file(tmp_path / "0.db", chain(4)))


@pytest.mark.long
def test_a_plan_that_is_not_continued_to_its_end_gives_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(number: int) -> None:
        raise ValueError("it fails")

    resume.leave_half(tmp_path / "left.db", 60)
    monkeypatch.setattr(work, "step", failing)  # a device looks up the function of a task once
    with pytest.raises(AssertionError, match="tasks have not completed"):
        asyncio.run(resume._on_copy(tmp_path / "left.db", resume._until_the_end))


def test_a_result_that_restate_has_not_in_its_journal_gives_no_figure() -> None:
    answer = {"rows": [{"steps": 2}]}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=answer))
    with httpx.Client(transport=transport, base_url="http://restate") as admin:
        steps = restate_steps._records(admin, "inv_1")
    with pytest.raises(AssertionError, match="2 recorded steps for 3 tasks"):
        recorded(steps, 3, "recorded steps")


def test_a_server_of_restate_that_does_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "restate-server"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setattr(restate_server, "PROGRAM", program)
    with (
        pytest.raises(RuntimeError, match="the server of Restate did not start: 7"),
        restate_server.running(tmp_path / "base"),
    ):
        pass


def test_without_npm_restate_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(restate_server, "PROGRAM", tmp_path / "restate-server")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(restate_server, "machine", lambda: "linux-x64")
    restate_server.main()
    monkeypatch.setattr(restate_server, "machine", lambda: "plan9-mips")
    restate_server.main()
    told = capsys.readouterr().out
    assert "npm is missing" in told
    assert "no server of Restate for plan9-mips" in told
    assert not installed("restate")


@pytest.mark.long
def test_engines_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "unheard_of", "unheard.of.package")
    found = speed.compare(["raw", "unheard_of"], rounds=2, tasks=20)
    assert list(found.speeds) == ["raw"]
    assert [len(found.speeds["raw"].samples[shape]) for shape in speed.SHAPES] == [2, 2, 2]
    assert found.missing == ["unheard_of"]


def test_the_shapes_are_what_they_are_called() -> None:
    assert work.graph("wide", 30) == independent(30)
    assert work.graph("chain", 30) == chain(30)
    assert work.graph("layered", 70) == layers(3, work.WIDTH)


def _speed(name: str, *rates: float) -> speed.Speed:
    samples = {shape: [Sample(100, 100 / rate, 0.1)] for shape, rate in zip(speed.SHAPES, rates, strict=True)}
    return speed.Speed(name, "1", "as it comes", samples)


def test_all_tasks_wait_and_all_go_on() -> None:
    found = waiting.measure(waiting.Sizes(tasks=50, seconds=0.2, settle=0.0))
    assert (found.tasks, found.processor < 1) == (50, True)
    assert "A plan of 50 tasks" in page.waits(found)
    assert "| at most 2% | 3.00% | **missed** |" in page.waits(waiting.Measured(9, 1.0, 0.03, 1.0))


def test_the_page_judges_every_bar() -> None:
    speeds = {
        "asterism": _speed("asterism", 5_000, 1_000, 2_000),
        "raw": _speed("raw", 6_000, 3_000, 3_000),
        "dbos": _speed("dbos", 200, 80, 400),
        "dbos_sync": _speed("dbos, one by one", 500, 500, 500),
        "langgraph": _speed("langgraph", 700, 2_000, 600),
    }
    text = page.beside_others(speed.Comparison(speeds, ["prefect"]))
    assert "| langgraph | 1 | 700/s (7.1×) | 100 | 2,000/s (0.5×) | 100 | 600/s (3.3×) | 100 |" in text
    assert "| wide: at least 10 times dbos | 25.00× | met |" in text
    assert "| layered: at least 10 times dbos | 5.00× | **missed** |" in text
    assert "| chain: at least 10 times dbos, one by one | 2.00× | **missed** |" in text
    assert "| wide: ahead of every other durable engine | 7.1 times langgraph, the next | met |" in text
    assert "| chain: ahead of every other durable engine | 0.5 times langgraph, the next | **missed** |" in text
    assert "| layered: at least 4 times langgraph | 3.33× | **missed** |" in text
    assert "| wide: at least 0.7 times raw | 0.83× | met |" in text
    assert "| chain: at least 0.5 times raw | 0.33× | **missed** |" in text
    assert "not installed, and so left out: prefect" in text


def test_the_best_round_counts() -> None:
    one = speed.Speed("one", "1", "", {"wide": [Sample(100, 2.0, 0.1), Sample(100, 0.5, 0.1)]})
    assert one.rate("wide") == 200
    assert one.tasks("wide") == 100


@pytest.mark.long
def test_a_plan_that_was_left_half_done_is_gone_on_with() -> None:
    found = resume.measure(tasks=60, rounds=1)
    assert found.tasks == 60
    assert 0 < found.done <= 30
    assert found.read > 0
    assert min(found.owned, found.begun) > 0  # which of them is first is for the machine to say
    assert found.weight.snapshot > 0
    assert found.weight.steps > 0
    assert found.compaction.weight.steps < found.weight.steps  # those with which the parts were written
    assert found.compaction.weight.records < found.weight.records
    assert found.compaction.still > 0
    text = page.taken_up(found)
    assert "A layered plan of 60 tasks" in text
    assert "Compaction is due after 10,000 steps" in text


def test_a_process_that_was_not_killed_is_no_crash(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="it was to be killed, and ended with 1"):
        resume.leave_half(tmp_path / "none" / "left.db", 60)


async def test_a_file_without_a_journal_has_no_weight(tmp_path: Path) -> None:
    await (await resume.Fleet.open(f"sqlite:///{tmp_path}/empty.db")).close()
    with pytest.raises(AssertionError, match="no snapshot"):
        resume.weigh(tmp_path / "empty.db")


def test_the_raw_loop_commits_twice_for_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    opened = raw_steps._opened

    def listened_to(path: Path) -> sqlite3.Connection:
        connection = opened(path)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        connection.set_trace_callback(said.append)
        return connection

    monkeypatch.setattr(raw_steps, "_opened", listened_to)
    with raw_steps.session(tmp_path) as measure:
        measure(chain(5))
    written = [words.split()[0] for words in said if not words.startswith("SELECT")]
    assert written == ["INSERT", "UPDATE"] * 5  # and no BEGIN: each is a commit of its own


def test_all_parts_have_a_page() -> None:
    parts, _, file = command.PAGES["durable"]
    assert list(parts) == ["durable-speed", "durable-resume", "durable-waiting"]
    assert file == "benchmarks-durable.md"
    assert all(name in command.PARTS for name in parts)


def test_a_durable_task_of_a_chain_keeps_its_budget_of_calls() -> None:
    counted = calls.by_package(calls.calls_per_task(60))
    assert {name: number for name, number in counted.items() if number > calls.BUDGET.get(name, 1.0)} == {}
    assert counted["core"] > 10, "nothing was counted"
