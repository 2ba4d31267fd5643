"""The GitHub Action: its steps are run as a runner would run them, with the same variables, against a local GitHub."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.cli.local_github import GitHubServer, scenes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "series"


@pytest.fixture
def server():
    with GitHubServer(scenes.world_of(), listening=True) as running:
        yield running
        assert running.world.doubles == []


def action() -> dict[str, Any]:
    form: dict[str, Any] = yaml.safe_load((ACTION / "action.yml").read_text("utf-8"))
    return form


def runner_of(folder: Path, **more: str) -> dict[str, str]:
    """The variables that a runner sets for each step. It begins in the workspace."""
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    (folder / "temp").mkdir(exist_ok=True)
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", "/"),
        "GITHUB_ACTION_PATH": str(ACTION),
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_WORKSPACE": str(workspace),
        "RUNNER_TEMP": str(folder / "temp"),
        **more,
    }


def run_action(
    server: Any, folder: Path, around: dict[str, str] | None = None, **chosen_inputs: str
) -> tuple[int, dict[str, str], str]:
    """What a runner does with a composite action: inputs with their defaults, ``if``, ``env``, ``run``, and the outputs
    that the step wrote. Returns how it ended, the outputs of the action, and what was printed."""
    form = action()
    inputs = {name: str(declared.get("default", "")) for name, declared in form["inputs"].items()}
    inputs |= {"repository": "acme/rocket", "metrics": str(folder / "m.json"), "python": sys.executable}
    inputs |= {name.replace("_", "-"): value for name, value in chosen_inputs.items()}
    output = folder / "output"
    output.touch()
    runner = runner_of(folder, GITHUB_API_URL=server.url, **(around or {}))
    code, said = 0, ""
    for step in form["runs"]["steps"]:
        if "if" in step and not chosen(step["if"], inputs):
            continue
        env = {name: filled(value, inputs) for name, value in step.get("env", {}).items()}
        assert "${{" not in step["run"]  # nothing from outside is written into a script
        assert step["shell"] == "bash"
        words = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
        done = subprocess.run(
            words, env={**runner, **env}, capture_output=True, text=True, cwd=runner["GITHUB_WORKSPACE"]
        )
        code, said = done.returncode, said + done.stdout + done.stderr
        if code:
            break
    written = dict(line.split("=", 1) for line in output.read_text().splitlines())
    names = {
        name: re.fullmatch(r"\$\{\{ steps\.sync\.outputs\.(\w+) \}\}", declared["value"])
        for name, declared in form["outputs"].items()
    }
    return code, {name: written.get(match[1], "") for name, match in names.items() if match}, said


def filled(text: str, inputs: dict[str, str]) -> str:
    other = r"(?: \|\| steps\.install\.outputs\.python)?"
    return re.sub(rf"\$\{{\{{ inputs\.([\w-]+){other} \}}\}}", lambda match: inputs[match[1]], str(text))


def chosen(condition: str, inputs: dict[str, str]) -> bool:
    match = re.fullmatch(r"inputs\.([\w-]+) == '(.*)'", condition)
    assert match
    return inputs[match[1]] == match[2]


def inputs_of(server: Any, **more: str) -> dict[str, str]:
    return {"token": scenes.environ(server)["GITHUB_TOKEN"], "assign": "robot", **more}


@pytest.mark.long
def test_the_issue_whose_turn_it_is_is_claimed(server, tmp_path):
    code, outputs, said = run_action(server, tmp_path, **inputs_of(server, issue="1"))
    assert (code, outputs) == (0, {"status": "claimed", "active": "1", "position": "0", "series": "RFC-093"}), said
    assert scenes.assigned(server) == [1]
    assert (tmp_path / "m.json").exists()


@pytest.mark.long
def test_one_that_waits_is_queued_and_the_step_succeeds(server, tmp_path):
    code, outputs, _ = run_action(server, tmp_path, **inputs_of(server, issue="3"))
    assert (code, outputs) == (0, {"status": "queued", "active": "1", "position": "2", "series": "RFC-093"})


@pytest.mark.long
def test_without_an_issue_everything_is_brought_in_step(server, tmp_path):
    code, outputs, _ = run_action(server, tmp_path, **inputs_of(server, mode="announce"))
    assert (code, outputs) == (0, {"status": "synced", "active": "", "position": "", "series": ""})
    assert scenes.assigned(server) == [1]


@pytest.mark.long
def test_who_only_observes_is_never_told_that_it_is_claimed(server, tmp_path):
    code, outputs, _ = run_action(server, tmp_path, **inputs_of(server, issue="1", mode="observe"))
    assert (code, outputs) == (0, {"status": "observed", "active": "1", "position": "0", "series": "RFC-093"})
    (tmp_path / "output").unlink()
    code, outputs, _ = run_action(server, tmp_path, **inputs_of(server, mode="observe"))
    assert (code, outputs["status"]) == (0, "observed")


@pytest.mark.long
def test_an_issue_of_no_series_does_not_fail_the_step(server, tmp_path):
    number = server.call(lambda world: world.add_issue("a question")).number
    code, outputs, _ = run_action(server, tmp_path, **inputs_of(server, issue=str(number)))
    assert (code, outputs) == (0, {"status": "none", "active": "", "position": "", "series": ""})


CONTENDED = """#!/bin/sh
if [ "$1 $2 $3" = "-I -m asterism" ]; then
    echo '{"status": "contended", "error": "others were first"}'
    exit 76
fi
exec PYTHON "$@"
"""


@pytest.mark.parametrize(("fails", "expected"), [("false", 0), ("true", 76)])
def test_who_is_never_first_is_contended(server, tmp_path, fails, expected):
    """The command is made to say so here: that it does when others are first is tested elsewhere."""
    program = tmp_path / "python"
    program.write_text(CONTENDED.replace("PYTHON", sys.executable))
    program.chmod(0o755)
    inputs = inputs_of(server, issue="1", fail_when_contended=fails, python=str(program))
    code, outputs, said = run_action(server, tmp_path, **inputs)
    assert (code, outputs["status"]) == (expected, "contended")
    assert "::warning::" in said


@pytest.mark.long
def test_what_goes_wrong_fails_the_step_with_its_code(server, tmp_path):
    code, outputs, said = run_action(server, tmp_path, **inputs_of(server, token="wrong"))
    assert (code, outputs["status"]) == (69, "")
    assert "::error::" in said
    code, _, said = run_action(server, tmp_path, **inputs_of(server, assign="nobody-there"))
    assert code == 64
    assert scenes.environ(server)["GITHUB_TOKEN"] not in said


def test_what_a_stranger_writes_into_an_input_is_never_run(server, tmp_path):
    mark = tmp_path / "mark"
    evil = f'1"; touch {mark}; echo "$(touch {mark})`touch {mark}`'
    code, outputs, _ = run_action(server, tmp_path, **inputs_of(server, issue=evil))
    assert code != 0
    assert (mark.exists(), outputs["status"]) == (False, "")


@pytest.mark.long
def test_what_stands_on_the_issues_can_be_chosen(server, tmp_path):
    inputs = inputs_of(server, active_label="in work", queued_label="waits", respect_unassign="true")
    assert run_action(server, tmp_path, **inputs)[0] == 0
    labels = server.call(lambda world: {number: world.issue(number).labels for number in (1, 2, 3)})
    assert labels == {1: ["in work"], 2: ["waits"], 3: ["waits"]}
    server.call(lambda world: world.unassign(1, "robot", by="ada"))
    assert run_action(server, tmp_path, **inputs)[0] == 0
    assert scenes.assigned(server) == []


@pytest.mark.long
def test_the_figures_are_where_the_workspace_is(server, tmp_path):
    assert run_action(server, tmp_path, **inputs_of(server, metrics="figures.json"))[0] == 0
    assert json.loads((tmp_path / "workspace" / "figures.json").read_text())["assigned"] == 1


# -- a workspace that nobody should trust ------------------------------------------------------------------------------

TRAP = """
import os
file = os.open(os.environ["MARK"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(file, f"{__name__} {os.environ.get('GITHUB_TOKEN')}\\n".encode())
"""
BEGINNING = {"abc", "codecs", "encodings", "genericpath", "io", "os", "posixpath", "site", "stat"}
"""What Python imports before it can do anything: a trap in the place of one of these would only end it."""
NAMES = {
    "asterism",
    "click",
    "githubkit",
    "httpx",
    "hishel",
    "pydantic",
    "anyio",
    "pip",
    "sitecustomize",
    "usercustomize",
}


@pytest.fixture
def hostile(tmp_path: Path) -> dict[str, str]:
    """A workspace in which everything that Python could import lies as a file, and an environment that leads there."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    for name in NAMES | (sys.stdlib_module_names - set(sys.builtin_module_names) - BEGINNING):
        (workspace / f"{name}.py").write_text(TRAP)
    (workspace / "pyvenv.cfg").write_text("home = .\n")
    (workspace / "pip.conf").write_text("[install]\ntarget = .\n")
    mark = tmp_path / "mark"
    startup = {"PYTHONPATH": str(workspace), "PYTHONSTARTUP": str(workspace / "json.py"), "PYTHONUSERBASE": "."}
    return {"MARK": str(mark), **startup, "PYTHONINSPECT": "1", "PYTHONWARNINGS": "error"}


def test_the_traps_of_the_workspace_work(hostile, tmp_path):
    """The ablation: Python as it was started before would fall into them, by either way."""
    workspace = tmp_path / "workspace"
    for around in (hostile, {"MARK": hostile["MARK"]}):
        Path(hostile["MARK"]).unlink(missing_ok=True)
        words = [sys.executable, "-", "x"]
        subprocess.run(words, input="import json", env=around, cwd=workspace, text=True, capture_output=True)
        assert Path(hostile["MARK"]).exists()


def test_nothing_of_the_workspace_runs_in_a_sync(server, tmp_path, hostile):
    code, outputs, said = run_action(server, tmp_path, around=hostile, **inputs_of(server, issue="1"))
    assert (code, outputs["status"]) == (0, "claimed"), said
    assert not Path(hostile["MARK"]).exists(), Path(hostile["MARK"]).read_text()


def test_the_token_is_in_the_environment_of_one_command(server, tmp_path):
    """Of all that a sync starts, by a Python that notes its arguments before it continues."""
    program, noted = tmp_path / "python", tmp_path / "noted"
    lines = ["#!/bin/sh", f'echo "$3 $(env | grep -c "$SECRET")" >> {noted}', f'exec {sys.executable} "$@"', ""]
    program.write_text("\n".join(lines))
    program.chmod(0o755)
    token = scenes.environ(server)["GITHUB_TOKEN"]
    around = {"SECRET": f"TOKEN={token}", "GH_TOKEN": token, "GITHUB_TOKEN": token}
    code, _, said = run_action(server, tmp_path, around=around, **inputs_of(server, python=str(program)))
    assert code == 0, said
    sync, outputs = [line.split() for line in noted.read_text().splitlines()]
    # SECRET itself is the one that is found in either
    assert (sync, outputs[1]) == (["asterism", "2"], "1")
    [install, _] = action()["runs"]["steps"]
    assert "env" not in install


def wheel(folder: Path, body: str = "") -> str:
    """A package ``demo``, and the hash of its file."""
    path = folder / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("demo.py", f"NAME = 'demo'\n{body}")
        file.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        file.writestr("demo-1.0.dist-info/WHEEL", tags)
        names = ("demo.py", "demo-1.0.dist-info/METADATA", "demo-1.0.dist-info/WHEEL", "demo-1.0.dist-info/RECORD")
        file.writestr("demo-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in names))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def install(folder: Path, around: dict[str, str], pins: str) -> tuple[int, dict[str, str], str]:
    """The step that installs, in a small repository whose pins are these; packages come from a folder beside it."""
    root = folder / "repository"
    shutil.copytree(ACTION, root / ".github" / "actions" / "series")
    (root / "requirements").mkdir()
    (root / "requirements" / "github.txt").write_text(pins)
    (root / "src" / "asterism").mkdir(parents=True)
    (root / "src" / "asterism" / "__init__.py").touch()
    (root / "src" / "asterism" / "__main__.py").write_text("import demo, json\nprint(demo.NAME, json.dumps([]))\n")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}
    place = {"GITHUB_ACTION_PATH": str(root / ".github" / "actions" / "series")}
    runner = runner_of(folder, **offline, **place, **around)
    [step, _] = action()["runs"]["steps"]
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]],
        env=runner,
        cwd=runner["GITHUB_WORKSPACE"],
        capture_output=True,
        text=True,
    )
    output = folder / "output"
    written = dict(line.split("=", 1) for line in output.read_text().splitlines()) if output.exists() else {}
    return done.returncode, written, done.stdout + done.stderr


@pytest.mark.long
def test_asterism_is_installed_outside_the_workspace_and_nothing_of_that_runs(tmp_path, hostile):
    code, written, said = install(tmp_path, hostile, f"demo==1.0 --hash=sha256:{wheel(tmp_path)}\n")
    assert code == 0, said
    python = Path(written["python"])
    assert python.is_relative_to(tmp_path / "temp")
    assert not Path(hostile["MARK"]).exists(), Path(hostile["MARK"]).read_text()
    words = [str(python), "-I", "-m", "asterism"]
    done = subprocess.run(words, cwd=tmp_path / "workspace", env=hostile, capture_output=True, text=True)
    assert (done.stdout, Path(hostile["MARK"]).exists()) == ("demo []\n", False), done.stderr


@pytest.mark.long
def test_a_package_without_a_hash_is_not_installed(tmp_path):
    wheel(tmp_path)
    code, written, said = install(tmp_path, {}, "demo==1.0\n")
    assert (code, written) == (1, {})
    assert "hash" in said.lower()


def pinned(name: str) -> dict[str, tuple[str, list[str]]]:
    """The packages of a file of pins: version and hashes."""
    text = (ROOT / "requirements" / name).read_text("utf-8")
    pins = re.findall(r"(?m)^([\w.-]+)(?:\[[\w, -]+\])?==([^ ;\\\n]+)([^\n]*\n(?:    --hash[^\n]*\n)*)", text)
    return {name.lower(): (version, re.findall(r"--hash=sha256:[0-9a-f]{64}", rest)) for name, version, rest in pins}


def test_all_that_the_action_installs_is_pinned_by_its_hash_as_it_is_tested():
    pins, tested = pinned("github.txt"), pinned("test.txt")
    assert all(hashes for _, hashes in pins.values())
    assert {name: tested.get(name) for name in pins} == pins
    assert "://" not in (ROOT / "requirements" / "github.txt").read_text("utf-8")
    todo, needed = [("asterism", "github")], set()
    while todo:
        name, extra = todo.pop()
        for line in metadata.requires(name) or []:
            wanted = Requirement(line)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
                continue
            more = [
                (wanted.name, wanted_extra)
                for wanted_extra in ("", *wanted.extras)
                if (wanted.name, wanted_extra) not in needed
            ]
            needed |= set(more)
            todo += more
    assert {re.sub(r"[-_.]+", "-", name).lower() for name, _ in needed} - {"asterism"} <= set(pins)


def test_every_action_that_is_named_anywhere_is_pinned_by_its_commit():
    folders = (ROOT / ".github", ROOT / "examples", ROOT / "docs", ROOT / "README.md")
    files = [file for folder in folders for file in ([folder] if folder.is_file() else folder.rglob("*"))]
    texts = [file.read_text("utf-8") for file in files if file.suffix in (".md", ".yml", ".yaml")]
    used = [named for text in texts for named in re.findall(r"(?m)^\s*(?:- )?uses:\s*([^\s{]\S+)", text)]
    assert len(used) >= 4
    assert [named for named in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", named)] == []


def test_the_example_workflow_uses_the_action_as_it_is():
    workflow = yaml.safe_load((ROOT / "examples" / "github" / "series.yml").read_text("utf-8"))
    triggers = workflow[True]  # YAML takes the word on for a truth
    assert {"schedule", "issues", "pull_request_target"} <= set(triggers)
    assert not any(
        "actions/checkout" in step.get("uses", "") for job in workflow["jobs"].values() for step in job["steps"]
    )
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        assert job["permissions"] == {"contents": "write", "issues": "write"}
    known = action()
    uses = [
        step for job in workflow["jobs"].values() for step in job["steps"] if "actions/series" in step.get("uses", "")
    ]
    assert len(uses) == 2
    for step in uses:
        assert set(step["with"]) <= set(known["inputs"])
        assert {name for name, declared in known["inputs"].items() if declared.get("required")} <= set(step["with"])
    text = (ROOT / "examples" / "github" / "series.yml").read_text("utf-8")
    assert set(re.findall(r"steps\.series\.outputs\.(\w+)", text)) <= set(known["outputs"])
