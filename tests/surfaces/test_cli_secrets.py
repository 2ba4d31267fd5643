"""A secret of the environment reaches the task that asks for it, and nothing that is shown or written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_scenes import asterism, write

from asterism import Task
from asterism.surfaces.secrets import Secrets

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


@pytest.mark.parametrize("words", [["check"], ["show"], ["show", "--mermaid"], ["show", "--svg", "-"]])
def test_no_secret_is_in_a_drawing_or_a_check(plan: str, words: list[str]) -> None:
    command, *options = words
    result = asterism(command, plan, *options)
    assert result.exit_code == 0
    assert "hunter2" not in result.output


def test_secrets_are_found_however_deep_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("A", "B", "C", "D"):
        monkeypatch.setenv(f"SECRET_{name}", f"value-{name}")
    secrets = Secrets([Task("a", shell="x", env={"X": {"secret": "SECRET_A"}})])
    secrets.learn([Task("b", http={"url": "http://x", "json": [{"deep": {"secret": "SECRET_B"}}]})])
    secrets.learn([Task("c", shell="x", inputs={"x": {"secret": "SECRET_C"}})])
    said = "value-A value-B value-C value-D"
    assert secrets.hide(said) == "[secret] [secret] [secret] value-D"
    assert secrets.hide({"x": [said]}) == {"x": ["[secret] [secret] [secret] value-D"]}
    assert Secrets().hide(said) == said
