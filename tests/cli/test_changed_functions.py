"""A function is mended while processes run: the next attempt executes what its files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_scenes import heard, read_until
from tests.cli.command_scenes import Scene
from tests.process_scenes import ended, soon

PLAN = """
asterism: 1
id: nightly
tasks:
  work: {call: "nightly_work:work", retries: RETRIES, backoff: 0.1s}
"""


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    (tmp_path / "nightly_helper.py").write_text("def value(): raise ValueError('an old mistake')\n")
    (tmp_path / "nightly_work.py").write_text(
        "from nightly_helper import value\ndef work():\n    open('called', 'w').close()\n    return value()\n"
    )
    (tmp_path / "plan.yaml").write_text(PLAN.replace("RETRIES", "0"))
    return Scene(tmp_path)


def mend(scene: Scene) -> None:
    (scene.folder / "nightly_helper.py").write_text("def value(): return 'mended'\n")


def run(scene: Scene, *words: str, code: int = 0, **env: str) -> str:
    with scene.process(*words, **env) as process:
        ended_with, output, errors = ended(process)
    assert ended_with == code, output + errors
    return output


def test_a_device_executes_the_mended_function_after_plan_retry(scene: Scene) -> None:
    with scene.process("device", "join", "worker") as device:
        heard(device, "joined")
        assert "an old mistake" in run(scene, "run", "plan.yaml", "--no-local", code=1)
        mend(scene)
        assert run(scene, "plan", "retry", "nightly", "--no-local", "--result", "work") == "mended\n"
        assert device.poll() is None


def test_a_server_that_runs_plans_executes_the_mended_function(scene: Scene) -> None:
    with scene.process("serve", "--local", "1", "--listen", "127.0.0.1:0", "--json") as server:
        line = read_until(server, "http")[-1]
        token = scene.ok("token", "create", "--scope", "operate", "--scope", "observe", "--for", "ci").strip()
        here = {"ASTERISM_STORE": line.split('"')[3], "ASTERISM_TOKEN": token}
        assert "an old mistake" in run(scene, "run", "plan.yaml", code=1, **here)
        mend(scene)
        run(scene, "plan", "retry", "nightly", **here)
        assert run(scene, "plan", "watch", "nightly", "--result", "work", **here) == "mended\n"


def test_the_process_that_owns_the_plan_executes_the_mended_function(scene: Scene) -> None:
    (scene.folder / "plan.yaml").write_text(PLAN.replace("RETRIES", "100"))
    with scene.process(
        "run",
        "plan.yaml",
        "--result",
        "work",
    ) as process:
        soon((scene.folder / "called").exists)
        mend(scene)
        code, output, errors = ended(process)
    assert (code, output.splitlines()[-1]) == (0, "mended"), errors
