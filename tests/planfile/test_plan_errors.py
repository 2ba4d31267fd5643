"""Every mistake in a plan file is reported with its line and with advice."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from asterism.planfile import BadPlan, Mistake, check, examine, load


def mistakes(text: str, *, imports: bool = False) -> list[Mistake]:
    plan_file, told = examine(dedent(text), "plan", imports=imports)
    assert (plan_file is None) == any(not mistake.warning for mistake in told)
    return told


def in_task(body: str, *, devices: str = "", imports: bool = False) -> list[Mistake]:
    """The mistakes of a task `it` whose body begins in line 5 and that may depend on `other`."""
    text = f"asterism: 1\n{devices or '# no devices'}\ntasks:\n  it:\n"
    text += "".join(f"    {line}\n" for line in dedent(body).strip().splitlines())
    return mistakes(text + "  other: {shell: 'true'}\n", imports=imports)


@pytest.mark.parametrize(
    ("body", "line", "text"),
    [
        ("shel: make", 5, "unknown key 'shel'; did you mean 'shell'?"),
        ("shell: make\nqqq: 1", 6, "unknown key 'qqq'; the keys are argv, shell, plugin, cwd"),
        ("shell: make\nshell: test", 6, "the key 'shell' is here twice; the first is in line 5"),
        ("argv: [make]\nshell: make", 6, "has argv and shell; a task has one action"),
        ("retries: 1", 4, "has no action; give it one of call, argv, shell, http"),
        ("shell:", 4, "has no action"),
        ("shell: ''", 5, "shell is empty"),
        ("argv: make", 5, "argv must be a list, such as [one, two], not 'make'"),
        ("argv: []", 5, "argv is empty"),
        ("argv:\n  - sleep\n  - 5", 7, 'argv[1] must be text; write it in quotes: "5"'),
        ("call: nothing", 5, "call must be package.module:function, not 'nothing'"),
        ("shell: x\nretries: many", 6, "retries must be a whole number, not 'many'"),
        ("shell: x\nretries: -1", 6, "retries must be 0 or more, not -1"),
        ("shell: x\nretries: true", 6, "retries must be a whole number, not true"),
        ("shell: x\ntimeout: 5x", 6, "timeout: '5x' is not a valid duration (examples: 30s, 5m, 2h)"),
        ("shell: x\ntimeout: '30'", 6, "timeout: '30' is not a valid duration (examples: 30s, 5m, 2h)"),
        ("shell: x\nbackoff: !!str 30", 6, "backoff: '30' is not a valid duration"),
        ("shell: x\ntimeout: [1]", 6, "timeout: a list is not a valid duration"),
        ("shell: x\ntimeout: 0", 6, "timeout must be above 0"),
        ("shell: x\nbackoff: -1", 6, "backoff must be 0 or more"),
        ("shell: x\npriority: urgent", 6, "priority must be 'low', 'normal', 'high' or 'critical', not 'urgent'"),
        ("shell: x\nrevocable: maybe", 6, "revocable must be true or false, not 'maybe'"),
        ("shell: x\ndevice: 5", 6, "device must be the id of a device, or {id: …, needs: […]}, not 5"),
        ("shell: x\ndevice: {need: [gpu]}", 6, "unknown key 'device.need'; did you mean 'needs'?"),
        ("shell: x\ndevice: {needs: gpu}", 6, "device.needs must be a list"),
        ("shell: x\ninputs: [1]", 6, "inputs must be a mapping, not a list"),
        ("shell: x\ninputs: {'': 1}", 6, "a key of inputs is empty"),
        ("shell: x\nenv: {A: [1]}", 6, "env.A must be text, a number, true or false, {secret: NAME}"),
        ("shell: x\nenv: {A: {secret: PATH, mre: 1}}", 6, "unknown key 'env.A.mre'; the keys are secret, from, select"),
        ("shell: x\nafter: 5", 6, "after must be an id, a list of ids, or a mapping"),
        ("shell: x\nafter:\n  - other\n  - 5", 8, 'after[1] must be text; write it in quotes: "5"'),
        (
            "shell: x\nafter:\n  other: sucess",
            7,
            "after.other must be 'success', 'failure', 'completion' or 'always', not 'sucess'",
        ),
        (
            "shell: x\nafter:\n  other: [1]",
            7,
            "after.other must be success, failure, completion, always or {on: …, when: …}",
        ),
        ("shell: x\nafter: {other: {if: x}}", 6, "unknown key 'after.other.if'; the keys are on, when"),
        ("shell: x\nafter: othr", 6, "comes after 'othr', but there is no such task; did you mean 'other'?"),
        ("shell: x\nafter:\n  - other\n  - qqq", 8, "comes after 'qqq', but there is no such task"),
        ("shell: x\nafter: it", 6, "comes after itself"),
        ("shell: x\nafter: [other, other]", 6, "names 'other' twice in after"),
        ("shell: x\nafter:\n  other:\n    when: 'result =='", 8, "the condition 'result ==' is not valid"),
        ("shell: x\ninputs: {a: {from: other}}", 6, "inputs.a refers to 'other', which is not in its after"),
        ("shell: x\nafter: other\ninputs: {a: {from: [x]}}", 7, "inputs.a refers to a list, which is not in its after"),
        ("shell: x\nenv: {A: {from: other}}", 6, "env.A refers to 'other', which is not in its after"),
        (
            "shell: x\nafter: other\ninputs:\n  a:\n    from: other\n    select: 'result.'",
            10,
            "the expression 'result.' is not valid",
        ),
        ("argv:\n  - echo\n  - 'x {name}'", 7, "'x {name}' names {name}, but there is no such input"),
        ("http: {url: 'http://x/{name}'}", 5, "names {name}, but there is no such input"),
        ("http: GET", 5, "http must be a mapping, not 'GET'"),
        ("http: {method: GET}", 5, "the key 'http.url' is missing"),
        ("http:\n  url: http://x\n  method: get", 7, "http.method must be a word in capitals, such as POST, not 'get'"),
        ("http: {url: http://x, expect: [99]}", 5, "http.expect[0] must be 100 or more, not 99"),
        ("http:\n  url: http://x\n  json: 1\n  body: x", 8, "http has json and body"),
        ("http:\n  url: http://x\n  json:\n    - {from: other}", 8, "http.json[0] refers to 'other'"),
        ("http:\n  url: http://x\n  json:\n    a: {secret: 5}", 8, "http.json.a: the name of a secret must be text"),
    ],
)
def test_a_mistake_in_a_task_is_reported_with_its_line(body: str, line: int, text: str) -> None:
    [only] = in_task(body)
    assert (only.line, only.warning) == (line, False)
    assert text in only.text
    assert "'it'" in only.text or "twice" in only.text


def test_a_tag_for_a_number_is_a_mistake() -> None:
    assert in_task("shell: x\ndescription: !!int 5") == [
        Mistake(6, "the tag 'tag:yaml.org,2002:int' has no meaning here")
    ]


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("", 1, "the file is empty"),
        ("- a\n", 1, "a plan must be a mapping"),
        ("asterism: 1\n", 1, "the key 'tasks' is missing"),
        ("asterism: 1\ntasks: {}\n", 2, "the plan has no tasks"),
        ("asterism: 1\ntasks:\n", 2, "tasks must be a mapping of ids to tasks"),
        ("asterism: 1\ntasks: [a]\n", 2, "tasks must be a mapping of ids to tasks"),
        ("tasks: {a: {shell: x}}\n", 1, "the key 'asterism' is missing; a plan begins with 'asterism: 1'"),
        ("asterism: 2\ntasks: {a: {shell: x}}\n", 1, "asterism must be 1, not 2"),
        ("asterism: 1\nid: 5\ntasks: {a: {shell: x}}\n", 2, 'id must be text; write it in quotes: "5"'),
        ("asterism: 1\npolice: x\ntasks: {a: {shell: x}}\n", 2, "unknown key 'police'; did you mean 'policy'?"),
        ("asterism: 1\npolicy: lax\ntasks: {a: {shell: x}}\n", 2, "policy must be 'global', 'scoped' or 'speculative'"),
        ("asterism: 1\ndevices: {}\ntasks: {a: {shell: x}}\n", 2, "devices is empty"),
        (
            "asterism: 1\ndevices:\n  d: {slots: 0}\ntasks: {a: {shell: x}}\n",
            3,
            "devices.d.slots must be 1 or more, not 0",
        ),
        ("asterism: 1\ndevices:\n  d: {slot: 1}\ntasks: {a: {shell: x}}\n", 3, "unknown key 'devices.d.slot'"),
        ("asterism: 1\ntasks:\n  a: 5\n", 3, "task 'a': must be a mapping, not 5"),
        ("asterism: 1\ntasks:\n  a:\n", 3, "task 'a': must be a mapping, not nothing"),
        ("asterism: 1\ntasks:\n  '': {shell: x}\n", 3, "its name is empty"),
        ('asterism: 1\ntasks:\n  "a\\tb": {shell: x}\n', 3, "control character"),
    ],
)
def test_a_mistake_in_the_file_is_reported_with_its_line(text: str, line: int, told: str) -> None:
    [only] = mistakes(text)
    assert only.line == line
    assert told in only.text


def test_a_tab_is_called_by_its_name() -> None:
    [only] = mistakes("asterism: 1\ntasks:\n\ta: {shell: x}\n")
    assert only.line == 3
    assert only.text.endswith("; the line is indented with a tab, and YAML requires spaces")


def test_a_cycle_is_reported_with_its_path_where_it_closes() -> None:
    told = mistakes(
        """\
        asterism: 1
        tasks:
          a: {shell: x, after: c}
          b: {shell: x, after: [a]}
          c: {shell: x, after: {b: completion}}
          d: {shell: x, after: c}
          e:
            shell: x
            after:
              - d
              - f
          f: {shell: x, after: e}
        """
    )
    assert [(mistake.line, mistake.text) for mistake in told] == [
        (4, "task 'b': comes after 'a', which closes a cycle: b -> c -> a -> b"),
        (12, "task 'f': comes after 'e', which closes a cycle: f -> e -> f"),
    ]


@pytest.mark.long
def test_a_long_cycle_is_cut_in_the_middle() -> None:
    text = "asterism: 1\ntasks:\n" + "".join(f"  t{n}: {{shell: x, after: t{(n + 1) % 5000}}}\n" for n in range(5000))
    [only] = mistakes(text)
    assert only.line == 5002
    assert only.text.endswith(
        "t4999 -> t4998 -> t4997 -> t4996 -> t4995 -> t4994 -> (4988 more) -> t5 -> t4 -> t3 -> t2 -> t1 -> t0 -> t4999"
    )


@pytest.mark.parametrize(
    ("body", "devices", "text"),
    [
        ("shell: x\ndevice: moon", "devices: {earth: {}}", "needs the device 'moon', which is not listed"),
        ("shell: x\ndevice: {needs: [gpu]}", "devices: {a: {can: [x]}}", "with gpu, but no listed device has it"),
        (
            "shell: x\ndevice: {id: a, needs: [y]}",
            "devices: {a: {can: [x]}, b: {can: [y]}}",
            "needs a device with y, but the device 'a' does not have it",
        ),
        ("shell: x\ndevice: {needs: [gpu]}", "", "needs a device with gpu, but no listed device has it"),
        ("call: nowhere:f", "", "call is 'nowhere:f', but no module 'nowhere' can be found"),
        ("shell: x\nenv: {A: {secret: NO_SUCH_SECRET}}", "", "needs 'NO_SUCH_SECRET', which is not in the environment"),
        ("shell: x\nafter: other\ninputs: {a: {from: other, selct: x}}", "", "inputs.a is a constant, not a reference"),
    ],
)
def test_what_may_be_right_elsewhere_is_a_warning(body: str, devices: str, text: str) -> None:
    [only] = in_task(body, devices=devices)
    assert only.warning
    assert text in only.text


def test_a_device_of_the_fleet_needs_no_line_in_the_plan_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("asterism: 1\ntasks:\n  a: {shell: x, device: moon}\n")
    assert len(load(str(file)).warnings) == 1
    assert load(str(file), fleet=True).warnings == ()


def test_devices_that_are_wrong_themselves_are_not_held_against_tasks() -> None:
    [only] = in_task("shell: x\ndevice: a", devices="devices: {a: {slots: none}}")
    assert "devices.a.slots" in only.text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("call: no_such_module_here:f", "cannot be imported: ModuleNotFoundError"),
        ("call: os:no_such_function", "has no 'no_such_function'"),
        ("call: os:sep", "is not callable"),
        ("call: statistics:mean", "no input or dependency fills the parameter 'data' of 'statistics:mean'"),
    ],
)
def test_imports_are_tried_when_asked_for(body: str, text: str) -> None:
    [only] = in_task(body, imports=True)
    assert text in only.text
    assert not only.warning


def test_a_module_that_exits_when_imported_is_a_mistake_and_no_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaves_at_once.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    [only] = in_task("call: leaves_at_once:f", imports=True)
    assert "SystemExit: 3" in only.text


def test_parameters_are_filled_by_inputs_dependencies_and_defaults() -> None:
    assert in_task("call: statistics:mean\ninputs: {data: [1]}", imports=True) == []
    assert in_task("call: textwrap:indent\nafter: other\ninputs: {text: a, prefix: b}", imports=True) == []
    [only] = in_task("call: statistics:mean\ninputs: {data: [1], more: 2}", imports=True)
    assert only.warning
    assert "the input 'more' is not a parameter of 'statistics:mean'" in only.text


def test_nothing_is_imported_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "must_not_be_imported.py").write_text("raise RuntimeError('it was')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert in_task("call: must_not_be_imported:f") == []
    assert "must_not_be_imported" not in sys.modules


def test_all_mistakes_are_reported_at_once_in_the_order_of_their_lines() -> None:
    told = mistakes(
        """\
        asterism: 1
        polciy: scoped
        devices: {laptop: {slots: x}}
        tasks:
          a:
            argv: [echo, "{x}", 7]
            retires: 1
            timeout: never
            after: nowhere
          b:
            http: {url: "http://x/{y}", headers: {A: [1]}, json: {from: a}, body: z}
            after: {a: {on: whenever, when: "=="}}
            env: {A: {secret: X, more: 1}, B: {from: c}}
          c: {shell: x, after: d}
          d: {shell: x, after: c}
        """
    )
    errors = [mistake for mistake in told if not mistake.warning]
    assert [mistake.line for mistake in errors] == [2, 3, 6, 7, 8, 9, 11, 11, 11, 12, 12, 13, 15]


def test_files_that_cannot_be_read_say_so(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(b"asterism: 1\nid: \xff\n")
    assert check(str(bad)) == (None, [Mistake(2, "the file is not text in UTF-8")])
    with pytest.raises(FileNotFoundError):
        check(str(tmp_path / "none.yaml"))


def test_load_raises_with_all_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("asterism: 1\ntasks:\n  a: {}\n  b: {}\n")
    with pytest.raises(BadPlan) as caught:
        load(str(path))
    assert [mistake.line for mistake in caught.value.mistakes] == [3, 4]
    assert str(caught.value).startswith(f"{path}:3: task 'a': has no action")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("handles: nothing", "task 'it': comes after 'nothing', but there is no such task"),
        ("handles: it", "task 'it': comes after itself"),
        ("{handles: other, after: other}", "task 'it': names 'other' twice in after and handles"),
        ("after: {other: {handled: true}}", "task 'it': after.other: handled needs on: failure"),
        ("join: some", "task 'it': join must be 'all' or 'any'"),
        ("handles: {other: 1}", "task 'it': handles must be the id of a task, or a list of ids"),
    ],
)
def test_handlers_and_joins_that_make_no_sense(body: str, text: str) -> None:
    body = body.removeprefix("{").removesuffix("}") if body.startswith("{") else body
    _, told = examine(f"asterism: 1\ntasks:\n  other: {{shell: x}}\n  it: {{shell: x, {body}}}\n", "plan")
    assert [mistake.text for mistake in told if text in mistake.text], told
    assert told[0].line == 4


def test_a_cycle_through_a_handler_is_reported_at_its_line() -> None:
    _, told = examine("asterism: 1\ntasks:\n  a: {shell: x, after: b}\n  b:\n    shell: x\n    handles: a\n", "plan")
    assert any("closes a cycle" in mistake.text for mistake in told)


@pytest.mark.parametrize(
    ("key", "meant"),
    [("needs: other", "'after' (the tasks before it)"), ("depends_on: [other]", "'after'"), ("run: make", "'shell'")],
)
def test_the_keys_of_other_systems_are_answered_with_those_that_mean_the_same(key: str, meant: str) -> None:
    (mistake,) = in_task(f"shell: x\n{key}")
    assert f"unknown key {key.partition(':')[0]!r}; did you mean {meant}" in str(mistake)
