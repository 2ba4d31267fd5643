"""``foreach`` and ``matrix`` in a plan file: the tasks that they become, and every mistake."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
from click.testing import CliRunner

from asterism import Constellation
from asterism.cli.main import commands
from asterism.execution import foreach_expansion
from asterism.planfile import BadPlan, examine, foreach, load


def plan(tasks: str, params: str = "", **values: Any) -> Constellation:
    text = f"asterism: 1\n{params}tasks:\n{indent(dedent(tasks), '  ')}"
    plan_file, mistakes = examine(text, "plan", params=values)
    assert plan_file is not None, mistakes
    return plan_file.constellation


def complaint(body: str, params: str = "") -> str:
    """The one mistake of a task ``it`` in line 4, after a task ``list``."""
    text = f"asterism: 1\n{params or '# no parameters'}\ntasks:\n  it: {{{body}}}\n  list: {{shell: x}}\n"
    _, mistakes = examine(text, "plan")
    [mistake] = mistakes
    return mistake.format("plan.yaml")


def test_each_element_is_a_task_and_the_group_gathers_them_in_order() -> None:
    built = plan(
        """\
          first: {shell: x}
          load:
            foreach: [eu, us]
            argv: [load, "{item}", "{index}", "{{item}}"]
            inputs: {all: {from: first, select: "result[item]"}, whole: "{item}"}
            env: {REGION: "in {item}"}
            after: {first: {when: "result.ok"}}
            retries: 2
            priority: high
          last: {call: "os.path:join", after: load, inputs: {a: {from: load}}}
        """
    )
    assert [task.id for task in built] == ["first", "load[eu]", "load[us]", "load", "last"]
    element, group = built["load[us]"].task, built["load"].task
    assert element.argv == ("load", "us", "1", "{{item}}")
    assert element.inputs == {"all": {"from": "first", "select": 'result["us"]'}, "whole": "us"}
    assert (element.env, element.retries, element.priority) == ({"REGION": "in us"}, 2, 3)
    assert [(dependency.source, dependency.on, dependency.when) for dependency in built["load[us]"].dependencies] == [
        ("first", "success", "result.ok")
    ]
    assert group.foreach == {"of": ["load[eu]", "load[us]"]}
    assert (group.argv, group.retries, group.priority) == (None, 0, 3)
    assert [(dependency.source, dependency.on) for dependency in built["load"].dependencies] == [
        ("load[eu]", "completion"),
        ("load[us]", "completion"),
    ]


def test_a_matrix_has_all_combinations() -> None:
    built = plan(
        """\
          test:
            matrix: {os: [linux, mac], python: ["3.11", "3.12"]}
            shell: tox -e "$python" "$index"
            cwd: /builds/{matrix.os}
            device: {needs: ["{matrix.os}"]}
        """
    )
    ids = ["test[linux,3.11]", "test[linux,3.12]", "test[mac,3.11]", "test[mac,3.12]"]
    assert [task.id for task in built] == [*ids, "test"]
    task = built["test[mac,3.11]"].task
    assert (task.inputs, task.cwd, task.needs) == ({"python": "3.11", "index": 2}, "/builds/mac", {"mac"})


@pytest.mark.parametrize(
    ("items", "labels"),
    [
        ("[a, b]", ["a", "b"]),
        ("[1, 2.5, true]", ["1", "2.5", "true"]),
        ("[a, a]", ["0", "1"]),
        ("[1, '1']", ["0", "1"]),
        ("[a, {b: 1}]", ["0", "1"]),
        ("[a, '']", ["0", "1"]),
        ("['a,b', 'a]']", ["0", "1"]),
        (f"[a, {'x' * 41}]", ["0", "1"]),
        ("[]", []),
    ],
)
def test_short_and_different_elements_name_their_tasks(items: str, labels: list[str]) -> None:
    built = plan(f"it: {{foreach: {items}, shell: echo $item}}\n")
    assert [task.id for task in built] == [*(f"it[{label}]" for label in labels), "it"]


def test_a_list_may_be_a_parameter_and_elements_use_parameters_too() -> None:
    built = plan(
        "it: {foreach: '{params.files}', argv: [cp, '{item.name}', '{params.to}'], inputs: {n: '{item.n}'}}\n",
        "params: {files: {type: list}, to: /tmp}\n",
        files=[{"name": "{params.to}", "n": 1}],
    )
    element = built["it[0]"].task
    assert element.argv == ("cp", "{{params.to}}", "/tmp")  # what stands in a value is no placeholder
    assert element.inputs == {"n": 1}


def test_a_group_over_a_result_keeps_its_template() -> None:
    built = plan(
        """\
          list: {shell: ls}
          it:
            foreach: {from: list, select: "result[params.key]", max: 5}
            argv: [convert, "{item}", "{params.key}"]
            device: {needs: [gpu]}
        """,
        "params: {key: files}\n",
    )
    assert [task.id for task in built] == ["list", "it"]
    task = built["it"].task
    assert task.foreach is not None
    assert {name: value for name, value in task.foreach.items() if name != "template"} == {
        "from": "list",
        "select": 'result["files"]',
        "max": 5,
        "at": "plan:6",
        "params": {"key": "files"},
    }
    template = foreach_expansion.template_of(task)
    assert template is not None
    assert (template.argv, template.needs) == (("convert", "{item}", "{params.key}"), {"gpu"})
    assert (task.argv, task.needs) == (None, frozenset())
    assert [dependency.source for dependency in built["it"].dependencies] == ["list"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "foreach: 5, shell: x",
            "{from: task, select: …}, {files: …}, {lines: …} or {range: [1, 9]}, not 5",
        ),
        ("foreach: many, shell: x", "foreach needs a list, not 'many'"),
        ("foreach: '{params.n}', shell: x", "foreach needs a list, but {params.n} is 3"),
        ("matrix: {a: '{params.n}'}, shell: x", "matrix.a needs a list, but {params.n} is 3"),
        ("matrix: {a: 1}, shell: x", 'matrix.a must be a list or "{params.NAME}", not 1'),
        ("matrix: {}, shell: x", "matrix is empty"),
        ("foreach: [1], matrix: {a: [1]}, shell: x", "has foreach and matrix; a task has one of them"),
        (
            "foreach: {from: lits}, shell: x",
            "refers to 'lits', but there is no such task; did you mean 'list'?",
        ),
        ("foreach: {from: list, selct: x}, shell: x", "unknown key 'foreach.selct'; did you mean 'select'?"),
        ("foreach: {from: list, select: 'result.'}, shell: x", "the expression 'result.' is not valid"),
        ("foreach: {from: list, max: 10001}, shell: x", "foreach.max must be 10,000 or less, not 10001"),
        (
            "foreach: [1], shell: 'echo {item}'",
            'line takes values as variables: write "$item" instead of {item}',
        ),
        ("matrix: {a: [1]}, argv: [x, '{matrix.b}']", "{matrix.b}: there is no matrix variable 'b'; there is a"),
        ("foreach: [{a: 1}], argv: [x, '{item.b}']", "{item.b} has no value: item has no 'b'; it has a"),
        (
            "foreach: [1], shell: x, after: {list: {when: 'result > item'}}",
            "the condition on 'list' cannot use item: it decides about all elements",
        ),
        (
            "foreach: {from: list}, shell: x, approval: {by: [ann, '{item.owner}']}",
            "by of approval cannot use {item} of a result, which would decide who approves: write the names",
        ),
        ("foreach: {from: it}, shell: x", "comes after 'it', which closes a cycle: it -> it"),
        ("foreach: [{secret: HOME}], shell: echo $item", "which would be a reference; use a part of it"),
    ],
)
def test_mistakes(body: str, words: str) -> None:
    told = complaint(body, "params: {n: 3}")
    assert told.startswith("plan.yaml:4: task 'it': ")
    assert words in told


def test_too_many_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreach_expansion, "MAX_ELEMENTS", 4)
    monkeypatch.setattr(foreach_expansion.list_scopes, "__defaults__", (4,))
    told = complaint("foreach: [1, 2, 3, 4, 5], shell: x")
    assert "the list has 5 elements, and 4 are allowed; let a task work on several elements" in told
    told = complaint("matrix: {a: [1, 2, 3], b: [1, 2]}, shell: x")
    assert "the matrix has 6 combinations, and 4 are allowed; remove some values" in told


def test_braces_stay_without_foreach() -> None:
    assert plan("it: {shell: 'echo {item} {matrix.a}', env: {A: '{index}'}}\n")["it"].task.env == {"A": "{index}"}


def test_a_faulty_list_is_one_mistake_whatever_names_its_elements() -> None:
    _, [mistake] = examine('asterism: 1\ntasks:\n  a: {argv: [echo, "{item}"], foreach: 5}\n', "plan")
    assert mistake.text.startswith("task 'a': foreach must be a list")


# -- files, lines and ranges -------------------------------------------------------------------------------------------


def elements_of(over: str, folder: Path, monkeypatch: pytest.MonkeyPatch, path: str = "plan.yaml") -> list[Any]:
    monkeypatch.chdir(folder)
    text = f"asterism: 1\ntasks:\n  cut: {{argv: [cut, '{{item}}'], foreach: {over}}}\n"
    Path(path).write_text(text)
    return [node.task.argv[1] for node in load(path).constellation.nodes.values() if node.task.argv]


@pytest.mark.parametrize(
    ("over", "items"),
    [
        ("{range: [1, 3]}", ["1", "2", "3"]),
        ("{range: [3, 1]}", []),
        ("{range: [10, 0, -5]}", ["10", "5", "0"]),
        ('{files: "in/*.mp4"}', ["in/a.mp4", "in/b.mp4"]),
        ('{files: "in/**/*.mp4"}', ["in/a.mp4", "in/b.mp4", "in/deep/c.mp4"]),
        ("{lines: names.txt}", ["ann", "bob smith"]),
    ],
)
def test_elements_are_files_lines_or_numbers(
    over: str, items: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "folder.mp4").mkdir()
    for name in ("in/b.mp4", "in/a.mp4", "in/c.txt", "in/deep/c.mp4"):
        (tmp_path / name).touch()
    (tmp_path / "names.txt").write_text("\ufeffann\r\n\n  \nbob smith\n")
    assert elements_of(over, tmp_path, monkeypatch) == items


def test_files_are_beside_the_plan_file_and_named_from_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plans [1]").mkdir()
    (tmp_path / "plans [1]" / "a.txt").write_text("x\n")
    path = "plans [1]/plan.yaml"
    assert elements_of('{files: "*.txt"}', tmp_path, monkeypatch, path) == ["plans [1]/a.txt"]
    assert elements_of("{lines: a.txt}", tmp_path, monkeypatch, path) == ["x"]


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ("{}", "foreach has none of them; it needs one of from, files, lines and range"),
        ("{files: a, range: [1, 2]}", "foreach has files and range; it needs one of"),
        ("{range: [1, 2], select: result.x}", "select belongs to from; remove it"),
        ("{range: [1, 2, 0]}", "the step of a range is 0; give another number"),
        ("{range: [1]}", "a range is its first and its last number, and a step if need be: [1, 100]"),
        ("{from: 5}", "foreach.from must be text"),
        ("{range: [a, 2]}", "foreach.range"),
        ("{range: [1, 1000000000000]}", "the range has 1,000,000,000,000 elements, and 1,000 are allowed; set 'max'"),
        ("{files: nothing*}", "no file matches 'nothing*' in the folder of the plan file; correct it"),
        ("{lines: nothing.txt}", "nothing.txt cannot be read: No such file or directory; correct the name"),
        ("{lines: picture.png}", "picture.png: the file is not text in UTF-8; use another file"),
    ],
)
def test_mistakes_of_files_lines_and_ranges(
    over: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    with pytest.raises(BadPlan) as caught:
        elements_of(over, tmp_path, monkeypatch)
    [mistake] = caught.value.mistakes
    assert words in str(mistake)


@pytest.mark.parametrize(
    "over",
    [
        *('{files: "/**/*"}', '{files: "../*"}', '{files: "in/../../*"}', '{files: ".*"}', '{files: ".git/*"}'),
        *("{lines: /dev/zero}", "{lines: ../secret}", "{lines: .env}", "{lines: ./.env}", "{lines: in/.env}"),
        *("{lines: pipe}", "{lines: link}", '{files: "link*"}', '{files: "folder-link/*"}', '{files: "**/pipe"}'),
        *("{lines: folder-link/secret}", "{lines: large}", "{lines: in}"),
    ],
)
@pytest.mark.parametrize("command", ["check", "show"])
def test_a_plan_of_a_stranger_reads_regular_files_below_it_only(
    over: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("password\n")
    folder = tmp_path / "plan"
    (folder / "in").mkdir(parents=True)
    for name in (".env", "in/.env"):
        (folder / name).write_text("password\n")
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder-link").symlink_to(tmp_path)
    with (folder / "large").open("wb") as file:
        file.truncate(1 << 30)
    monkeypatch.chdir(folder)
    Path("plan.yaml").write_text(f"asterism: 1\ntasks:\n  cut: {{argv: [cut, '{{item}}'], foreach: {over}}}\n")
    result = CliRunner().invoke(commands, [command, "plan.yaml"])
    assert result.exit_code == 64, result.output
    assert "password" not in result.output
    assert "plan.yaml" in result.output


def test_links_among_the_files_of_a_plan_multiply_no_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"link-{name}").symlink_to(tmp_path)
        (tmp_path / f"{name}.txt").touch()
    assert elements_of('{files: "**/*.txt"}', tmp_path, monkeypatch) == ["a.txt", "b.txt", "c.txt"]


def test_the_search_for_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreach, "MOST_ENTRIES", 20)
    for number in range(30):
        (tmp_path / f"{number}.png").touch()
    with pytest.raises(BadPlan, match="more than 20 files"):
        elements_of('{files: "**/*.txt"}', tmp_path, monkeypatch)


@pytest.mark.parametrize("over", ['{files: "/etc/*"}', "{lines: /etc/passwd}"])
def test_a_plan_that_comes_as_a_text_reads_no_file(over: str) -> None:
    text = f"asterism: 1\ntasks:\n  cut: {{argv: [cut, '{{item}}'], foreach: {over}}}\n"
    for options in ({}, {"texts": {}}, {"path": "plan.yaml", "texts": {}}):
        plan_file, [mistake] = examine(text, "plan", **options)
        assert plan_file is None
        assert "because the plan came as a text without its folder" in str(mistake)


LOADS = """\
asterism: 1
tasks:
  fetch: {shell: x}
  load: {foreach: [eu, us, asia], argv: [load, "{item}", "{index}"], after: fetch}
  sizes: {foreach: {range: [5, 8]}, argv: [echo, "{item}"]}
  late: {foreach: {from: fetch}, argv: [echo, "{item}"]}
"""


@pytest.mark.parametrize(
    ("only", "tasks"),
    [
        (["load[us]"], ["fetch", "load[us]", "load"]),
        (["load[2]", "load[eu]", "load[0]"], ["fetch", "load[eu]", "load[asia]", "load"]),
        (["load", "load[us]"], ["fetch", "load[eu]", "load[us]", "load[asia]", "load"]),
        (["sizes[6]", "fetch"], ["fetch", "sizes[6]", "sizes"]),
    ],
)
def test_only_chooses_elements_by_their_name_or_index(only: list[str], tasks: list[str]) -> None:
    plan_file, mistakes = examine(LOADS, "plan", only=only)
    assert plan_file is not None, mistakes
    built = plan_file.constellation
    assert [task.id for task in built] == tasks
    assert built[tasks[-1]].task.foreach == {"of": [name for name in tasks if "[" in name]}
    if "load[us]" in built:
        assert built["load[us]"].task.argv == ("load", "us", "1"), "an element keeps its index"


@pytest.mark.parametrize(
    ("only", "text"),
    [
        ("load[mars]", "there is no element 'load[mars]' to run; there are 3, from 'load[eu]' to 'load[asia]'"),
        ("load[3]", "there is no element 'load[3]' to run"),
        ("fetch[0]", "is a single task, which has no elements"),
        ("late[0]", "the elements of 'late' are known when 'fetch' has ended; choose the whole group"),
        ("nothing[0]", "there is no task 'nothing[0]' to run"),
    ],
)
def test_an_element_that_cannot_be_chosen_is_a_mistake(only: str, text: str) -> None:
    plan_file, [mistake] = examine(LOADS, "plan", only=[only])
    assert plan_file is None
    assert text in mistake.format("plan.yaml")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "argv: [x], inputs: {a: {from: list, failed: skip}}, after: list",
            "failed: skip has no effect after the success of 'list'; write after: {list: completion}",
        ),
        ("argv: [x], inputs: {a: {from: list, failed: null}}, after: list", "failed: null has no effect after"),
        ("argv: [x], inputs: {a: {from: list, failed: drop}}, after: list", "failed is skip, null or fail, not 'drop'"),
        (
            "argv: [x], env: {A: {from: list, failed: skip}}, after: {list: completion}",
            "failed belongs to inputs only; give the variable or the request an input",
        ),
        (
            "argv: [x], inputs: {a: {from: single, failed: skip}}, after: {single: completion}",
            "failed says what becomes of the elements of a group, and 'single' is a single task; remove it",
        ),
    ],
)
def test_what_a_reference_says_of_failed_elements_is_checked(body: str, words: str) -> None:
    text = f"asterism: 1\ntasks:\n  it: {{{body}}}\n  list: {{shell: x, foreach: [1]}}\n  single: {{shell: x}}\n"
    _, [mistake] = examine(text, "plan")
    assert words in mistake.format("plan.yaml")
