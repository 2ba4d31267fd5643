"""`asterism workflow`: workflows from options and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from asterism.core.run.work import DEFAULTS
from asterism.planfile.workflow_file import BadWorkflowFile, parse_workflows
from tests.cli.command_scenes import Scene


def test_a_workflow_is_added_listed_and_shown(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    words = (
        "workflow",
        "add",
        "transcode",
        "--argv",
        "ffmpeg -i {file} 'a b.webm'",
        "--needs",
        "gpu",
        "--heartbeat-timeout",
        "3m",
    )
    assert scene.ok(*words) == "transcode@1 added\n"
    assert scene.ok(*words) == "transcode@1 exists already\n"
    assert scene.ok(*words, "--heartbeat", "10") == "transcode@2 added\n"
    titles, row = scene.ok("workflow", "list").splitlines()
    assert titles.split() == ["WORKFLOW", "VERSION", "EXECUTES", "NEEDS", "BEAT", "TIMEOUT"]
    assert row.split("  ")[0] == "transcode"
    assert "ffmpeg -i {file} 'a b.webm'" in row
    told = scene.json("workflow", "show", "transcode")
    assert told["argv"] == ["ffmpeg", "-i", "{file}", "a b.webm"]
    assert (told["version"], told["needs"], told["heartbeat"], told["heartbeat_timeout"]) == (2, ["gpu"], 10.0, 180.0)
    assert set(told) == {"name", *DEFAULTS}
    assert scene.json("workflow", "show", "transcode@1")["heartbeat"] == 30.0
    shown = scene.ok("workflow", "show", "transcode@1")
    assert "transcode@1  ffmpeg" in shown
    assert "heartbeat           30 s" in shown


def test_every_option_has_its_field(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    option_values = {
        "--requires": "'gpu' in can",
        "--prefers": "load < 0.5",
        "--wants": "gpu, tape",
        "--device": "laptop",
        "--strategy": "round_robin",
        "--priority": "-3",
        "--heartbeat": "300ms",
        "--heartbeat-timeout": "1",
        "--assignment-timeout": "2",
        "--claim-timeout": "3",
        "--no-device-timeout": "4m",
        "--timeout": "5h",
        "--retries": "2",
        "--losses": "0",
        "--rounds": "1",
        "--keep": "original",
        "--backoff": "0",
        "--backoff-most": "9",
        "--cwd": "/srv",
        "--description": "tidy up",
    }
    words = [word for pair in option_values.items() for word in pair]
    told = scene.json(
        "workflow", "add", "tidy", "--shell", "rm -rf x", "--orchestration", "--preemptible", "--env", "A=b=c", *words
    )
    assert told.pop("added") is True
    assert {name: value for name, value in told.items() if value != DEFAULTS.get(name) and value not in ([], {})} == {
        "name": "tidy",
        "version": 1,
        "shell": "rm -rf x",
        "env": {"A": "b=c"},
        "cwd": "/srv",
        "description": "tidy up",
        "device": "laptop",
        "requires": "'gpu' in can",
        "prefers": "load < 0.5",
        "wants": ["gpu", "tape"],
        "strategy": "round_robin",
        "orchestration": True,
        "preemptible": True,
        "priority": -3,
        "heartbeat": pytest.approx(0.3),
        "heartbeat_timeout": 1.0,
        "assignment_timeout": 2.0,
        "claim_timeout": 3.0,
        "no_device_timeout": 240.0,
        "timeout": 18_000.0,
        "retries": 2,
        "losses": 0,
        "rounds": 1,
        "keep": "original",
        "backoff": 0.0,
        "backoff_most": 9.0,
    }


def test_a_request_is_written_with_its_parts(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    told = scene.json(
        *("workflow", "add", "ping", "--http", "http://localhost/{name}", "--method", "POST", "--header", "A=b"),
        *("--param", "n=1", "--body-json", '{"n": {"from": "name"}}', "--expect", "200", "--expect", "204"),
    )
    assert told["http"] == {
        "url": "http://localhost/{name}",
        "method": "POST",
        "headers": {"A": "b"},
        "params": {"n": "1"},
        "json": {"n": {"from": "name"}},
        "expect": [200, 204],
    }
    assert "POST http://localhost/{name}" in scene.ok("workflow", "list")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["x"], "it executes nothing: give one of call, argv, shell, http"),
        (["x", "--argv", "a", "--shell", "b"], "only one of call, argv, shell, http, agent, plugin may be set"),
        (["x", "--argv", "say 'hello"], "'--argv': the command line cannot be split into words: No closing quotation"),
        (["x", "--argv", ""], "argv is empty"),
        (["x", "--shell", "a", "--requires", "load <"], "Invalid value for --requires: the expression is not valid"),
        (["x", "--shell", "a", "--prefers", "1 +* 2"], "Invalid value for --prefers: the expression is not valid"),
        (["x", "--shell", "a", "--heartbeat", "60"], "must be at least twice heartbeat"),
        (["x", "--shell", "a", "--timeout", "soon"], "'soon' is not a valid duration"),
        (["x", "--shell", "a", "--header", "A=b"], "--header needs --http."),
        (["x", "--shell", "a", "--env", "A"], "'A' is not NAME=VALUE."),
        (["x", "--call", "nothing"], "call must be a function or 'package.module:function'"),
        ([], "Give the NAME of the workflow, or --file."),
        (["x", "--file", "a.yaml"], "--file excludes NAME and all other options"),
    ],
)
def test_invalid_terms_are_refused_before_any_write(tmp_path: Path, words: list[str], told: str) -> None:
    scene = Scene(tmp_path)
    result = scene.run("workflow", "add", *words)
    assert result.exit_code == 64
    assert told in result.stderr
    assert not scene.file.exists()


def test_several_workflows_come_from_a_file(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    (tmp_path / "flows.yaml").write_text(
        "workflows:\n"
        "  transcode: {argv: [ffmpeg, -i, '{file}'], needs: [gpu], heartbeat: 10s,\n"
        "    heartbeat_timeout: 90s, timeout: 1m}\n"
        "  tidy:\n    shell: rm -rf x\n    retries: 2\n"
    )
    assert scene.ok("workflow", "add", "--file", str(tmp_path / "flows.yaml")) == "transcode@1 added\ntidy@1 added\n"
    assert [flow["name"] for flow in scene.json("workflow", "list")] == ["tidy", "transcode"]
    assert scene.json("workflow", "show", "transcode")["timeout"] == 60.0


def test_one_workflow_is_a_file_with_a_name() -> None:
    [flow] = parse_workflows("name: a@b\nshell: echo 1\n")
    assert (flow.name, flow.shell) == ("a@b", "echo 1")


def test_durations_in_a_file_are_seconds_or_text_with_a_unit() -> None:
    [flow] = parse_workflows("name: a\nshell: x\nheartbeat: 30\nheartbeat_timeout: 90s\ntimeout: 1d\nbackoff: 0.5\n")
    assert (flow.heartbeat, flow.heartbeat_timeout, flow.timeout, flow.backoff) == (30, 90, 86_400, 0.5)


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("", [(1, "a workflow must be a mapping with a name")]),
        ("[1]", [(1, "a workflow must be a mapping with a name")]),
        ("shell: x", [(1, "the key 'name' is missing; to define several workflows")]),
        ("workflows: []", [(1, "workflows must be a mapping of names to workflows, and not empty")]),
        ("workflows:\n  a: 5\nother: 1", [(2, "workflow 'a' must be a mapping"), (3, "unknown key 'other' beside")]),
        ("name: a\nshel: x", [(1, "it executes nothing"), (2, "unknown key 'shel'; did you mean 'shell'?")]),
        ("name: a\nshell: x\nversion: 3", [(3, "unknown key 'version'")]),
        (
            "name: a\nshell: x\nheartbeat: soon",
            [(3, "heartbeat: 'soon' is not a valid duration (examples: 30s, 5m, 2h)")],
        ),
        ("name: a\nshell: x\ntimeout: '30'", [(3, "timeout: '30' is not a valid duration (examples: 30s, 5m, 2h)")]),
        ("name: a\nshell: x\ndescription: !!int 5", [(3, "the tag 'tag:yaml.org,2002:int' has no meaning here")]),
        (
            "name: a\nargv: [5]\nretries: x\ncwd: 7\nwants: 1",
            [(2, "argv[0] must be text"), (3, "retries is a whole"), (4, "cwd must be text"), (5, "wants is a list")],
        ),
        ("name: a\nshell: x\n\nretries: -1", [(4, "workflow 'a': retries is a whole number, 0 or more")]),
        ("name: a\nshell: x\nrequires: 'load <'", [(3, "requires: the expression 'load <' is not valid")]),
        ("name: a\nname: b\nshell: x", [(2, "the key 'name' is here twice")]),
        ("name: ]", [(1, "this is not YAML")]),
    ],
)
def test_every_mistake_in_a_file_is_reported_with_its_line(text: str, mistakes: list[tuple[int, str]]) -> None:
    with pytest.raises(BadWorkflowFile) as bad:
        parse_workflows(text, "flows.yaml")
    assert [mistake.line for mistake in bad.value.mistakes] == [line for line, _ in mistakes]
    for mistake, (_, words) in zip(bad.value.mistakes, mistakes, strict=True):
        assert words in mistake.text
    assert str(bad.value).startswith(f"flows.yaml:{mistakes[0][0]}: ")


def test_a_file_that_cannot_be_used_is_refused_with_its_mistakes(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    (tmp_path / "flows.yaml").write_bytes(b"name: a\nshell: \xff\n")
    result = scene.run("workflow", "add", "--file", str(tmp_path / "flows.yaml"))
    assert (result.exit_code, result.stderr) == (64, f"Error: {tmp_path}/flows.yaml:2: the file is not text in UTF-8\n")
    result = scene.run("workflow", "add", "--file", str(tmp_path / "none.yaml"))
    assert (result.exit_code, result.stdout) == (64, "")
    assert "No such file or directory" in result.stderr


def test_an_unknown_workflow_is_reported(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow("work")
    for name, words in [
        ("other", "there is no workflow 'other'; add it with `asterism workflow add other …`"),
        ("work@7", "there is no version 7 of workflow 'work'"),
        ("work@x", "there is no workflow 'work@x'"),
    ]:
        result = scene.run("workflow", "show", name)
        assert (result.exit_code, result.stdout) == (64, "")
        assert words in result.stderr


def test_a_fleet_without_workflows_says_what_to_do(tmp_path: Path) -> None:
    scene = Scene(tmp_path).made()
    assert "There are no workflows. Add one with: asterism workflow add NAME" in scene.run("workflow", "list").stderr
    assert scene.json("workflow", "list") == []


def test_a_missing_workflow_file_is_one_sentence(tmp_path: Path) -> None:
    result = Scene(tmp_path).run("workflow", "add", "--file", "none.yaml")
    assert (result.exit_code, result.stderr) == (64, "Error: none.yaml cannot be read: No such file or directory.\n")


def test_in_a_file_a_capability_with_a_comma_is_a_mistake() -> None:
    with pytest.raises(BadWorkflowFile) as bad:
        parse_workflows('name: a\nshell: x\nneeds: [big, "gpu, ffmpeg"]\n', "flows.yaml")
    assert str(bad.value) == (
        "flows.yaml:3: needs: a capability contains no comma; write [gpu, ffmpeg] instead of 'gpu, ffmpeg'"
    )


def test_a_timeout_that_meant_the_time_without_a_heartbeat_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    words = ("workflow", "add", "work", "--argv", "true", "--heartbeat", "1m", "--timeout", "3m")
    refused = scene.run(*words)
    assert refused.exit_code == 64
    assert "timeout beside heartbeat was the time without a heartbeat after which a run is lost" in refused.stderr
    assert scene.json(*words, "--heartbeat-timeout", "3m")["timeout"] == 180.0
    with pytest.raises(
        BadWorkflowFile, match=r"w\.yaml:3: workflow 'a': timeout beside heartbeat .* heartbeat_timeout"
    ):
        parse_workflows("name: a\nshell: x\ntimeout: 3m\nheartbeat: 1m\n", "w.yaml")
