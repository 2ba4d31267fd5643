"""The action ``container``: what the engine is asked for, and that no container outlives its task."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from asterism import CommandFailed, Constellation, DeviceAgent, Fleet, LocalDevice, Orchestrator, Result, Task, Workflow
from asterism.base.secret_mask import Mask
from asterism.core.errors import DeviceUnavailable
from asterism.core.run.run import Run
from asterism.execution import containers, guard_main
from asterism.execution.containers import ENGINE_VARIABLE, Container
from asterism.execution.plugin_actions import check_plugin, plugin_capabilities
from asterism.fleet.device import process_records
from asterism.fleet.device.executor import DeviceExecutor
from asterism.fleet.policy.device_policy import DevicePolicy, Rules
from asterism.fleet.run_explanation import explain_run
from tests.execution.container_scenes import Engine, engine, is_alive
from tests.fleet.device.device_scenes import Reports, check, execute, executors
from tests.process_scenes import PATIENCE, soon

__all__ = ["engine"]


def container(*argv: str, **fields: Any) -> dict[str, Any]:
    return {"container": {"image": "alpine", **({"argv": list(argv)} if argv else {}), **fields}}


def ran(*tasks: Task) -> Result:
    plan = Constellation("plan")
    for task in tasks:
        plan.add(task)
    return asyncio.run(Orchestrator([LocalDevice("here")]).run(plan))


# -- what the engine is asked for --------------------------------------------------------------------------------------


def test_a_command_in_a_container_is_like_any_command(engine: Engine) -> None:
    line = 'printf "%s %s %s" "$1" "$COLOUR" "$ASTERISM_TASK"'
    work = container(
        "sh", "-c", line, "-", "{name}", memory="64m", cpus=1.5, network="none", pull="never", user="nobody"
    )
    result = ran(Task("a", plugin=work, inputs={"name": "Ann"}, env={"COLOUR": "blue"}))
    assert result["a"].value == "Ann blue a"
    last = engine.last()
    assert last["image"] == "alpine"
    assert {
        name: last["options"][name] for name in ("--memory", "--cpus", "--network", "--pull", "--user", "--rm")
    } == {
        "--memory": ["64m"],
        "--cpus": ["1.5"],
        "--network": ["none"],
        "--pull": ["never"],
        "--user": ["nobody"],
        "--rm": [""],
    }
    assert {"asterism.plan=plan", "asterism.task=a", "asterism.epoch=1"} <= set(last["labels"])
    assert last["options"]["--name"][0].startswith("asterism-a-1-")
    assert engine.running() == []


def test_the_result_is_parsed_and_the_exit_code_is_that_of_a_command(engine: Engine) -> None:
    result = ran(
        Task("a", plugin=container("echo", '{{"n": 1}}')),
        Task("b", plugin=container("sh", "-c", "echo no >&2; exit 3")),
        Task("c", plugin={"container": {"image": "broken"}}),
    )
    assert result["a"].value == {"n": 1}
    error = result["b"].error
    assert isinstance(error, CommandFailed)
    assert (error.code, str(error)) == (3, "the command exited with 3: no")
    assert str(result["c"].error).startswith("the command exited with 125: Error: initializing source")


def test_files_go_in_and_come_out(engine: Engine) -> None:
    result = ran(
        Task("a", shell="echo one > part.txt", outputs={"part": "part.txt"}),
        Task(
            "b",
            plugin=container("sh", "-c", "tr a-z A-Z < part.txt > out.txt; cat out.txt"),
            inputs={"parts": {"files_from": "a.part"}},
            outputs={"out": "out.txt"},
        ),
        Task("c", shell="cat out.txt", inputs={"made": {"files_from": "b.out"}}),
    )
    assert [result[name].value for name in ("b", "c")] == ["ONE", "ONE"]


def test_inputs_are_variables_and_files_and_progress_is_reported(engine: Engine) -> None:
    reports = Reports()
    line = 'echo 2/4 > "$ASTERISM_PROGRESS"; cat "$ASTERISM_INPUT_FILE_text"; echo ":$ASTERISM_INPUT_text"'
    flow = Workflow("w", plugin=container("sh", "-c", line))
    assert execute(flow, {"text": "long"}, reports=reports) == "long:long"
    assert [str(progress) for progress in reports.progress] == ["2/4"]
    mounts = engine.last()["options"]["--volume"]
    assert [mount.endswith(":ro,z") for mount in mounts].count(False) == 1  # only the file of the progress is writable


def test_the_container_gets_nothing_else_of_the_device(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_DEVICE", "x")
    names = {line.partition("=")[0] for line in str(execute(Workflow("w", plugin=container("env")))).splitlines()}
    assert "ASTERISM_RUN" in names
    assert not names & {"OF_DEVICE", "ASTERISM_SESSION", "ASTERISM_AGENT", "ASTERISM_FLEET", "HOME"}


def test_secrets_are_not_in_the_words_of_a_process_and_masked(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "very-secret-token")
    reports = Reports()
    flow = Workflow("w", plugin=container("sh", "-c", 'echo "$KEY"'), env={"KEY": {"secret": "TOKEN"}})
    assert execute(flow, reports=reports) == "very-secret-token"  # a result is data
    assert "".join(reports.output).strip() == "[secret]"
    assert "very-secret" not in json.dumps(engine.last())
    [file] = engine.last()["options"]["--env-file"]
    assert not Path(file).exists(), "it is gone with the task"


@pytest.mark.parametrize("value", ["", "a b", " a ", "a\nb", '"a"', "'", "#a", "$HOME", "a=b", "\u00e4", "x" * 50_000])
def test_a_variable_reaches_the_container_as_it_is(value: str, engine: Engine) -> None:
    work = container("/bin/sh", "-c", 'printf "<%s>" "$MINE"')
    assert ran(Task("a", plugin=work, env={"MINE": value}))["a"].value == f"<{value}>"


def _as_bash_script(engine: Engine) -> None:
    engine.path.write_text(engine.path.read_text().replace("#!/bin/sh", f"#!{shutil.which('bash')}", 1))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("name", ["evil", "ev\nil"], ids=["line", "lines"])
@pytest.mark.parametrize("secret", [False, True], ids=["text", "secret"])
def test_a_variable_of_a_container_starts_nothing_on_the_device(
    name: str, secret: bool, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine may be a script, as the ``docker`` of podman is one."""
    _as_bash_script(engine)
    evil, done = tmp_path / name, tmp_path / "done"
    evil.write_text(f"touch {done}")
    monkeypatch.setenv("TOKEN", str(evil))
    variable = {"secret": "TOKEN"} if secret else str(evil)
    names = ("BASH_ENV", "ENV", "SHELLOPTS", "PERL5OPT")
    task = Task("a", plugin=container("/usr/bin/env"), env=dict.fromkeys(names, variable))
    ran(task)
    assert not done.exists()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_ablation_with_its_variables_in_the_client_a_task_acts_on_the_device(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "_LINE", re.compile("(?!)"))
    monkeypatch.setattr(containers, "is_reserved", lambda name: False)
    _as_bash_script(engine)
    evil, done = tmp_path / "evil", tmp_path / "done"
    evil.write_text(f"touch {done}")
    ran(Task("a", plugin=container("/usr/bin/env"), env={"BASH_ENV": str(evil)}))
    assert done.exists()


@pytest.mark.parametrize(
    "name", ["PATH", "DOCKER_HOST", "https_proxy", "XDG_RUNTIME_DIR", "NOTIFY_SOCKET", "OF_DEVICE"]
)
def test_a_variable_does_not_steer_the_engine(name: str, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_DEVICE", "x")
    monkeypatch.setenv("TOKEN", "very-secret-token\nof two lines")
    line = f'echo "${name}"'
    assert ran(Task("a", plugin=container("/bin/sh", "-c", line), env={name: "/mine"}))["a"].value == "/mine"
    lines = ran(Task("a", plugin=container("/bin/sh", "-c", line), env={name: "/mine\nelse"}))["a"].value
    assert lines == "/mine\nelse"
    assert f"{name}=/mine\nelse" in engine.last()["options"]["--env"]
    secret = ran(Task("a", plugin=container("/bin/sh", "-c", line), env={name: {"secret": "TOKEN"}}))["a"].error
    assert isinstance(secret, containers.SecretVisible)


def test_docker_makes_files_as_the_user_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = Engine(tmp_path, "docker")
    monkeypatch.setenv(ENGINE_VARIABLE, str(docker.path))
    monkeypatch.setattr("asterism.base.operating_system.user_id", lambda: 1234)
    assert ran(Task("a", plugin=container("echo", "b")))["a"].value == "b"
    assert docker.last()["options"]["--user"] == [f"1234:{os.getgid()}"]
    assert containers.remove_words("/usr/bin/docker", ["a"]) == ["/usr/bin/docker", "rm", "--force", "a"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"image": "-v"}, "'-v' is not the name of an image"),
        ({"image": ""}, "'' is not the name of an image"),
        ({"image": "a", "memory": "lots"}, "memory: 'lots' is not valid (examples: 512m, 2g)"),
        ({"image": "a", "cpus": 0.0}, "cpus is a number above 0"),
        ({"image": "a", "network": "host --privileged"}, "network: 'host --privileged' is not valid"),
        ({"image": "a", "network": "host"}, "network: 'host' is not valid"),
        ({"image": "dir:/srv/made-here"}, "'dir:/srv/made-here' is not the name of an image"),
        ({"image": "oci-archive:/tmp/a.tar"}, "'oci-archive:/tmp/a.tar' is not the name of an image"),
        ({"image": "a", "pull": "often"}, "pull must be 'missing', 'always' or 'never', not 'often'"),
        ({"image": "a", "volume": "/:/host"}, "unknown key 'volume'"),
        ({"argv": ["a"]}, "the key 'image' is missing"),
    ],
)
def test_mistakes(fields: dict[str, Any], text: str) -> None:
    assert text in str(check_plugin({"container": fields}))


def test_an_input_is_no_option_of_the_engine(engine: Engine) -> None:
    error = ran(Task("a", plugin={"container": {"image": "{image}"}}, inputs={"image": "--privileged"}))["a"].error
    assert str(error) == "'--privileged' is not the name of an image"


def test_an_input_is_no_image_in_a_file_of_the_device(engine: Engine) -> None:
    error = ran(Task("a", plugin={"container": {"image": "{image}"}}, inputs={"image": "dir:/srv/a"}))["a"].error
    assert str(error) == "'dir:/srv/a' is not the name of an image"


@pytest.mark.parametrize("name", ["*", "AWS_*", "A B", "-x"])
def test_a_variable_is_no_pattern_of_those_of_the_device(name: str, engine: Engine) -> None:
    error = ran(Task("a", plugin=container("env"), env={name: "x"}))["a"].error
    assert str(error) == f"{name!r} is not the name of a variable of a container"


# -- devices -----------------------------------------------------------------------------------------------------------


def test_only_a_device_with_an_engine_announces_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "plugin:container" in plugin_capabilities()
    monkeypatch.setenv(ENGINE_VARIABLE, "no-such-engine")
    assert "plugin:container" not in plugin_capabilities()
    why = "ASTERISM_CONTAINER_ENGINE is 'no-such-engine', and there is no such command on this device"
    assert check(Workflow("w", plugin=container("a"))) == why


def test_an_engine_that_does_not_answer_is_not_the_fault_of_the_work(engine: Engine) -> None:
    engine.path.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    with pytest.raises(DeviceUnavailable, match="does not answer: the command exited with 1: Cannot connect"):
        execute(Workflow("w", plugin=container("a")))


def test_a_policy_names_it_and_needs_to_name_no_program(engine: Engine) -> None:
    flow = Workflow("w", plugin=container("echo", "b"))
    assert execute(flow, None, DevicePolicy(Rules(plugins=("container",)), "p")) == "b"
    assert "does not allow the plug-in 'container'" in str(check(flow, None, DevicePolicy(Rules(commands=("*",)), "p")))


# -- no container outlives its task ------------------------------------------------------------------------------------

FOREVER = ("sh", "-c", "trap '' TERM; sleep 1000 & wait; wait; sleep 1000")
"""It does not stop when it is asked to."""


async def test_a_timeout_and_a_cancellation_remove_the_container(engine: Engine) -> None:
    plan = Constellation("plan")
    plan.add(Task("a", plugin=container(*FOREVER)))
    orchestrator = Orchestrator([LocalDevice("here", grace=0.1)])
    running = asyncio.create_task(orchestrator.run(plan))
    async with asyncio.timeout(PATIENCE):
        started = await engine.started()
        await orchestrator.cancel("plan")
        await running
        await engine.gone(started)


async def test_ablation_without_its_removal_a_container_outlives_the_task(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(action: Container, attempt: Any) -> None:
        return

    monkeypatch.setattr(Container, "cancel", nothing)
    executor = executors(grace=0.1)
    work = asyncio.create_task(executor.execute(Reports().work(Workflow("w", plugin=container(*FOREVER)))))
    async with asyncio.timeout(PATIENCE):
        started = await engine.started()
        work.cancel()
        await asyncio.wait([work])
    assert is_alive(started["pid"])
    executor.close()


class Kept:
    """Output that is kept, and what records it."""

    def __init__(self) -> None:
        self.mask, self.text = Mask(), b""

    def recorder(self) -> Kept:
        return self

    def hear(self, pipe: int, data: bytes) -> None:
        self.text += data


async def test_the_next_epoch_of_a_run_removes_what_the_last_has_left(engine: Engine) -> None:
    left = subprocess.Popen(["sleep", "1000"], start_new_session=True)  # noqa: ASYNC220
    record = {"pid": left.pid, "labels": ["asterism.run=r1", "asterism.epoch=2"]}
    (engine.state / "asterism-r1-2-1f-7f3a.json").write_text(json.dumps(record))
    (engine.state / "other.json").write_text(json.dumps({"pid": 0, "labels": ["asterism.run=r2"]}))
    executor, kept = executors(), Kept()
    work = Reports().work(Workflow("w", plugin=container("echo", "b")))._replace(output=cast("Any", kept))
    assert await executor.execute(work) == "b"
    assert kept.text.startswith(b"removing what an earlier attempt has left: asterism-r1-2-1f-7f3a\n")
    assert left.wait(PATIENCE) == -signal.SIGKILL
    assert [file.name for file in engine.state.glob("*.json")] == ["other.json"]
    (engine.state / "other.json").unlink()
    executor.close()


DEVICE = """
import asyncio, sys
from asterism import Run, Workflow
from tests.fleet.device.device_scenes import Reports, executors

work = Reports().work(Workflow("w", plugin={"container": {"image": "alpine", "argv": sys.argv[1:]}}))
asyncio.run(executors(session="old").execute(work))
"""


async def test_a_device_that_comes_too_late_leaves_the_container_of_the_next_epoch(engine: Engine) -> None:
    newer = {"pid": 0, "labels": ["asterism.run=r1", "asterism.epoch=70"]}
    (engine.state / "asterism-r1-70-1f-7f3a.json").write_text(json.dumps(newer))
    executor = executors()
    assert await executor.execute(Reports().work(Workflow("w", plugin=container("echo", "b")))) == "b"
    assert [file.name for file in engine.state.glob("*.removed")] == []
    (engine.state / "asterism-r1-70-1f-7f3a.json").unlink()
    executor.close()


async def test_a_removal_that_fails_does_not_turn_a_cancellation_into_a_failure(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Older engines fail if the container is gone already."""
    begin, script = engine.path.read_text().split("\n", 1)
    broken = 'if [ "$1" = rm ]; then echo "Error: no such container" >&2; exit 1; fi'
    engine.path.write_text(f"{begin}\n{broken}\n{script}")
    executor = executors(grace=0.1)
    work = asyncio.create_task(executor.execute(Reports().work(Workflow("w", plugin=container(*FOREVER)))))
    async with asyncio.timeout(PATIENCE):
        await engine.started()
        work.cancel()
        await asyncio.wait([work])
    assert work.cancelled()
    assert "the plug-in 'container' may have left something behind: CommandFailed: the command exited" in caplog.text
    executor.close()


def device_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", DEVICE, *FOREVER], start_new_session=True)


def guard_of(process: subprocess.Popen[bytes]) -> int:
    """The process id of the guard: a child of the process with no program of its own."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    words = {int(child): Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in children}
    [guard] = [child for child, argv in words.items() if b"-I" in argv]
    return guard


async def test_the_guard_removes_the_container_of_a_process_that_was_killed(engine: Engine) -> None:
    process = device_process()
    async with asyncio.timeout(PATIENCE):
        started = await engine.started()
        process.kill()
        process.wait()
        await engine.gone(started)


async def test_the_next_session_removes_the_container_if_the_guard_was_killed_too(engine: Engine) -> None:
    """Shows also that it stays without both: nothing else removes it."""
    process = device_process()
    async with asyncio.timeout(PATIENCE):
        started = await engine.started()
        os.kill(guard_of(process), signal.SIGKILL)
        process.kill()
        process.wait()
        assert is_alive(started["pid"])
        process_records.kill_orphans("kitchen", "", "new")
        await engine.gone(started)


async def test_a_lease_that_is_not_renewed_removes_the_container(engine: Engine) -> None:
    executor = DeviceExecutor(DevicePolicy.open(), device="kitchen", session="s1")
    work = Reports().work(Workflow("w", plugin=container(*FOREVER)))._replace(lease=1.5)
    running = asyncio.create_task(executor.execute(work))
    async with asyncio.timeout(PATIENCE):
        started = await engine.started()
        await asyncio.wait([running])
        await engine.gone(started)
    executor.close()


def test_ablation_without_the_file_undo_nothing_is_removed(tmp_path: Path) -> None:
    done = tmp_path / "done"
    guard_main.undo(os.fsencode(tmp_path))
    assert not done.exists()
    (tmp_path / "undo").write_bytes(b"\0".join(map(os.fsencode, ("/bin/sh", "-c", f"touch '{done}'"))))
    guard_main.undo(os.fsencode(tmp_path))
    soon(done.exists)


# -- fleets ------------------------------------------------------------------------------------------------------------


async def test_a_fleet_gives_it_to_the_device_that_has_an_engine(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Workflow("w", plugin=container("echo", "b"))
    async with asyncio.timeout(PATIENCE), await Fleet.open(f"sqlite:///{tmp_path}/fleet.db") as fleet:
        monkeypatch.setattr("asterism.fleet.device.agent.plugin_capabilities", frozenset)
        plain = DeviceAgent(fleet, "plain", monitor_every=0.05)
        monkeypatch.undo()
        monkeypatch.setenv(ENGINE_VARIABLE, str(engine.path))
        tasks = [asyncio.create_task(plain.run())]
        await plain.joined.wait()
        run: Run = await fleet.create(flow)
        assert "it needs the plug-in 'container', which no device has" in str(await explain_run(fleet, run.id))
        able = DeviceAgent(fleet, "able", monitor_every=0.05)
        assert able.session.can == {"plugin:container"}
        tasks.append(asyncio.create_task(able.run()))
        ended = await fleet.wait(run.id)
        assert (ended.device, ended.output) == ("able", "b")
        for device in (plain, able):
            device.drain(hand_back=True)
        await asyncio.gather(*tasks)


# -- a real engine -----------------------------------------------------------------------------------------------------

IMAGE = os.environ.get("ASTERISM_TEST_IMAGE", "docker.io/library/busybox:latest")


def why_not() -> str | None:
    """Why no real engine can be tried; None if one can."""
    path = next(filter(None, map(shutil.which, containers.ENGINES)), None)
    if path is None:
        return "neither podman nor docker is installed"
    for words, what in ((["ps"], "does not answer"), (["image", "inspect", IMAGE], f"has no image {IMAGE}")):
        if subprocess.run([path, *words], capture_output=True, check=False, timeout=PATIENCE).returncode:
            return f"{path} {what}"
    return None


def test_with_a_real_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    why = why_not()
    if why is not None:
        pytest.skip(f"the action container is tried with the stand-in only: {why}")
    monkeypatch.delenv(ENGINE_VARIABLE)
    work = container("sh", "-c", "cat part.txt > out.txt; cat out.txt", image=IMAGE, memory="64m", network="none")
    result = ran(
        Task("a", shell="echo one > part.txt", outputs={"part": "part.txt"}),
        Task("b", plugin=work, inputs={"parts": {"files_from": "a.part"}}, outputs={"out": "out.txt"}),
        Task("c", plugin=container("sleep", "1000", image=IMAGE), timeout=3.0),
    )
    assert result["b"].value == "one"
    assert "timeout" in str(result["c"].error)
    engine = containers.find_engine()
    assert engine is not None
    listing = [engine, "ps", "--all", "--quiet", "--filter", "label=asterism.task=c"]
    assert subprocess.run(listing, capture_output=True, check=True).stdout == b""
