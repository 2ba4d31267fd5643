"""Which variables the inputs of a command become, with real commands: in plans of this process and in runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism import Constellation, LocalDevice, Orchestrator, Task
from asterism.core.errors import DeviceUnavailable
from asterism.core.run.run import Run
from asterism.core.run.work import Work
from asterism.execution import command_inputs, task_inputs
from asterism.execution.task_inputs import MissingInput
from asterism.fleet.device.executor import DeviceExecutor, RunWork
from asterism.fleet.policy.device_policy import DevicePolicy, PolicyForbids, Rules
from tests.long_tests import rest_long
from tests.process_scenes import PATIENCE

DANGEROUS = [
    "PATH",
    "BASH_ENV",
    "ENV",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PERL5OPT",
    "IFS",
]
DANGEROUS += ["NODE_OPTIONS", "GIT_SSH_COMMAND", "http_proxy", "HTTPS_PROXY", "HOME", "SHELL", "EDITOR", "PAGER", "PS4"]
DANGEROUS += [
    "RUBYOPT",
    "JAVA_TOOL_OPTIONS",
    "SSL_CERT_FILE",
    "ASTERISM_RUN",
    "ASTERISM_PROGRESS",
    "npm_config_registry",
]


def as_task(inputs: dict[str, Any], **options: Any) -> Any:
    plan = Constellation("p")
    plan.add(Task("a", inputs=inputs, **options))
    node = asyncio.run(Orchestrator([LocalDevice("here")]).run(plan))["a"]
    if node.error is not None:
        raise node.error
    return node.value


def as_run(inputs: dict[str, Any], policy: DevicePolicy | None = None, **options: Any) -> Any:
    terms = Work(**options)
    work = RunWork(Run("r1", "w", 1, 0.0, "test", terms, epoch=3), inputs, lambda _: None, lambda _: None)

    async def main() -> Any:
        executors = DeviceExecutor(policy or DevicePolicy.open(), device="kitchen", session="s1")
        try:
            async with asyncio.timeout(PATIENCE):
                return await executors.execute(work)
        finally:
            executors.close()

    return asyncio.run(main())


Send = Callable[..., Any]
both = pytest.mark.parametrize("send", [as_task, as_run])


def variables_of(send: Send, inputs: dict[str, Any], **options: Any) -> dict[str, str]:
    output = send(inputs, **(options or {"argv": ["env", "-0"]}))
    return dict(line.split("=", 1) for line in output.strip("\0").split("\0"))


@both
def test_every_input_is_a_variable_with_a_prefix(send: Send) -> None:
    seen = variables_of(send, {"mean": 3.5, "Text": "a b", "list": [1, "x"], "PATH": "/evil"})
    prefixed = {
        name: value
        for name, value in seen.items()
        if name.startswith(task_inputs.VARIABLE_PREFIX) and not name.startswith(command_inputs.FILE_PREFIX)
    }
    assert prefixed == {
        "ASTERISM_INPUT_mean": "3.5",
        "ASTERISM_INPUT_Text": "a b",
        "ASTERISM_INPUT_list": '[1, "x"]',
        "ASTERISM_INPUT_PATH": "/evil",
    }
    assert seen["PATH"] == os.environ["PATH"]
    assert not {"mean", "Text", "list"} & seen.keys()  # no shell line mentions them


@both
def test_an_input_whose_name_is_in_the_line_is_a_variable(send: Send) -> None:
    inputs = {"count": 3, "NAME": "ann", "other": 1}
    line = 'echo "$NAME ${count} $((count + 1)) ${other_than_that:-nothing}"; env | grep -c "^othe[r]=" || true'
    assert send(inputs, shell=line) == "ann 3 4 nothing\n0"


@both
@pytest.mark.parametrize("name", rest_long(DANGEROUS, 6))
def test_no_input_is_a_variable_that_the_system_reads(send: Send, name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    evil = tmp_path / "evil"
    evil.write_text(f"touch {mark}\n")
    before = os.environ.get(name)
    output = send({name: str(evil)}, shell=f'bash -c "env" # {name}')  # the line has the name, and does not count on it
    seen = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    if not name.startswith("ASTERISM_"):
        assert seen.get(name) == before
    assert seen.get(name) != str(evil)
    assert not mark.exists()
    with pytest.raises(MissingInput, match=rf"cannot be the variable \${name}.*\$ASTERISM_INPUT_{name}"):
        send({name: str(evil)}, shell=f'echo "${name}"')


def test_without_the_list_an_input_executes_what_it_likes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, evil = tmp_path / "mark", tmp_path / "evil"
    evil.write_text(f"touch {mark}\n")
    monkeypatch.setattr(task_inputs, "is_reserved", lambda name: False)
    monkeypatch.setattr(command_inputs, "is_reserved", lambda name: False)
    as_run({"BASH_ENV": str(evil)}, shell="bash -c true # BASH_ENV")
    assert mark.exists()


@both
def test_the_author_may_name_any_variable(send: Send) -> None:
    if send is as_run:
        assert send({"home": "/x"}, shell='echo "$HOME"', env={"HOME": {"from": "home"}}) == "/x"
    assert send({"HOME": "/y"}, shell='echo "$HOME"', env={"HOME": "/x"}) == "/x"


def test_the_author_of_a_plan_replaces_a_variable_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("version", "2")
    assert as_task({"version": 3}, shell="echo $version") == "3"


def test_an_input_of_a_run_never_replaces_a_variable_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("base_url", "https://api.example.org")
    with pytest.raises(DeviceUnavailable, match="a variable 'base_url' of its own"):
        as_run({"base_url": "https://evil.example.org"}, shell="echo $base_url")
    line = "env | grep ^base_url="  # which has the name, and may count on the device's
    assert as_run({"base_url": "https://evil.example.org"}, shell=line) == "base_url=https://api.example.org"


def test_a_policy_lists_which_inputs_are_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDIA_ROOT", "/media")
    monkeypatch.setenv("MEDIA_KEY", "0123456789")
    rules = Rules(commands=("env",), shell=True, environment=("MEDIA_*", "LD_*", "*_ENV"), secrets=("MEDIA_KEY",))
    policy = DevicePolicy(rules)
    inputs = {
        "MEDIA_X": "1",
        "MEDIA_ROOT": "/evil",
        "MEDIA_KEY": "evil",
        "LD_PRELOAD": "/evil",
        "BASH_ENV": "/evil",
        "y": "2",
    }
    seen = variables_of(as_run, inputs, argv=["env", "-0"], policy=policy)
    assert {name: seen.get(name) for name in inputs} == {
        "MEDIA_X": "1",
        "MEDIA_ROOT": "/media",
        "MEDIA_KEY": "0123456789",
        "LD_PRELOAD": None,
        "BASH_ENV": None,
        "y": None,
    }
    assert seen["ASTERISM_INPUT_y"] == "2"
    with pytest.raises(PolicyForbids, match=r"to set 'y' \(\$ASTERISM_INPUT_y is there in any case\)"):
        as_run(inputs, policy, shell="echo $y")
    assert as_run(inputs, policy, shell="echo $ASTERISM_INPUT_y") == "2"


NAMES = st.sampled_from([*DANGEROUS, "mean", "", "a=b", "a b", "1", "BASH_FUNC_ls%%", "x\0"]) | st.text(max_size=6)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, st.text(max_size=4) | st.integers(), max_size=6))
def test_whatever_is_sent_nothing_that_the_system_reads_changes(inputs: dict[str, Any]) -> None:
    line = " ".join(f"${name} {name}" for name in inputs)
    texts = command_inputs.input_texts(inputs)
    variables = command_inputs.bare_variables(texts, line, lambda name: task_inputs.mentions_name(line, name))
    assert not [name for name in variables if name in DANGEROUS or not name.isidentifier()]
    assert all(name.startswith("ASTERISM_INPUT_") for name in command_inputs.prefixed_variables(texts, line))
