"""Parameters of a plan file: types, sources of values, and where a task may use them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from asterism import Constellation
from asterism.planfile import BadPlan, GivenParameters, PlanFile, check, examine, load

DAY = "params:\n  day: {description: which day}\n  count: 3\n  tags: {type: list, default: [x]}\n"


def plan_file(text: str, **params: Any) -> PlanFile:
    loaded, mistakes = examine(f"asterism: 1\n{dedent(text)}", "plan", params=params)
    assert loaded is not None, mistakes
    return loaded


def plan(tasks: str, params: str = DAY, **values: Any) -> Constellation:
    return plan_file(f"{params}tasks:\n{indent(dedent(tasks), '  ')}", **({"day": "monday"} | values)).constellation


def complaints(text: str, params: GivenParameters | None = None) -> list[str]:
    _, mistakes = examine(f"asterism: 1\n{dedent(text)}", "plan", params=params or GivenParameters())
    return [mistake.format("plan.yaml") for mistake in mistakes]


# -- where a task may use them -----------------------------------------------------------------------------------------


def test_a_text_gets_the_value_and_a_whole_placeholder_its_type() -> None:
    task = plan(
        """\
          it:
            call: os.path:join
            inputs: {n: "{params.count}", text: "on {params.day}: {params.tags}", deep: [{a: "{params.tags}"}]}
            env: {LEVEL: "{params.count}", TAGS: "{params.tags}"}
            cwd: /data/{params.day}
            description: "{params.day}, and {{params.day}} as it is"
            device: {needs: ["{params.day}"]}
        """
    )["it"].task
    assert task.inputs == {"n": 3, "text": 'on monday: ["x"]', "deep": [{"a": ["x"]}]}
    assert task.env == {"LEVEL": 3, "TAGS": '["x"]'}
    assert (task.cwd, task.needs) == ("/data/monday", {"monday"})
    assert task.description == "monday, and {params.day} as it is"


def test_a_word_of_a_command_is_never_split_and_stays_a_template_of_inputs() -> None:
    task = plan('  it: {argv: [echo, "{params.day}/{x}", "{{params.day}}"], inputs: {x: 1}}\n', day="{x} y")["it"].task
    assert task.argv == ("echo", "{{x}} y/{x}", "{{params.day}}")


def test_a_shell_line_uses_variables_which_become_inputs() -> None:
    built = plan(
        """\
          a: {shell: 'echo "$day" "${count}"'}
          b: {shell: echo $day, env: {day: own}}
          c: {shell: echo day}
        """
    )
    assert built["a"].task.inputs == {"day": "monday", "count": 3}
    assert built["b"].task.inputs == {}
    assert built["c"].task.inputs == {}


def test_a_url_is_percent_encoded_but_its_beginning_may_be_a_parameter() -> None:
    params = "params: {base: 'https://x.org/a', query: 'a b&c'}\n"
    text = (
        f"{params}tasks:\n  it: {{http: {{url: '{{params.base}}/s?q={{params.query}}', json: ['{{params.query}}']}}}}\n"
    )
    http = plan_file(text).constellation["it"].task.http
    assert http is not None
    assert http["url"] == "https://x.org/a/s?q=a%20b%26c"
    assert http["json"] == ["a b&c"]


def test_conditions_and_selections_have_the_value_as_a_constant() -> None:
    built = plan(
        """\
          a: {shell: x}
          b: {shell: x, after: {a: {when: "result.day == params.day && result.n > params.count"}}}
          c: {call: "os.path:join", after: a, inputs: {a: {from: a, select: "result[params.day]"}}}
        """,
        day='mon"day',
        count=-2,
    )
    assert built["b"].dependencies[0].when == r'result.day == "mon\"day" && result.n > (-2)'
    assert built["c"].task.inputs["a"]["select"] == r'result["mon\"day"]'


def test_a_plan_without_parameters_keeps_its_braces() -> None:
    loaded = plan_file("tasks:\n  it: {shell: 'echo {params.day}', env: {A: '{params.x}'}}\n")
    assert loaded.constellation["it"].task.shell == "echo {params.day}"
    assert loaded.constellation["it"].task.env == {"A": "{params.x}"}
    assert loaded.params == {}


def test_a_value_cannot_become_a_reference_to_a_secret() -> None:
    _, mistakes = examine(
        "asterism: 1\nparams: {x: {type: mapping}}\ntasks:\n  it: {shell: echo $x}\n",
        "plan",
        params={"x": {"a": {"secret": "HOME"}}},
    )
    [mistake] = mistakes
    assert "which would be a reference" in mistake.text


# -- types and sources -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        ("{}", "5", "5"),
        ("{type: text}", "a=b", "a=b"),
        ("{type: integer}", "-5", -5),
        ("{type: number}", "2.5", 2.5),
        ("{type: number}", "2", 2),
        ("{type: boolean}", "true", True),
        ("{type: list}", "[a, 1]", ["a", 1]),
        ("{type: mapping}", '{"a": 1}', {"a": 1}),
        ("eu", "us", "us"),
        ("1.5", "2", 2),
        ("false", "true", True),
        ("[a]", "[]", []),
        ("{default: {a: 1}}", "{}", {}),
        ("{type: integer, choices: [1, 2]}", "2", 2),
    ],
)
def test_a_text_is_converted_to_the_type(declared: str, text: str, value: Any) -> None:
    parameters = GivenParameters(texts={"it": text})
    loaded, mistakes = examine(
        f"asterism: 1\nparams: {{it: {declared}}}\ntasks: {{a: {{shell: x}}}}\n", "p", params=parameters
    )
    assert loaded is not None, mistakes
    assert loaded.params == {"it": value}


@pytest.mark.parametrize(
    ("declared", "text", "words"),
    [
        ("{type: integer}", "five", "must be a whole number, not 'five' (given by --set it=five)"),
        ("{type: integer}", "2.5", "must be a whole number, not 2.5"),
        ("{type: integer}", "true", "must be a whole number, not true"),
        ("{type: number}", "", "must be a number, not nothing"),
        ("{type: boolean}", "yes", "must be true or false, not 'yes'"),
        ("{type: list}", "a,b", "must be a list, such as [one, two], not 'a,b'"),
        ("{type: mapping}", "[a]", "must be a mapping, such as {name: value}, not a list"),
        ("{choices: [eu, us]}", "uk", "must be one of 'eu', 'us', not 'uk'"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_the_line_of_the_parameter(
    declared: str, text: str, words: str
) -> None:
    [told] = complaints(f"params:\n  it: {declared}\ntasks: {{a: {{shell: x}}}}\n", GivenParameters(texts={"it": text}))
    assert told.startswith("plan.yaml:3: parameter 'it': ")
    assert words in told


def test_the_order_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "values.yaml").write_text("b: file\nc: file\n")
    for name in "bcd":
        monkeypatch.setenv(f"ASTERISM_PARAM_{name}", "environment")
    path = tmp_path / "plan.yaml"
    path.write_text("asterism: 1\nparams: {a: 1, b: '', c: '', d: '', e: default}\ntasks: {t: {shell: x}}\n")
    parameters = GivenParameters(texts={"a": "2", "b": "set"}, file=str(tmp_path / "values.yaml"))
    values = {"a": 2, "b": "set", "c": "file", "d": "environment", "e": "default"}
    assert load(str(path), params=parameters).params == values


def test_mistakes_in_values_name_their_file_and_line(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("day: monday\ncuont: 5\ncount: many\n")
    path = tmp_path / "plan.yaml"
    path.write_text(f"asterism: 1\n{DAY}tasks: {{t: {{shell: x}}}}\n")
    with pytest.raises(BadPlan) as bad:
        load(str(path), params=GivenParameters(file=str(values)))
    assert str(bad.value).splitlines() == [
        f"{values}:2: there is no parameter 'cuont'; did you mean 'count'?",
        f"{values}:3: parameter 'count': must be a whole number, not 'many'",
    ]
    values.write_text("[1]\n")
    assert (
        "a file of parameters must be a mapping"
        in check(str(path), params=GivenParameters(file=str(values)))[1][-1].text
    )
    missing = GivenParameters(file=str(tmp_path / "none.yaml"))
    told = [mistake.format("plan") for mistake in check(str(path), params=missing)[1]]
    assert f"{tmp_path / 'none.yaml'}:1: the file of parameters cannot be read: No such file or directory" in told


def test_a_missing_value_and_an_unknown_parameter() -> None:
    text = f"{DAY}tasks:\n  a: {{shell: x}}\n"
    assert complaints(text, GivenParameters(texts={"dya": "1"})) == [
        "plan.yaml:2: there is no parameter 'dya'; did you mean 'day'?",
        "plan.yaml:3: parameter 'day': a value is required; give one with --set day=VALUE",
    ]
    assert complaints(text, GivenParameters(required=False)) == []
    device = "params: {where: {}}\ntasks: {a: {argv: [x], device: '{params.where}', cwd: '{params.where}'}}\n"
    assert complaints(device, GivenParameters(required=False)) == []
    assert complaints("tasks: {a: {shell: x}}\n", GivenParameters(values={"x": 1})) == [
        "plan.yaml:1: there is no parameter 'x'; the plan has no parameters"
    ]


@pytest.mark.parametrize(
    ("params", "line", "words"),
    [
        ("  day: {typ: text}", 3, "unknown key 'params.day.typ'; did you mean 'type'?"),
        (
            "  day: {type: date}",
            3,
            "params.day.type must be 'text', 'integer', 'number', 'boolean', 'list' or 'mapping'",
        ),
        ("  day:", 3, "params.day must be {type: …, default: …}, or a default value, not nothing"),
        ("  PATH: x", 3, "parameter 'PATH': the name has a meaning to shells and programs"),
        ("  a-b: x", 3, "parameter 'a-b': the name may contain only letters, digits and _"),
        ("  day: {type: integer, default: x}", 3, "parameter 'day': the default must be a whole number, not 'x'"),
        ("  day: {choices: [a], default: b}", 3, "the default must be one of 'a', not 'b'"),
        ("  day: {type: integer, choices: [a]}", 3, "a choice must be a whole number, not 'a'"),
        ("  day: {choices: []}", 3, "params.day.choices is empty"),
    ],
)
def test_a_declaration_that_is_wrong(params: str, line: int, words: str) -> None:
    told = complaints(f"params:\n{params}\ntasks: {{a: {{shell: x}}}}\n", GivenParameters(required=False))
    assert len(told) == 1
    assert told[0].startswith(f"plan.yaml:{line}: ")
    assert words in told[0]


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("argv: [echo, '{params.dya}']", "{params.dya}: there is no parameter 'dya'; did you mean 'day'?"),
        ("shell: 'echo {params.day}'", 'a shell line takes values as variables: write "$day" instead of {params.day}'),
        ("{argv: [x], env: {A: 'x {params.q}'}}", "there is no parameter 'q'; there is day"),
        ("{argv: [x], inputs: {a: ['{params.q}']}}", "there is no parameter 'q'"),
        ("{http: {url: 'http://x/{params.q}', headers: {A: '{params.z}'}}}", "there is no parameter 'q'"),
        ("{argv: [x], cwd: '{params.q}'}", "there is no parameter 'q'"),
        ("{argv: [x], device: '{params.q}'}", "there is no parameter 'q'"),
        ("{argv: [x], after: {o: {when: 'result == params.q'}}}", "there is no params.q; there is day"),
        ("{argv: [x], after: o, inputs: {a: {from: o, select: 'params.q'}}}", "there is no params.q"),
    ],
)
def test_a_task_that_names_an_unknown_parameter(task: str, words: str) -> None:
    body = task if task.startswith("{") else f"{{{task}}}"
    told = complaints(f"params: {{day: x}}\ntasks:\n  it: {body}\n  o: {{shell: x}}\n")
    assert told[0].startswith("plan.yaml:4: task 'it': ")
    assert words in told[0]


def test_a_faulty_declaration_is_one_mistake_whatever_uses_the_parameter() -> None:
    text = 'params:\n  day: {type: string}\n  n: 1\ntasks:\n  a: {argv: [echo, "{params.day}"]}\n'
    [complaint] = complaints(text, GivenParameters(texts={"day": "monday"}))
    assert complaint.startswith("plan.yaml:3: params.day.type must be 'text', 'integer'")
