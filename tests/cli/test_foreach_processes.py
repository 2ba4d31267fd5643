"""Plan files on the command line: parameters, targets, groups, unchanged tasks; also if the process is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_scenes import asterism, write
from tests.cli.command_scenes import Scene
from tests.process_scenes import PATIENCE, ended

GROUPED = """\
params: {names: {type: list}}
tasks:
  list: {argv: [echo, "{params.names}"]}
  it:
    foreach: {from: list}
    shell: echo "$item" >> log; echo "$item done"
  last: {argv: [echo, "{all}"], inputs: {all: {from: it}}, after: it}
"""
NAMES = ["a", "b", "c"]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)  # where tasks leave their traces
    return Scene(tmp_path)


@pytest.mark.slow
@pytest.mark.hunt(few=1, many=50)
def test_a_group_survives_the_sudden_death_of_its_process(scene: Scene, seeds: range) -> None:
    """Whatever the process has done when it is killed, the next one continues with the same elements, and no element
    that had ended is executed again."""
    path = write(scene.folder, GROUPED)
    for seed in seeds:
        name, log = f"plan{seed}", scene.folder / "log"
        log.unlink(missing_ok=True)
        words = ["run", path, "--set", f"names={json.dumps(NAMES)}", "--store", scene.url, "--id", name, "--plain"]
        with scene.process(*words) as process:
            assert process.stdout is not None
            heard = [process.stdout.readline() for _ in range(2 + 5 * seed % 8)]
            process.kill()
            process.wait(PATIENCE)
        with scene.process("resume", name, "--json") as process:
            code, output, errors = ended(process)
        assert code == 0, errors
        told = json.loads(output)
        assert told["tasks"]["it"]["value"] == [f"{element} done" for element in NAMES]
        assert told["version"] == 1
        done = log.read_text().split()
        assert sorted(set(done)) == NAMES
        for element in NAMES:
            assert done.count(element) == 1 or f"it[{element}] completed" not in "".join(heard)


def test_parameters_and_targets_on_the_command_line(scene: Scene) -> None:
    path = write(
        scene.folder,
        "params: {day: {}, n: 1}\ntasks:\n  a: {argv: [echo, '{params.day} {params.n}']}\n"
        "  b: {shell: echo $day, after: a}\n  c: {shell: 'false'}\n",
    )
    (scene.folder / "values.json").write_text('{"n": 2, "day": "tuesday"}')
    told = scene.json("run", path, "--set", "day=monday", "--params", "values.json", "--only", "b")
    assert {name: task_result["value"] for name, task_result in told["tasks"].items()} == {
        "a": "monday 2",
        "b": "monday",
    }
    refused = asterism("run", path, "--set", "dya=1")
    assert refused.exit_code == 64
    assert refused.stderr.splitlines() == [
        f"{path}:2: parameter 'day': a value is required; give one with --set day=VALUE",
        f"{path}:2: there is no parameter 'dya'; did you mean 'day'?",
        f"2 mistakes in {path}; nothing was done.",
    ]
    assert "'day' is not NAME=VALUE" in asterism("run", path, "--set", "day").stderr
    assert asterism("check", path).stdout == f"{path} is valid: 3 tasks, 1 dependency.\n"
    assert asterism("check", path, "--only", "c").stdout == f"{path} is valid: 1 task, 0 dependencies.\n"
    shown = json.loads(asterism("show", path, "--only", "b", "--json").stdout)
    assert {task["id"] for task in shown["tasks"]} == {"a", "b"}


def test_a_stored_plan_records_its_parameters(scene: Scene) -> None:
    path = write(scene.folder, "params: {day: {}, tags: [x]}\ntasks:\n  a: {argv: [echo, '{params.day}']}\n")
    scene.ok("run", path, "--set", "day=monday", "--store", scene.url)
    assert scene.json("plan", "show", "plan")["params"] == {"day": "monday", "tags": ["x"]}
    assert 'parameters: day=monday, tags=["x"]' in scene.ok("plan", "show", "plan")


def test_unchanged_tasks_are_skipped_with_and_without_a_store(scene: Scene) -> None:
    path = write(
        scene.folder,
        "tasks:\n  copy:\n    foreach: [a, b]\n    shell: cp in.txt $item.txt; echo x >> log; echo $item\n"
        "    skip_if_unchanged: {inputs: [in.txt], outputs: ['{item}.txt']}\n",
    )
    (scene.folder / "in.txt").write_text("1")
    log = scene.folder / "log"
    memory = ("--store", "memory:")
    for words, executions in ((memory, 2), (memory, 2), (("--store", scene.url), 2)):
        told = scene.json("run", path, *words)
        assert told["tasks"]["copy"]["value"] == ["a", "b"]
        assert log.read_text().count("x") == executions
    (scene.folder / "a.txt").write_text("changed")
    assert "copy[b] is unchanged: its recorded result is used" in scene.ok("run", path, "--plain", *memory)
    assert log.read_text().count("x") == 3
    assert "unchanged" in scene.ok("plan", "story", "plan")
