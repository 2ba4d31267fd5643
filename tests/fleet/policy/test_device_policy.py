"""The device policy: what it refuses, and that no run, workflow or input gets round it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.base.secret_mask import Mask
from asterism.core.errors import DeviceUnavailable
from asterism.core.run.work import Workflow
from asterism.execution.actions import prepare_command
from asterism.execution.command_inputs import input_texts
from asterism.execution.function_modules import load_function
from asterism.execution.processes import Commands
from asterism.fleet.device.executor import JudgedAttempt, RunAttempt
from asterism.fleet.device.run_inputs import fill
from asterism.fleet.policy.device_policy import ORDINARY, DevicePolicy, PolicyForbids, Rules
from tests.fleet.device.device_scenes import Reports, a_run, check, command, execute, executors, shell


def policy(**rules: Any) -> DevicePolicy:
    return DevicePolicy(Rules(**rules), "policy.yaml")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two directories of programs on the PATH, the first allowed, the second not, with links to and fro."""
    root = tmp_path_factory.mktemp("place")
    for folder, name in (("allowed", "tool"), ("allowed", "gear"), ("forbidden", "evil"), ("forbidden", "tool")):
        (root / folder).mkdir(exist_ok=True)
        program = root / folder / name
        program.write_text(f"#!/bin/sh\necho {folder}/{name}\n")
        program.chmod(0o755)
    for link, to in (
        ("allowed/link", "../forbidden/evil"),
        ("allowed/chain", "link"),
        ("allowed/up", ".."),
        ("allowed/sub", "../forbidden"),
        ("forbidden/back", "../allowed/tool"),
        ("forbidden/round", "../allowed"),
        ("forbidden/gear", "evil"),
        ("many", "allowed"),
    ):
        (root / link).symlink_to(to)
    (root / "allowed" / "inner").mkdir()
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{root}/allowed:{root}/forbidden:relative:.:{before}"
    yield root
    os.environ["PATH"] = before


# -- commands ----------------------------------------------------------------------------------------------------------


def test_a_command_is_allowed_by_name_by_path_and_by_pattern(place: Path) -> None:
    words = ("tool", f"{place}/allowed/tool", f"{place}/forbidden/../allowed/tool", f"{place}/many/tool")
    for entry in ("tool", f"{place}/allowed/tool", f"{place}/allowed/*", "to?l", f"{place}/many/tool"):
        allowed = policy(commands=(entry,))
        assert [allowed.objection(a_run(command(word))) for word in words] == [None] * len(words)
    for word in words:
        assert execute(command(word), policy=policy(commands=("tool",))) == "allowed/tool"


@pytest.mark.parametrize(
    "word",
    [
        "evil",
        "./tool",
        "../allowed/tool",
        "allowed/tool",
        "",
        ".",
        "..",
        "/",
        "{place}/forbidden/tool",
        "{place}/forbidden/evil",
        "{place}/allowed/sub/evil",
        "{place}/allowed/sub/tool",
        "{place}/allowed/up/forbidden/tool",
        "{place}/allowed/../forbidden/tool",
        "{place}/allowed/",
        "{place}/allowed/nothing",
        "{place}/allowed/inner",
        "sh",
        "/bin/sh",
        "env",
    ],
)
def test_a_command_that_is_not_listed_is_refused(place: Path, word: str) -> None:
    word = word.replace("{place}", str(place))
    allowed = policy(commands=("tool", f"{place}/allowed/t*"))
    with pytest.raises(PolicyForbids, match=r"policy.yaml of this device does not allow the command .*'commands'"):
        execute(command(word), policy=allowed)
    assert "does not allow the command" in (allowed.objection(a_run(command(word))) or "")
    assert check(command(word), policy=allowed) is not None


def test_a_link_in_an_allowed_directory_does_not_lead_out_of_it(place: Path) -> None:
    for name in ("link", "chain", "sub/evil"):
        with pytest.raises(PolicyForbids):
            execute(command(f"{place}/allowed/{name}"), policy=policy(commands=(f"{place}/allowed/*",)))
    named = policy(commands=(f"{place}/allowed/link",))  # an entry for the link allows its target
    assert execute(command(f"{place}/allowed/link"), policy=named) == "forbidden/evil"


def test_another_name_of_an_allowed_program_is_another_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of many names, such as busybox, do what their name says."""
    box = tmp_path / "box"
    box.write_text('#!/bin/sh\necho "$0"\n')
    box.chmod(0o755)
    for name in ("list", "remove"):
        (tmp_path / name).symlink_to("box")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for entry in ("list", str(tmp_path / "list")):
        allowed = policy(commands=(entry,))
        assert execute(command("list"), policy=allowed).endswith("box")  # exactly what was judged is executed
        for word in ("remove", "box", str(tmp_path / "remove"), str(box)):
            with pytest.raises(PolicyForbids):
                execute(command(word), policy=allowed)


def test_a_program_is_called_by_the_name_that_was_judged(tmp_path: Path) -> None:
    link = tmp_path / "my-python"
    link.symlink_to(os.path.realpath("/bin/sh"))
    allowed = policy(commands=(str(link),))
    assert execute(command(str(link), "-c", "echo $0"), policy=allowed) == str(link)


def test_a_template_is_judged_after_filling(place: Path) -> None:
    allowed = policy(commands=("tool",))
    flow = command("{program}")
    assert allowed.objection(a_run(flow)) is None
    assert check(flow, {"program": "tool"}, allowed) is None
    assert execute(flow, {"program": "tool"}, allowed) == "allowed/tool"
    for program in ("evil", "../forbidden/evil", f"{place}/forbidden/evil", "sh"):
        assert "does not allow the command" in (check(flow, {"program": program}, allowed) or "")
        with pytest.raises(PolicyForbids) as caught:
            execute(flow, {"program": program}, allowed)
        assert not caught.value.begun
    half = command("{folder}/tool")
    assert check(half, {"folder": f"{place}/allowed"}, allowed) is None
    assert check(half, {"folder": f"{place}/forbidden"}, allowed) is not None


def test_an_allowed_command_that_is_not_here_is_the_devices_lack(place: Path) -> None:
    allowed = policy(commands=("no-such-command-*", "/no/such/place/*"))
    for word in ("no-such-command-anywhere", "/no/such/place/tool"):
        assert allowed.objection(a_run(command(word))) is None
        assert "there is no command" in (check(command(word), policy=allowed) or "")
        with pytest.raises(DeviceUnavailable):
            execute(command(word), policy=allowed)


def test_a_secret_does_not_show_in_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value")
    allowed = policy(commands=("true",), secrets=("MY_TOKEN",))
    hidden = {"program": {"secret": "MY_TOKEN"}}
    assert "s3cr3t" not in (check(command("{program}"), hidden, allowed) or "s3cr3t")
    with pytest.raises(PolicyForbids) as caught:
        execute(command("{program}"), hidden, allowed)
    assert "s3cr3t" not in str(caught.value)


SEGMENTS = st.sampled_from(
    [
        *("allowed", "forbidden", "many", "tool", "gear", "evil", "link", "chain", "up", "sub", "back", "round"),
        *("inner", "..", ".", "", " ", "TOOL", "tool\n", "*", "~"),
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(SEGMENTS, min_size=1, max_size=7), st.booleans(), st.integers(0, 4))
def test_no_way_of_writing_a_path_gets_round_the_commands(
    place: Path, segments: list[str], absolute: bool, which: int
) -> None:
    entry = ("tool", f"{place}/allowed/tool", f"{place}/allowed/*", f"{place}/many/t*", "t*")[which]
    word = "/".join([str(place), *segments]) if absolute else "/".join(segments)
    try:
        program = policy(commands=(entry,)).command(word)
    except (PolicyForbids, DeviceUnavailable):
        return
    assert program is not None
    inside = str((place / "allowed").resolve())
    assert os.path.dirname(program.file) == inside
    assert os.path.basename(program.file) in (("tool", "gear") if which == 2 else ("tool",))
    assert stat.S_ISREG(os.lstat(program.file).st_mode)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12) | st.binary(max_size=8).map(lambda raw: raw.decode("latin-1")))
def test_no_text_at_all_is_another_command(place: Path, word: str) -> None:
    try:
        program = policy(commands=("tool",)).command(word)
    except (PolicyForbids, DeviceUnavailable, ValueError):
        return
    assert program is not None
    assert (program.file, word) == (str((place / "allowed" / "tool").resolve()), "tool")


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_however_a_word_is_put_together_it_is_judged_as_a_whole(place: Path, data: st.DataObject) -> None:
    word = data.draw(st.sampled_from([f"{place}/forbidden/evil", "evil", f"{place}/allowed/sub/evil", "/bin/sh"]))
    first = data.draw(st.integers(0, len(word)))
    second = data.draw(st.integers(first, len(word)))
    parts = {"a": word[:first], "b": word[first:second], "c": word[second:]}
    allowed = policy(commands=("tool",), environment=("*",))
    work = Reports().work(command("{a}{b}{c}"), parts)
    resolved = fill(work.run.work, parts, Mask())
    with pytest.raises(PolicyForbids):
        prepare_command(JudgedAttempt(work.run, resolved, Commands(), allowed), input_texts(resolved.inputs))


# -- shell, workflows --------------------------------------------------------------------------------------------------


def test_shell_lines_are_allowed_or_not() -> None:
    assert execute(shell("echo yes"), policy=policy(shell=True)) == "yes"
    for rules in ({}, {"commands": ("sh", "/bin/sh", "*")}):
        with pytest.raises(PolicyForbids, match="does not allow shell lines: see 'shell' in it"):
            execute(shell("echo no"), policy=policy(**rules))


def test_workflows_are_told_apart_by_name() -> None:
    allowed = policy(shell=True, workflows=("media-*", "backup"))
    for name, fine in (("media-a", True), ("backup", True), ("backup2", False), ("xmedia-a", False), ("media", False)):
        objection = allowed.objection(a_run(Workflow(name, shell="true")))
        assert (objection is None) is fine
        if not fine:
            with pytest.raises(PolicyForbids):
                execute(Workflow(name, shell="true"), policy=allowed)


def test_everything_that_is_in_the_way_is_said_at_once() -> None:
    flow = Workflow("other", shell="true", cwd="/etc", env={"LD_PRELOAD": "x", "T": {"secret": "KEY"}})
    objection = policy(workflows=("mine",)).objection(a_run(flow)) or ""
    for words in ("the workflow 'other'", "shell lines", "directory '/etc'", "set 'LD_PRELOAD', 'T'", "secret 'KEY'"):
        assert words in objection


def test_without_a_policy_everything_is_allowed(tmp_path: Path) -> None:
    flow = shell('echo "$PWD $X"', cwd=str(tmp_path), env={"X": "1"})
    assert DevicePolicy.open().objection(a_run(flow)) is None
    assert check(flow) is None
    assert execute(flow) == f"{tmp_path} 1"


# -- directories -------------------------------------------------------------------------------------------------------


def test_a_command_runs_in_an_allowed_directory_or_below_it(place: Path) -> None:
    allowed = policy(commands=("pwd",), directories=(f"{place}/allowed",))
    real = str((place / "allowed").resolve())
    for cwd, where in ((None, real), (f"{place}/allowed", real), (f"{place}/many/inner", f"{real}/inner")):
        assert execute(command("pwd", cwd=cwd), policy=allowed) == where
    for cwd in (f"{place}", f"{place}/forbidden", f"{place}/allowed/sub", f"{place}/allowed/../forbidden", "/", "."):
        with pytest.raises(PolicyForbids, match="does not allow the directory"):
            execute(command("pwd", cwd=cwd), policy=allowed)
        assert "does not allow the directory" in (allowed.objection(a_run(command("pwd", cwd=cwd))) or "")


def test_a_directory_whose_name_only_begins_alike_is_another(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work-2").mkdir()
    with pytest.raises(PolicyForbids):
        policy(directories=(f"{tmp_path}/work",)).directory(f"{tmp_path}/work-2")


def test_without_directories_no_workflow_may_name_one_and_commands_run_where_the_agent_is() -> None:
    allowed = policy(commands=("pwd",))
    assert execute(command("pwd"), policy=allowed) == os.path.realpath(os.getcwd())
    with pytest.raises(PolicyForbids):
        execute(command("pwd", cwd=os.getcwd()), policy=allowed)


def test_a_device_that_is_in_an_allowed_directory_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    assert policy(directories=(f"{tmp_path}/a", str(tmp_path))).directory(None) == str(tmp_path.resolve())


def test_a_directory_that_is_not_here_is_the_devices_lack(tmp_path: Path) -> None:
    allowed = policy(commands=("pwd",), directories=(str(tmp_path),))
    assert "there is no directory" in (check(command("pwd", cwd=f"{tmp_path}/gone"), policy=allowed) or "")


@settings(max_examples=300, deadline=None)
@given(st.lists(SEGMENTS, max_size=7), st.booleans())
def test_no_way_of_writing_a_directory_gets_round_the_directories(
    place: Path, segments: list[str], absolute: bool
) -> None:
    cwd = "/".join([str(place), *segments]) if absolute else "/".join(segments) or "."
    try:
        directory = policy(directories=(f"{place}/many",)).directory(cwd)
    except (PolicyForbids, DeviceUnavailable):
        return
    assert directory is not None
    assert Path(directory).is_relative_to((place / "allowed").resolve())
    assert os.path.realpath(directory) == directory


# -- the environment ---------------------------------------------------------------------------------------------------

OWN = {
    f"ASTERISM_{name}" for name in ("RUN", "ATTEMPT", "EPOCH", "STEP", "TOTAL", "DEVICE", "SESSION", "FLEET", "AGENT")
}


def test_a_command_gets_listed_and_ordinary_variables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDIA_ROOT", "/media")
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("ASTERISM_STORE", "postgresql://user:password@host/fleet")
    allowed = policy(commands=("env",), environment=("MEDIA_*",))
    seen = dict(line.split("=", 1) for line in execute(command("env"), policy=allowed).splitlines())
    assert seen["MEDIA_ROOT"] == "/media"
    assert seen["LC_TIME"] == "C"
    assert seen["PATH"] == os.environ["PATH"]
    assert "DATABASE_PASSWORD" not in seen
    assert "ASTERISM_STORE" not in seen


def test_a_workflow_sets_only_listed_variables() -> None:
    allowed = policy(commands=("env",), environment=("MEDIA_*",))
    assert "MEDIA_X=1" in execute(command("env", env={"MEDIA_X": "1"}), policy=allowed)
    for name in ("PATH", "LD_PRELOAD", "media_x", "ASTERISM_RUN"):
        with pytest.raises(PolicyForbids, match=f"does not allow to set '{name}'"):
            execute(command("env", env={name: "1"}), policy=allowed)


def test_an_input_is_no_way_to_set_a_variable() -> None:
    allowed = policy(commands=("env",), shell=True, environment=("MEDIA_*",))
    inputs = {"LD_PRELOAD": "/tmp/evil.so", "PATH": "/evil", "BASH_ENV": "x", "MEDIA_X": "fine"}
    seen = execute(command("env"), inputs, allowed).splitlines()
    assert "MEDIA_X=fine" in seen
    assert "ASTERISM_INPUT_LD_PRELOAD=/tmp/evil.so" in seen  # has no effect under this name
    assert not any(line.startswith(("LD_PRELOAD", "PATH=/evil", "BASH_ENV")) for line in seen)
    assert execute(shell('echo "$MEDIA_X"'), inputs, allowed) == "fine"
    forged = execute(command("env"), {"MEDIA_X": 1, "ASTERISM_RUN": "forged"}, allowed)
    assert "ASTERISM_RUN=forged" not in forged.splitlines()


def test_an_input_that_a_shell_line_counts_on_is_refused_rather_than_missing() -> None:
    allowed = policy(shell=True)
    for line in ('echo "$file"', "echo ${file}", "echo ${#file}", "echo ${file%.mp4}"):
        with pytest.raises(PolicyForbids, match="to set 'file'"):
            execute(shell(line), {"file": "a"}, allowed)
    assert execute(shell("echo $files"), {"file": "a"}, allowed) == ""


def test_a_secret_that_is_not_listed_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "t0ken")
    monkeypatch.setenv("OTHER_TOKEN", "0ther")
    allowed = policy(commands=("echo",), secrets=("API_*",), environment=("OTHER_*", "HOME"))
    assert execute(command("echo", "{t}"), {"t": {"secret": "API_TOKEN"}}, allowed) == "t0ken"
    for name in ("OTHER_TOKEN", "HOME", "API"):
        with pytest.raises(PolicyForbids, match=f"to read the secret '{name}'"):
            execute(command("echo", "{t}"), {"t": {"secret": name}}, allowed)
        flow = Workflow("w", http={"url": "http://x/", "headers": {"A": {"secret": name}}})
        assert f"the secret '{name}'" in (allowed.objection(a_run(flow)) or "")


VALUES = st.sampled_from(["1", "", "x y"]) | st.integers() | st.builds(dict)
KEYS = st.sampled_from(
    ["PATH", "LD_PRELOAD", "HOME", "MEDIA_A", "MEDIA_", "media_a", "IFS", "ASTERISM_RUN", "ASTERISM_AGENT", "LC_ALL"]
) | st.text(max_size=4)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=6), st.dictionaries(KEYS, st.text("ab", max_size=2), max_size=3))
def test_whatever_is_sent_only_listed_variables_differ_from_the_devices(
    inputs: dict[str, Any], variables: dict[str, str]
) -> None:
    allowed = policy(commands=("true",), environment=("MEDIA_*",))
    work = Reports().work(command("true", env=variables), inputs)
    device = executors(allowed)
    try:
        resolved = fill(work.run.work, inputs, Mask())
        texts = input_texts(resolved.inputs)
        environment = prepare_command(RunAttempt(device, work, resolved, None), texts).environment
    except PolicyForbids:
        assert any(not name.startswith("MEDIA_") for name in variables)
        return
    except Exception as error:
        assert "NUL" in str(error)  # noqa: PT017 - text may hold anything
        return
    for name, value in environment.items():
        if name in OWN:
            assert name != "ASTERISM_RUN" or value == "r1"
        elif not name.startswith(("MEDIA_", "ASTERISM_INPUT_")):
            assert os.environ[name] == value
            assert name in ORDINARY or name.startswith("LC_")


# -- functions ---------------------------------------------------------------------------------------------------------


def test_functions_are_allowed_by_path_and_by_pattern() -> None:
    for entry in ("device_jobs:double", "device_jobs:*", "device_*:d*", "*:*"):
        flow = Workflow("w", call="device_jobs:double")
        assert policy(callables=(entry,)).objection(a_run(flow)) is None
        assert execute(flow, {"n": 2}, policy(callables=(entry,))) == 4


@pytest.mark.parametrize("path", ["os:system", "device_jobs:os.system", "device_jobs:system", "device_jobs:half"])
def test_a_pattern_lets_nothing_through_that_a_module_only_imports(path: str) -> None:
    allowed = policy(callables=("device_jobs:*",))
    with pytest.raises(PolicyForbids, match="does not allow the function"):
        execute(Workflow("w", call=path), {"command": "true"}, allowed)


def test_a_function_listed_by_its_full_name_is_allowed() -> None:
    assert execute(Workflow("w", call="device_jobs:half"), policy=policy(callables=("device_jobs:half",))) == 2
    inner = Workflow("w", call="device_jobs:Jobs.inner")
    assert execute(inner, {"n": 1}, policy(callables=("device_jobs:Jobs.*",))) == 1
    with pytest.raises(PolicyForbids):
        execute(inner, {"n": 1}, policy(callables=("device_jobs:*",)))


def test_nothing_is_imported_before_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_by_mistake.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    flow = Workflow("w", call="imported_by_mistake:f")
    with pytest.raises(PolicyForbids):
        execute(flow, policy=policy(callables=("device_jobs:*",)))
    assert "does not allow the function" in (policy().objection(a_run(flow)) or "")


def test_a_function_without_a_path_cannot_be_allowed() -> None:
    with pytest.raises(PolicyForbids, match="which cannot be imported"):
        execute(Workflow("w", call=lambda: 1), policy=policy(callables=("*:*",)))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["device_jobs", "os", "path", "posix"]), min_size=1, max_size=2),
    st.lists(
        st.sampled_from(["double", "os", "system", "Jobs", "inner", "half", "__class__", "__globals__", "__call__"]),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([":", "::", ":.", ".:"]),
)
def test_no_import_path_leads_through_a_module_to_its_imports(modules: list[str], names: list[str], colon: str) -> None:
    allowed = policy(callables=("device_jobs:*", "device_jobs:Jobs.*"))
    path = ".".join(modules) + colon + ".".join(names)
    try:
        allowed.call(path)
        function = load_function(path)
        allowed.called(path, function)
    except (PolicyForbids, ImportError):
        return
    assert function.__module__ == "device_jobs"
    assert function.__qualname__ in ("double", "Jobs", "Jobs.inner")
