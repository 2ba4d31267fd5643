"""Inputs of a command as variables and files, on a local device and on a device of a fleet."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from asterism import LocalDevice, Orchestrator, Task, TooLarge
from asterism.execution import command_inputs
from asterism.execution.command_inputs import LONGEST_VARIABLE, InputVariable, passable
from asterism.execution.process_guard import Guard
from asterism.execution.task_inputs import MissingInput
from tests.fleet.device.device_scenes import command, execute, shell
from tests.orchestrator.orchestrator_scenes import deadline, independent
from tests.process_scenes import PATIENCE, soon, soon_async

LARGE = "x" * 200_000
ROWS = {"rows": ["é", 1, None] * 100_000}

Run = Callable[..., Any]


def on_local_device(inputs: Mapping[str, Any], **work: Any) -> Any:
    async def main() -> Any:
        return await deadline(Orchestrator([LocalDevice("device")]).run(independent(Task("a", inputs=inputs, **work))))

    ended = asyncio.run(main())["a"]
    if ended.error is not None:
        raise ended.error
    return ended.value


def on_fleet_device(inputs: Mapping[str, Any], **work: Any) -> Any:
    made = command(*work.pop("argv"), **work) if "argv" in work else shell(work.pop("shell"), **work)
    return execute(made, dict(inputs))


everywhere = pytest.mark.parametrize("run", [on_local_device, on_fleet_device])


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def left_over(folder: Path) -> list[Path]:
    """The files of inputs in a folder."""
    return [path for path in folder.rglob("*") if path.is_file() and path.name[:2] == "1-"]


# -- files -------------------------------------------------------------------------------------------------------------


@everywhere
def test_every_input_is_a_file_as_long_as_the_command_runs(run: Run, tmp_path: Path) -> None:
    inputs = {"text": "a b\n", "data": {"k": [1]}, "not-a-name": 1}
    assert run(inputs, shell='cat "$ASTERISM_INPUT_FILE_text" "$ASTERISM_INPUT_FILE_data"') == 'a b\n{"k": [1]}'
    assert run(inputs, argv=["sh", "-c", 'cat "$ASTERISM_INPUT_FILE_text"; env | grep -c INPUT_FILE']) == "a b\n2"
    assert left_over(tmp_path) == []


@everywhere
def test_an_input_of_any_size_is_in_its_file(run: Run) -> None:
    program = "import json, os; print(len(json.load(open(os.environ['ASTERISM_INPUT_FILE_data']))['rows']))"
    assert run({"data": ROWS}, argv=[sys.executable, "-c", program]) == "300000"
    assert run({"v": LARGE}, shell='wc -c < "$ASTERISM_INPUT_FILE_v"') == "200000"


@everywhere
def test_the_file_of_a_secret_is_private(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value")
    line = 'f="$ASTERISM_INPUT_FILE_token"; cat "$f"; stat -c " %a" "$f" "$(dirname "$f")"'
    assert run({"token": {"secret": "MY_TOKEN"}}, shell=line).split() == ["s3cr3t-value", "600", "700"]
    assert left_over(tmp_path) == []


async def test_the_files_of_a_cancelled_command_are_removed(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    task = Task("a", shell=f'echo "$ASTERISM_INPUT_FILE_v" > {noted}; sleep 1000', inputs={"v": 1})
    orchestrator = Orchestrator([LocalDevice("device", grace=PATIENCE)], grace=PATIENCE)
    running = asyncio.create_task(orchestrator.run(independent(task, id="p")))
    await soon_async(lambda: noted.exists() and noted.read_text().endswith("\n"))
    assert Path(noted.read_text().strip()).read_text() == "1"
    await deadline(orchestrator.cancel("p"))
    await deadline(running)
    assert left_over(tmp_path) == []


def test_the_files_of_a_killed_process_are_removed_by_the_guard(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    program = textwrap.dedent(
        f"""
        import asyncio
        from asterism import Constellation, LocalDevice, Orchestrator, Task
        plan = Constellation()
        plan.add(Task("a", shell='echo "$ASTERISM_INPUT_FILE_v" > {noted}; sleep 1000', inputs={{"v": 1}}))
        asyncio.run(Orchestrator([LocalDevice("device")]).run(plan))
        """
    )
    orchestrator = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        soon(lambda: noted.exists() and noted.read_text().endswith("\n"))
        file = Path(noted.read_text().strip())
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        orchestrator.send_signal(signal.SIGKILL)
        orchestrator.wait(timeout=PATIENCE)
        assert soon(lambda: not file.parent.exists())
    finally:
        orchestrator.kill()
        orchestrator.wait()


def test_the_next_guard_knows_the_folders_of_the_one_that_was_killed(tmp_path: Path) -> None:
    kept, folder = tmp_path / "kept", tmp_path / "folder"
    kept.mkdir()
    folder.mkdir()
    guard = Guard()
    guard.remove_later(guard.admit(), str(folder))
    ended = guard.admit()
    guard.remove_later(ended, str(kept))
    guard.finished(ended)
    assert guard._process is not None
    guard._process.kill()
    guard._process.wait()
    guard.pipe()
    guard.close()
    assert (kept.exists(), folder.exists()) == (True, False)


# -- variables ---------------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize(
    "line",
    [
        *("echo ${#v}", 'echo "$v"', "echo ${v:-none}", "echo $ASTERISM_INPUT_v", "python3 -c 'print(\"$v\")'"),
        *("echo $((v + 1))", "printenv v | wc -c", "n=v; eval echo \\${#$n}"),
    ],
)
def test_a_large_input_that_a_line_uses_fails_before_it_starts(run: Run, line: str, tmp_path: Path) -> None:
    done = tmp_path / "done"
    with pytest.raises(
        TooLarge, match=r"the input 'v' cannot be the variable \$.*v: it has 200,000 bytes, and the"
    ) as no:
        run({"v": LARGE}, shell=f"touch {done}; {line}")
    assert str(no.value).endswith("let the command read the file $ASTERISM_INPUT_FILE_v")
    assert not done.exists()


@everywhere
def test_without_that_check_a_large_input_is_an_empty_variable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_inputs, "mentions_name", lambda work, name: False)
    assert run({"v": LARGE}, shell="echo ${#v}") == "0"


@everywhere
def test_a_large_input_that_a_word_or_the_environment_uses_fails_before_it_starts(run: Run) -> None:
    with pytest.raises(TooLarge, match=r"word 2 of the command has 200,001 bytes.* \$ASTERISM_INPUT_FILE_<name>"):
        run({"v": LARGE}, argv=["echo", "{v}!"])
    with pytest.raises(TooLarge, match=r"'v' cannot be the variable \$ASTERISM_INPUT_v: it has 200,000 bytes"):
        run({"v": LARGE}, argv=["sh", "-c", 'echo "$ASTERISM_INPUT_v"'])


def test_a_large_variable_of_the_environment_fails_before_it_starts() -> None:
    with pytest.raises(
        TooLarge, match=r"the variable BIG has 200,000 bytes, and the limit is 131,067; let the command"
    ):
        on_local_device({}, shell="true", env={"BIG": LARGE})
    with pytest.raises(TooLarge, match="the variable BIG has 200,000 bytes"):
        on_fleet_device({"v": LARGE}, shell="true", env={"BIG": {"from": "v"}})


@everywhere
def test_a_large_input_that_nothing_uses_is_unset_and_its_file_is_there(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTERISM_INPUT_v", "of another task")
    line = 'echo "${ASTERISM_INPUT_w-unset} $(env | grep -c "^ASTERISM_INPUT_v=") $(wc -c < "$ASTERISM_INPUT_FILE_v")"'
    assert run({"v": LARGE, "w": 1}, shell=line.replace("INPUT_v=", "INPUT_[u-x]=")) == "1 1 200000"


@everywhere
def test_an_input_with_a_nul_character_is_not_an_empty_variable(run: Run) -> None:
    with pytest.raises(TooLarge, match=r"'v' cannot be the variable \$v: it has a NUL character, which no command"):
        run({"v": "a\0b"}, shell='echo "$v"')
    assert run({"v": "a\0b"}, shell='wc -c < "$ASTERISM_INPUT_FILE_v"') == "3"


@everywhere
def test_many_inputs_that_are_too_large_together(run: Run) -> None:
    inputs = {f"v{number}": "x" * 100_000 for number in range(70)}
    assert run(inputs, shell='echo "${#v1} $(wc -c < "$ASTERISM_INPUT_FILE_v69")"') == "100000 100000"
    line = " ".join(f"${name}" for name in inputs)
    with pytest.raises(TooLarge, match=r"the words and variables of the command have 7,\d+,\d+ bytes, and the limit"):
        run(inputs, shell=f": {line}")


@everywhere
def test_two_inputs_that_would_be_the_same_variable_are_refused(run: Run) -> None:
    with pytest.raises(MissingInput, match="'x' and 'FILE_x' would both be the variable ASTERISM_INPUT_FILE_x; rename"):
        run({"x": 1, "FILE_x": 2}, shell="true")


def test_what_fits_exactly_is_passed() -> None:
    text = "x" * (LONGEST_VARIABLE - 2)
    assert passable(["a"], {"v": InputVariable("v", text, True)}) == {"v": text}
    assert subprocess.run(["sh", "-c", "echo ${#v}"], env={"v": text}, capture_output=True, check=True).stdout
    with pytest.raises(TooLarge, match="131,070 bytes, and the limit is 131,069"):
        passable(["a"], {"v": InputVariable("v", text + "x", True)})


def test_a_system_without_a_known_limit_passes_a_mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: -1)
    texts = {f"v{number}": InputVariable(f"v{number}", "x" * 100_000, False) for number in range(20)}
    assert len(passable([], texts)) == 10
    monkeypatch.delattr(os, "sysconf")
    assert len(passable([], texts)) == 10
