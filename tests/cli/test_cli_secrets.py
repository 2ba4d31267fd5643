"""A secret reaches the task that needs it, and no output or file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asterism import Constellation, EditBatch, Task, edits
from asterism.orchestrator.plan_mask import PlanMask
from tests.cli.cli_scenes import asterism, write

SECRET = 'hunter2"/&=ü'
"""With signs that JSON, HTML and addresses write in other ways."""

PLAN = """\
tasks:
  uses:
    shell: 'test "$TOKEN" = "$EXPECTED" && echo "the token is $TOKEN"'
    env: {TOKEN: {secret: CI_TOKEN}}
  spills: # does not ask for the secret, but a command sees the whole environment
    shell: echo "$CI_TOKEN"
    after: uses
  fails:
    shell: echo "cannot log in with $CI_TOKEN" >&2; exit 3
    after: uses
    retries: 1
    backoff: 0
  takes:
    argv: [echo, "{token}"]
    inputs: {token: {secret: CI_TOKEN}}
  calls:
    call: echoes_beside:echo
    inputs: {token: {secret: CI_TOKEN}}
  breaks:
    call: echoes_beside:complain
    inputs: {token: {secret: CI_TOKEN}}
"""

MODULE = """
def echo(token): return {token: [token, {"deep": "x" + token}]}
def complain(token): raise RuntimeError("bad token " + token)
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CI_TOKEN", SECRET)
    monkeypatch.setenv("EXPECTED", SECRET)
    (tmp_path / "echoes_beside.py").write_text(MODULE)
    return write(tmp_path, PLAN)


def assert_hidden(text: str) -> None:
    assert "hunter2" not in text
    assert "[secret]" in text


def test_no_secret_is_in_the_lines_the_summary_or_the_report(plan: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = asterism("run", plan, "--report", str(page))
    assert result.exit_code == 2
    assert_hidden(result.output)
    assert_hidden(page.read_text("utf-8"))


def test_no_secret_is_in_the_json(plan: str) -> None:
    result = asterism("run", "--json", plan)
    assert_hidden(result.stdout)
    assert_hidden(result.stderr)
    tasks = json.loads(result.stdout)["tasks"]
    assert tasks["uses"]["value"] == "the token is [secret]"
    assert tasks["spills"]["value"] == "[secret]"
    assert tasks["takes"]["value"] == "[secret]"
    assert tasks["calls"]["value"] == {"[secret]": ["[secret]", {"deep": "x[secret]"}]}
    assert "cannot log in with [secret]" in tasks["fails"]["reason"]
    assert tasks["breaks"]["reason"] == "RuntimeError: bad token [secret]"


@pytest.mark.parametrize("words", [["check"], ["show"], ["show", "--mermaid"], ["show", "--json"]])
def test_no_secret_is_in_a_drawing_or_a_check(plan: str, words: list[str]) -> None:
    command, *options = words
    result = asterism(command, plan, *options)
    assert result.exit_code == 0
    assert "hunter2" not in result.output


def test_secrets_are_found_however_deep_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("A", "B", "C", "D"):
        monkeypatch.setenv(f"VALUE_{name}", f"value-{name}")
    plan = Constellation("deep")
    plan.add(Task("a", shell="x", env={"X": {"secret": "VALUE_A"}}))
    secrets = PlanMask(plan)
    said = "value-A value-B value-C value-D"
    assert secrets.shown(said) == "[secret] value-B value-C value-D"
    plan.add(Task("b", http={"url": "http://x", "json": [{"deep": {"secret": "VALUE_B"}}]}))
    plan.apply(EditBatch([edits.AddTask(Task("c", shell="x", inputs={"x": {"secret": "VALUE_C"}}))]), 0.0)
    assert secrets.shown(said) == "[secret] [secret] [secret] value-D"
    plan.apply(EditBatch([edits.RemoveTask("a")]), 0.0)
    assert secrets.shown({"x": [said]}) == {"x": ["[secret] [secret] [secret] value-D"]}  # those of 'a' stay secrets


def test_output_is_masked_and_results_between_tasks_are_not(plan: str, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    path = write(
        tmp_path,
        f"""\
tasks:
  first: {{shell: 'echo "token $CI_TOKEN"', env: {{TOKEN: {{secret: CI_TOKEN}}}}}}
  second: {{shell: 'printf %s "$said" > {seen}', inputs: {{said: {{from: first}}}}, after: first}}
  third: {{argv: [echo, "{{said}}"], inputs: {{said: {{from: first}}}}, after: first}}
""",
    )
    page = tmp_path / "report.html"
    result = asterism("run", "--json", path, "--report", str(page))
    assert result.exit_code == 0
    assert seen.read_text() == f"token {SECRET}"
    tasks = json.loads(result.stdout)["tasks"]
    assert [tasks[name]["value"] for name in ("first", "third")] == ["token [secret]"] * 2
    assert "hunter2" not in result.output + page.read_text("utf-8")


def test_a_short_secret_is_warned_of_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIN", "1")
    monkeypatch.setenv("WORD", "hunter2")
    path = write(
        tmp_path,
        """\
tasks:
  a: {shell: 'echo "v1.1 hunter2 hunter22"', env: {PIN: {secret: PIN}, WORD: {secret: WORD}}}
""",
    )
    for command in ("check", "run"):
        said = asterism(command, path).output
        assert "the secret 'PIN' has only 1 characters and is not masked in text" in said
        assert "the secret 'WORD' has only 7 characters and is masked only where it is a whole word" in said
    value = json.loads(asterism("run", "--json", path).stdout)["tasks"]["a"]["value"]
    assert value == "v1.1 [secret] hunter22"


def test_a_line_that_takes_an_input_for_a_variable_of_the_system_is_a_mistake(tmp_path: Path) -> None:
    path = write(tmp_path, "tasks:\n  a: {shell: 'echo $PATH', inputs: {PATH: x}}\n")
    result = asterism("check", path)
    assert result.exit_code == 64
    assert "an input cannot be the variable $PATH" in result.output
    assert "write $ASTERISM_INPUT_PATH" in result.output
