"""Plans in Python: ``module:plan`` wherever a command takes a plan file, stored, killed, resumed and scheduled."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.cli.cli_scenes import read_until
from tests.cli.command_scenes import Scene
from tests.forked_commands import ForkedProgram
from tests.process_scenes import ended, soon

MODULE = """
import asyncio, pathlib

from asterism import Constellation, Task

plan = Constellation("etl")


def first():
    with open("lines", "a") as lines:
        lines.write("first ")
    return [1, 2]


plan.add(Task("first", call=first))
plan.add(Task("path", call="nightly_etl:follow", inputs={"number": {"from": "first", "select": "result[1]"}}), "first")


def follow(number):
    return number + 1


@plan.task
def decorated(first: list[int], path: int) -> int:
    return sum(first) + path


@plan.task(id="named", retries=2, timeout=60, after={"decorated": "always"})
async def waits(decorated: int) -> int:
    pathlib.Path("reached").touch()
    while not pathlib.Path("open").exists():
        await asyncio.sleep(0.01)
    return decorated + 1


plan.add(Task("command", argv=["echo", "{n}"], inputs={"n": {"from": "named"}}), {"named": {"when": "result == 7"}})
plan.add(Task("mend", call="platform:node"), handles="command")


def factory() -> Constellation:
    return plan


not_a_plan = 5
"""

PROGRAM = """
import asyncio
import nightly_etl
from asterism import DurableOrchestrator, Fleet

async def main():
    async with await Fleet.open({url!r}) as fleet:
        await DurableOrchestrator(fleet, local=2).run(nightly_etl.plan)

asyncio.run(main())
"""

VALUES = {"first": [1, 2], "path": 3, "decorated": 6, "named": 7, "command": "7", "mend": None}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    (tmp_path / "nightly_etl.py").write_text(MODULE)
    return Scene(tmp_path)


def start(scene: Scene, *words: str) -> tuple[int, str, str]:
    with scene.process(*words) as process:
        return ended(process)


def values(scene: Scene, name: str = "etl") -> dict[str, object]:
    return {task["id"]: task["result"] for task in scene.json("plan", "show", name)["tasks"]}


@pytest.mark.parametrize("how", ["plan", "factory", "program"])
def test_every_form_of_a_python_plan_is_stored_killed_and_resumed(scene: Scene, how: str) -> None:
    if how == "program":
        path = f"import sys; sys.path.insert(0, {str(scene.folder)!r})\n"
        around = {"cwd": str(scene.folder), "env": os.environ | scene.env, "stdout": -1, "stderr": -1}
        started = ForkedProgram(path + PROGRAM.format(url=scene.url), **around)
        with started as process:
            soon((scene.folder / "reached").exists)
            process.kill()
            process.communicate()
    else:
        with scene.process("run", f"nightly_etl:{how}") as process:
            soon((scene.folder / "reached").exists)
            process.send_signal(signal.SIGKILL)
            process.communicate()
    (scene.folder / "open").touch()
    code, output, errors = start(scene, "resume", "etl")
    assert code == 0, output + errors
    assert values(scene) == VALUES
    assert (scene.folder / "lines").read_text() == "first "  # what had completed was not done again


def test_a_schedule_keeps_a_python_plan(scene: Scene) -> None:
    (scene.folder / "open").touch()
    code, output, errors = start(scene, "schedule", "add", "night", "--plan", "nightly_etl:plan", "--every", "1h")
    assert code == 0, output + errors
    name = scene.ok("schedule", "run", "night").split()[0]
    with scene.process("monitor", "--every", "0.2s"), scene.process("device", "join", "worker"):
        soon(lambda: [plan["state"] for plan in scene.json("plan", "list") if plan["name"] == name] == ["completed"])
    assert values(scene, name) == VALUES


def test_a_python_plan_runs_here_in_part_and_with_the_name_of_its_variable(scene: Scene) -> None:
    (scene.folder / "unnamed.py").write_text(MODULE.replace('Constellation("etl")', "Constellation()"))
    code, output, errors = start(scene, "run", "unnamed:plan", "--store", "memory:", "--only", "path", "--json")
    assert code == 0, errors
    document = json.loads(output)
    assert (document["id"], set(document["tasks"])) == ("plan", {"first", "path"})


def test_a_server_runs_a_python_plan(scene: Scene) -> None:
    (scene.folder / "open").touch()
    with scene.process("serve", "--local", "2", "--listen", "127.0.0.1:0", "--json") as server:
        address = read_until(server, "http")[-1].split('"')[3]
        token = scene.ok("token", "create", "--scope", "operate", "--scope", "observe", "--for", "ci").strip()
        with scene.process("run", "nightly_etl:plan", ASTERISM_STORE=address, ASTERISM_TOKEN=token) as process:
            code, output, errors = ended(process)
    assert code == 0, output + errors
    assert values(scene) == VALUES


def test_check_and_show_take_a_python_plan(scene: Scene) -> None:
    code, output, _ = start(scene, "check", "nightly_etl:plan", "--imports")
    assert (code, output) == (0, "nightly_etl:plan is valid: 6 tasks, 6 dependencies.\n")
    code, output, _ = start(scene, "show", "nightly_etl:plan", "--json")
    assert (code, [task["id"] for task in json.loads(output)["tasks"]]) == (0, list(VALUES))


@pytest.mark.parametrize("overlap", [("queue", 2), ("replace", 1, "ci")])
def test_a_python_plan_has_its_overlap(scene: Scene, overlap: tuple[object, ...]) -> None:
    (scene.folder / "alone_etl.py").write_text(MODULE + f"\nplan.overlap = {overlap!r}\n")
    code, _, errors = start(scene, "check", "alone_etl:plan")
    assert code == 0, errors


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nightly_etl:not_a_plan", "is not a Constellation, or a function that returns one, but int"),
        ("nightly_etl:nothing", "'nightly_etl' has no 'nothing'"),
        ("no_such_etl:plan", "No module named 'no_such_etl'"),
        ("local_etl:plan", "task 'inner': <function make.<locals>.inner"),
    ],
)
def test_what_is_no_plan_is_named(scene: Scene, path: str, problem: str) -> None:
    (scene.folder / "local_etl.py").write_text(
        "from asterism import Constellation\nplan = Constellation('local')\n"
        "def make():\n    @plan.task\n    def inner(): pass\nmake()\n"
    )
    code, _, errors = start(scene, "run", path)
    assert (code, problem in errors) == (64, True), errors
