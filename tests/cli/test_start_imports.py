"""Short commands answer at once: what they must not import, since importing is nearly all of their processor time.

``python -m bench.cli_start`` measures the time itself.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from asterism.core.plan.plan_options import Strategy
from asterism.core.run.placement import STRATEGIES
from bench import cli_start
from tests.cli.command_scenes import Scene
from tests.process_scenes import PATIENCE

PROBE = """
import sys
sys.argv = ["asterism", *sys.argv[1:]]
from asterism.cli.main import main
try:
    main()
finally:
    sys.stderr.write("\\n" + " ".join(sys.modules))
"""

SLOW = (
    *("asyncpg", "cryptography", "ctypes", "email", "html.entities", "httpx", "importlib.metadata"),
    *("importlib.resources", "multiprocessing", "starlette", "unittest", "zipfile"),
    *("asterism.base.cel.cel_syntax", "asterism.fleet.device.agent", "asterism.fleet.policy", "asterism.report"),
    *("asterism.store.memory", "asterism.store.postgres", "asterism.peers.exchange"),
)
"""Modules that none of the commands on a store imports."""

FILES = ("pydantic", "yaml", "asterism.planfile")
CHECK = (
    *("asyncio", "asyncpg", "ctypes", "httpx", "pydantic", "rich", "sqlite3"),
    *("asterism.base.cel.cel_syntax", "asterism.core.run.placement", "asterism.orchestrator", "asterism.report"),
)
CREATE = ("runs", "create", "work", "--input", '{"text": "hello"}')


def imported(folder: Path, words: Sequence[str], env: dict[str, str]) -> set[str]:
    """The modules of a process that has executed a command, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words],
        cwd=folder,
        env={"PATH": "", "USER": "ann", **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("\n")[2].split())


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path)
    scene.workflow(shell="echo {text}")
    scene.create(run_input={"text": "hello"})
    (tmp_path / "flow.yaml").write_text("name: other\nshell: echo\n")
    (tmp_path / "plan.yaml").write_text("asterism: 1\ntasks:\n  a: {argv: [echo], timeout: 5m}\n")
    scene.ok("run", str(tmp_path / "plan.yaml"), "--store", scene.url, "--plain")
    return scene


@pytest.mark.parametrize(
    ("words", "slow"),
    [
        pytest.param(CREATE, (*SLOW, *FILES, "rich"), marks=pytest.mark.long),
        pytest.param(("runs", "create", "--file", "flow.yaml"), (*SLOW, "pydantic", "rich"), marks=pytest.mark.long),
        pytest.param(("runs", "list"), (*SLOW, *FILES), marks=pytest.mark.long),
        pytest.param(
            ("series", "claim", "daily", "--issue", "1"),
            (*SLOW, *FILES, "rich", "asterism.fleet.fleet"),
            marks=pytest.mark.long,
        ),
        (("plan", "list"), (*SLOW, *FILES, "asterism.durable.journal_store", "asterism.orchestrator")),
        (("check", "plan.yaml"), CHECK),
    ],
    ids=lambda value: " ".join(value[:2]),
)
def test_a_short_command_imports_nothing_that_takes_long(
    words: tuple[str, ...], slow: tuple[str, ...], scene: Scene
) -> None:
    modules = imported(scene.folder, words, scene.env)
    assert modules & set(slow) == set()


def test_the_probe_sees_what_a_command_imports(scene: Scene) -> None:
    modules = imported(scene.folder, ("check", "plan.yaml"), scene.env)
    assert {"msgspec", "yaml", "asterism.planfile"} <= modules


def test_the_names_of_strategies_are_those_of_the_core() -> None:
    assert tuple(STRATEGIES) == get_args(Strategy)


def test_the_bars_are_told() -> None:
    text = cli_start.page([cli_start.Start("runs list", 3.0, 0.1, 0.25, 0.5), cli_start.Start("x", 3.0, 0.1, 0.4, 0.4)])
    assert "| runs list | 500.00 ms (5.00×) | 250.00 ms (2.50×) | 3× | met |" in text
    assert "| 400.00 ms (4.00×) | 3× | **missed** |" in text


def test_a_command_that_fails_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="exits with 3"):
        cli_start.processor_time([sys.executable, "-c", "raise SystemExit(3)"], tmp_path, {})


def test_a_command_without_its_effect_is_no_measurement() -> None:
    effects = cli_start.Effects(cli_start.RUNS + 2, {"series-0", "remote-0"}, ["completed"])
    effects.check(1)
    for wrong in ({"runs": cli_start.RUNS + 1}, {"claimed": {"series-0"}}, {"plans": ["failed"]}):
        with pytest.raises(AssertionError, match=r"runs, not|not claimed|not one completed plan"):
            replace(effects, **wrong).check(1)


@pytest.mark.long
def test_short_commands_keep_their_bars() -> None:
    starts = cli_start.measure(rounds=3)
    if any(start.ratio > start.bar for start in starts):  # the machine is busy: measure for longer before judging
        starts = cli_start.measure(rounds=12)
    assert [start for start in starts if start.ratio > start.bar] == []
