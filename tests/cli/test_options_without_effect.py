"""Options that would have no effect beside the others are refused with a sentence, before anything is done."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from asterism.cli.main import commands

NO_EDITOR = "needs --editor"

CASES = [
    ("run PLAN --edit-on failure", "--edit-on", NO_EDITOR),
    ("run PLAN --store STORE --edit-on failure", "--edit-on", NO_EDITOR),
    ("run PLAN --store memory: --edit-timeout 5s", "--edit-timeout", NO_EDITOR),
    ("run PLAN --store memory: --lock-policy global", "--lock-policy", NO_EDITOR),
    ("run PLAN --store memory: --scope any", "--scope", NO_EDITOR),
    ("run PLAN --goal x", "--goal", "needs --editor model"),
    ("run PLAN --editor m:f --budget 3calls", "--budget", "needs --editor model"),
    ("run PLAN --store memory: --id nightly", "--id", "needs --store"),
    ("run PLAN --store memory: --local", "--local", "needs --store"),
    ("run PLAN --store memory: --approve all", "--approve", "needs --store"),
    ("plan resume nightly --edit-on failure", "--edit-on", NO_EDITOR),
    ("plan retry nightly --edit-on failure", "--edit-on", NO_EDITOR),
    ("plan standby nightly --edit-on failure", "--edit-on", NO_EDITOR),
    ("resume nightly --edit-on failure", "--edit-on", NO_EDITOR),
    ("plan resume nightly --no-local --can gpu", "--can", "has no effect with --no-local"),
    ('plan edit nightly --add \'{"id": "b", "shell": "true"}\' --dependents remove', "--dependents", "needs"),
    ("plan edit nightly --remove b --dry-run --wait 5s", "--wait", "has no effect with --dry-run"),
    ("plan undo nightly --dry-run --wait 5s", "--wait", "has no effect with --dry-run"),
    ("plan logs nightly --times --json", "--times", "has no effect with --json"),
    ("runs logs 0123456789 --times --json", "--times", "has no effect with --json"),
    ("runs create w --as file", "--as", "belongs to --each"),
    ("runs create w --each - --wait", "--wait", "waits for one run"),
    ("runs create w --each - --prefer-local", "--prefer-local", "has no effect with --each"),
    ("workflow add w --shell true --method POST", "--method", "needs --http"),
    ("workflow add w --shell true --tip x", "--tip", "needs --agent"),
    ("workflow add w --http http://x --env A=B", "--env", "has no effect here"),
    ("workflow add w --call m:f --cwd /tmp", "--cwd", "has no effect here"),
    ("workflow add w --http http://x --body a --body-json {}", "--body", "exclude each other"),
    ("schedule add s --workflow w --every 1h --set a=1", "--set", "needs --plan"),
    ("device join d --no-monitor --every 2s", "--every", "has no effect with --no-monitor"),
    ("device join d --server http://h:1 --no-monitor", "--no-monitor", "has no effect with --server"),
    ("device join d --server http://h:1 --every 2s", "--every", "has no effect with --server"),
    ("device join d --server http://h:1 --store-wait 2s", "--store-wait", "has no effect with --server"),
    ("device join d --code x", "--code", "--server"),
    ("serve --every 5m", "--every", "give --github"),
    ("series claim RFC-1 --issue 1 --renew", "--renew", "needs --lease"),
    ("series rebuild RFC-1 --issue 1 --pattern x", "--pattern", "has no effect here"),
    ("series rebuild RFC-1 --issue 1 --label x", "--label", "has no effect here"),
    ("series rebuild RFC-1 --empty --issue 1", "--empty", "excludes --issue"),
]


@pytest.mark.parametrize(("words", "option", "why"), CASES, ids=[words for words, _, _ in CASES])
def test_an_option_without_effect_is_refused(tmp_path: Path, words: str, option: str, why: str) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("asterism: 1\nid: nightly\ntasks:\n  a:\n    shell: 'true'\n")
    store = f"sqlite:///{tmp_path}/fleet.db"
    asked = [{"PLAN": str(plan), "STORE": store}.get(word, word) for word in shlex.split(words)]
    environment = {"ASTERISM_STORE": store, "XDG_DATA_HOME": str(tmp_path)}
    result = CliRunner().invoke(commands, asked, env=environment)
    assert result.exit_code == 64
    assert option in result.stderr
    assert why in result.stderr
    assert not (tmp_path / "fleet.db").exists()


def test_a_stored_plan_keeps_what_a_later_editor_goes_by(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("asterism: 1\nid: nightly\ntasks:\n  a:\n    shell: 'true'\n")
    words = ["run", str(plan), "--store", f"sqlite:///{tmp_path}/f.db", "--local", "--lock-policy", "global"]
    result = CliRunner().invoke(commands, [*words, "--scope", "any", "--edit-timeout", "5s"])
    assert result.exit_code == 0, result.stderr
