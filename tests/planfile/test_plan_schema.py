"""The published JSON Schema equals the schema of the models and accepts the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from asterism.base.yaml_lines import parse_yaml
from asterism.planfile import examine, json_schema

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs" / "reference" / "plan-file.schema.json"


def judged(data: Any) -> bool:
    return not list(jsonschema.Draft202012Validator(json_schema()).iter_errors(data))


def test_the_stored_schema_is_the_current_one() -> None:
    assert json.loads(STORED.read_text("utf-8")) == json_schema(), "write it anew with `asterism schema`"


def test_the_schema_is_valid_and_says_which_dialect_it_is_in() -> None:
    schema = json_schema()
    assert schema["$schema"] == jsonschema.Draft202012Validator.META_SCHEMA["$schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    with pytest.raises(jsonschema.SchemaError):
        jsonschema.Draft202012Validator.check_schema({**schema, "required": "tasks"})


def test_the_schema_knows_every_key_of_a_plan_file_and_no_other() -> None:
    schema = json_schema()
    keys = {"asterism", "id", "tags", "overlap", "parallel", "devices", "policy", "params"} | {
        "defaults",
        "include",
        "tasks",
    }
    assert set(schema["properties"]) == {*keys, "tasks"}
    assert (schema["required"], schema["additionalProperties"]) == (["asterism"], False)


def test_the_example_fits_the_schema() -> None:
    data, mistakes = parse_yaml((ROOT / "examples" / "plan.yaml").read_text("utf-8"))
    assert mistakes == []
    assert judged(data)


@pytest.mark.parametrize(
    ("task", "good"),
    [
        ("{shell: x}", True),
        ("{argv: [a, b], after: [a], timeout: 5m}", True),
        ("{argv: [a], after: {a: failure}, timeout: 2.5}", True),
        ("{shell: x, after: {a: {on: completion, when: 'result > 1'}}}", True),
        (
            "{shell: x, device: {id: d, needs: [g]}, env: {A: {secret: B}, C: {from: a, select: result}}, after: a}",
            True,
        ),
        ("{http: {url: 'http://x', json: [1], headers: {A: {secret: B}}}}", True),
        ("{shell: x, inputs: {a: {from: a}, b: [1, {c: null}]}, after: a}", True),
        ("{argv: [x, '{item}'], foreach: [1, {a: 2}]}", True),
        ("{shell: echo $item, foreach: {from: a, select: result, max: 5}}", True),
        ("{shell: echo $os, matrix: {os: [a, b]}, skip_if_unchanged: {outputs: [x]}}", True),
        ("{shell: x, foreach: 5}", False),
        ("{shell: x, foreach: {from: a, max: 0}}", False),
        ("{shell: x, matrix: {os: 1}}", False),
        ("{shell: x, outputs: {a: b}, skip_if_unchanged: {}}", True),
        ("{shell: x, outputs: {a: b}, skip_if_unchanged: {shared: film}}", True),
        ("{shell: x, skip_if_unchanged: {outputs: []}}", False),
        ("{shel: x}", False),
        ("{shell: 5}", False),
        ("{argv: []}", False),
        ("{argv: [5]}", False),
        ("{shell: x, timeout: 5x}", False),
        ("{shell: x, timeout: 0}", False),
        ("{shell: x, after: {a: sometimes}}", False),
        ("{shell: x, retries: -1}", False),
        ("{shell: x, priority: urgent}", False),
        ("{http: {}}", False),
        ("{call: nothing}", False),
    ],
)
def test_the_schema_and_the_models_agree(task: str, good: bool) -> None:
    text = f"asterism: 1\ntasks:\n  a: {{shell: x}}\n  it: {task}\n"
    data, _ = parse_yaml(text)
    plan_file, _ = examine(text, "plan")
    assert judged(data) is good
    assert (plan_file is not None) is good


@pytest.mark.parametrize(
    ("head", "good"),
    [
        ("params: {day: {type: integer, default: 1, choices: [1], description: x}, other: [1], more: x}", True),
        ("params: {day: {type: date}}", False),
        ("params: {day: {kind: text}}", False),
        ("defaults: {retries: 2, env: {A: 1}, device: {needs: [a]}, timeout: 5m}", True),
        ("defaults: {shell: x}", False),
        ("defaults: {retries: -1}", False),
        ("include: 5", False),
        ("include: [5]", False),
    ],
)
def test_the_schema_and_the_models_agree_on_the_head(head: str, good: bool) -> None:
    text = f"asterism: 1\n{head}\ntasks:\n  a: {{shell: x}}\n"
    data, _ = parse_yaml(text)
    plan_file, _ = examine(text, "plan")
    assert judged(data) is good
    assert (plan_file is not None) is good
