"""Defaults of a file, files that include others, and plans of one target."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asterism.planfile import BadPlan, examine, include, load


def write(folder: Path, **files: str) -> str:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"asterism: 1\n{text}")
    return str(folder / "plan.yaml")


def told(path: str) -> list[str]:
    with pytest.raises(BadPlan) as bad:
        load(path)
    return str(bad.value).splitlines()


# -- defaults ----------------------------------------------------------------------------------------------------------


def test_a_task_has_the_defaults_unless_it_says_otherwise(tmp_path: Path) -> None:
    loaded = load(
        write(
            tmp_path,
            plan="defaults: {retries: 2, timeout: 5m, env: {A: 1, B: 1}, cwd: /tmp, priority: high, device: moon}\n"
            "tasks:\n  a: {shell: x}\n  b: {shell: x, retries: 0, env: {B: 2}, device: {needs: [gpu]}}\n",
        )
    ).constellation
    a, b = loaded["a"].task, loaded["b"].task
    assert (a.retries, a.timeout, a.cwd, a.priority.name, a.device) == (2, 300, "/tmp", "HIGH", "moon")
    assert (b.retries, b.timeout, b.device, b.needs) == (0, 300, None, {"gpu"})
    assert (dict(a.env), dict(b.env)) == ({"A": 1, "B": 1}, {"A": 1, "B": 2})


@pytest.mark.parametrize(
    ("defaults", "words"),
    [
        ("{retires: 2}", "plan.yaml:2: unknown key 'defaults.retires'; did you mean 'retries'?"),
        ("{shell: x}", "plan.yaml:2: unknown key 'defaults.shell'; the keys are env, cwd, retries"),
        ("{retries: many, timeout: 5x}", "plan.yaml:2: defaults.retries must be a whole number, not 'many'"),
        ("{env: {A: {from: x}}}", "plan.yaml:2: task 'a': env.A refers to 'x', which is not in its after"),
    ],
)
def test_mistakes_in_defaults_are_reported_once_with_their_line(defaults: str, words: str) -> None:
    _, mistakes = examine(f"asterism: 1\ndefaults: {defaults}\ntasks:\n  a: {{shell: x}}\n", "plan")
    lines = [mistake.format("plan.yaml") for mistake in mistakes]
    assert any(words in line for line in lines), lines
    assert len(lines) == len(set(lines))


# -- include -----------------------------------------------------------------------------------------------------------


def test_tasks_parameters_and_devices_of_included_files_belong_to_the_plan(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        plan="id: main\ninclude: [parts/fetch.yaml]\nparams: {day: main}\ndefaults: {retries: 1}\n"
        "tasks:\n  build: {shell: x, after: fetch}\n",
        parts__fetch="id: other\npolicy: global\ninclude: more.yaml\nparams: {day: part, n: 1}\n"
        "devices: {printer: {slots: 1}}\ndefaults: {retries: 5}\n"
        "tasks:\n  fetch: {argv: ['{params.day}'], after: more}\n",
        parts__more="tasks:\n  more: {shell: x}\n",
    )
    plan_file = load(path)
    plan = plan_file.constellation
    assert (plan.id, plan_file.policy, plan_file.params) == ("main", None, {"day": "main", "n": 1})
    assert [task.id for task in plan] == ["more", "fetch", "build"]
    assert plan["fetch"].task.argv == ("main",)
    assert [plan[name].task.retries for name in ("build", "fetch", "more")] == [1, 5, 0]
    assert [device.id for device in plan_file.devices] == ["printer"]


def test_a_file_may_have_no_tasks_of_its_own_and_a_file_counts_once(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        plan="include: [a.yaml, b.yaml]\n",
        a="include: b.yaml\ntasks: {a: {shell: x}}\n",
        b="tasks: {b: {shell: x}}\n",
    )
    assert {task.id for task in load(path).constellation} == {"a", "b"}


def test_mistakes_name_the_file_that_has_them(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        plan="include: parts/p.yaml\ntasks:\n  a: {shell: x, after: nobody}\n",
        parts__p="devices: 5\ntasks:\n  b: {shel: x}\n"
        "  c: {shell: x, after: d}\n  d: {shell: x, after: c}\n  a: {shell: x}\n",
    )
    part = tmp_path / "parts" / "p.yaml"
    assert told(path) == [
        f"{path}:4: task 'a': comes after 'nobody', but there is no such task",
        f"{part}:2: devices must be a mapping, not 5",
        f"{part}:4: task 'b': unknown key 'shel'; did you mean 'shell'?",
        f"{part}:6: task 'd': comes after 'c', which closes a cycle: d -> c -> d",
        f"{part}:7: task 'a' is in line 4 of the plan file too; give one of them another id",
    ]


def test_a_file_that_is_broken_missing_or_no_plan(tmp_path: Path) -> None:
    path = write(tmp_path, plan="include: [none.yaml, broken.yaml, list.yaml, folder.yaml]\ntasks: {a: {shell: x}}\n")
    (tmp_path / "broken.yaml").write_text("asterism: 1\na: [\n")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "list.yaml").write_text("[1]\n")
    lines = told(path)
    assert (
        f"{path}:2: includes 'none.yaml', but {tmp_path / 'none.yaml'} cannot be read: No such file or directory"
        in lines
    )
    assert f"{path}:2: includes 'list.yaml', which is not a plan file: it has no line 'asterism: 1'" in lines
    assert f"{path}:2: includes 'folder.yaml', but {tmp_path / 'folder.yaml'} cannot be read: Is a directory" in lines
    assert any(line.startswith(f"{tmp_path / 'broken.yaml'}:2: this is not YAML") for line in lines)


# -- what a stranger's plan includes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "TOKEN=s3cr3t\n",
        "TOKEN: s3cr3t\n",
        "token: [s3cr3t\n",
        "- s3cr3t\n",
        "s3cr3t: {s3cr3t: &s3cr3t *s3cr3t\n",
        "'s3cr3t\n",
        "\ts3cr3t: %s3cr3t\n",
    ],
)
def test_a_file_that_is_not_a_plan_is_not_quoted(tmp_path: Path, content: str) -> None:
    path = write(tmp_path, plan="include: secret.yaml\ntasks: {a: {shell: x}}\n")
    (tmp_path / "secret.yaml").write_text(content)
    assert told(path) == [f"{path}:2: includes 'secret.yaml', which is not a plan file: it has no line 'asterism: 1'"]


@pytest.mark.parametrize("name", [".env", "/etc/passwd", "/dev/zero", "id_rsa", "link.yaml"])
def test_only_names_of_plan_files_are_included(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, plan=f"include: {name}\ntasks: {{a: {{shell: x}}}}\n")
    (tmp_path / ".env").write_text("TOKEN=s3cr3t")
    (tmp_path / "link.yaml").symlink_to("/dev/zero")
    assert told(path) == [f"{path}:2: includes {name!r}, but the name of a plan file ends in .yaml or .yml or .json"]


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, plan="include: pipe.yaml\ntasks: {a: {shell: x}}\n")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert told(path) == [
        f"{path}:2: includes 'pipe.yaml', but {tmp_path / 'pipe.yaml'} cannot be read: not a regular file"
    ]


def test_an_included_file_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(include, "MAX_BYTES", 1000)
    path = write(tmp_path, plan="include: large.yaml\ntasks: {a: {shell: x}}\n", large="#" * 1000)
    [line] = told(path)
    assert "the file is larger than 1,000 bytes" in line


def test_a_cycle_of_files_is_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path, plan="include: a.yaml\ntasks: {p: {shell: x}}\n", a="include: b.yaml\n", b="include: a.yaml\n"
    )
    a, b = tmp_path / "a.yaml", tmp_path / "b.yaml"
    assert told(path) == [f"{b}:2: includes 'a.yaml', which closes a cycle: {path} -> {a} -> {b} -> {a}"]
    write(tmp_path, plan="include: plan.yaml\ntasks: {p: {shell: x}}\n")
    assert told(path) == [f"{path}:2: includes 'plan.yaml', which closes a cycle: {path} -> {path}"]


# -- one target --------------------------------------------------------------------------------------------------------


def test_one_target_and_what_it_needs(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        plan="tasks:\n  a: {shell: x}\n  b: {shell: x, after: a}\n  c: {shell: x, after: {b: failure}}\n"
        "  d: {shell: x, after: a}\n  e: {shell: x}\n",
    )
    assert [task.id for task in load(path, only=["c"]).constellation] == ["a", "b", "c"]
    assert [task.id for task in load(path, only=["d", "e"]).constellation] == ["a", "d", "e"]
    with pytest.raises(BadPlan, match=r"plan\.yaml:2: there is no task 'f' to run"):
        load(path, only=["f"])
