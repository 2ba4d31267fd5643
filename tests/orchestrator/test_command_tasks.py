"""Commands as child processes: their environment, their output, and their end with the orchestrator."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Task, TooLarge
from asterism.execution import process_guard
from asterism.execution.processes import OUTPUT_LIMIT, CommandFailed
from asterism.report.result_summary import result_json
from tests.orchestrator.orchestrator_scenes import after, chain, deadline, independent, why_of
from tests.process_scenes import PATIENCE, alive, soon, soon_async

PYTHON = sys.executable


def execute(*tasks: Task, seconds: float = 300.0, **options: Any) -> Any:
    """Run tasks one after the other, in real time."""

    async def main() -> Any:
        orchestrator = Orchestrator([LocalDevice("device", **options)])
        return await deadline(orchestrator.run(chain(*tasks)), seconds)

    return asyncio.run(main())


def cancel_at_every_turn(task: Task) -> None:
    """Begin to run a task, and cancel it after one turn of the loop; then again after two, and so on."""

    async def main(turns: int) -> None:
        running = asyncio.create_task(
            Orchestrator([LocalDevice("device", grace=0.2)], grace=0.2).run(independent(task))
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deadline(running)

    for turns in range(1, 16):
        asyncio.run(main(turns))


def output(task: Task) -> Any:
    result = execute(task)
    error = result[task.id].error
    if error is not None:
        raise error
    return result[task.id].value


def pids(path: Path, count: int = 1) -> list[int]:
    """The pids that a command has written, one per line; empty until all are there."""
    lines = path.read_text().split("\n") if path.exists() else []
    return [int(line) for line in lines[:-1]] if len(lines) > count else []


# -- what comes back ---------------------------------------------------------------------------------------------------


def test_a_command_returns_its_output() -> None:
    assert output(Task("a", argv=["echo", "hello", "two  spaces; $HOME"])) == "hello two  spaces; $HOME"


def test_a_shell_line_is_a_shell_line() -> None:
    assert output(Task("a", shell="printf '%s\\n' one two three | grep -c o")) == "2"


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ('{"a": [1, 2.5, null, true]}', {"a": [1, 2.5, None, True]}),
        ("  [1, 2]\n\n", [1, 2]),
        ("{not json", "{not json"),
        ("42", "42"),
        ("", ""),
        ("line 1\nline 2\n", "line 1\nline 2"),
    ],
)
def test_output_that_is_json_is_parsed_and_other_output_is_text(printed: str, value: Any) -> None:
    assert output(Task("a", argv=["printf", "%s", printed])) == value


def test_errors_that_a_successful_command_prints_are_not_part_of_its_result() -> None:
    assert output(Task("a", shell="echo out; echo err >&2")) == "out"


def test_a_failed_command_reports_its_exit_code_and_last_line() -> None:
    result = execute(Task("a", shell="echo first >&2; echo 'the disk is full' >&2; exit 3"))
    error = result["a"].error
    assert isinstance(error, CommandFailed)
    assert str(error) == "the command exited with 3: the disk is full"
    assert (error.code, error.output) == (3, "first\nthe disk is full\n")
    assert "exited with 3: the disk is full" in why_of(result, "a", "failed")


def test_a_failed_command_with_empty_stderr_is_quoted_from_stdout() -> None:
    assert str(execute(Task("a", shell="echo 'from stdout'; exit 1"))["a"].error) == (
        "the command exited with 1: from stdout"
    )


def test_a_command_ended_by_a_signal_names_it() -> None:
    error = execute(Task("a", shell="kill -9 $$"))["a"].error
    assert str(error) == "the command was ended by SIGKILL"


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="there are no real-time signals here")
def test_a_command_ended_by_an_unnamed_signal_fails() -> None:
    number = signal.SIGRTMIN + 3
    error = execute(Task("a", shell=f"kill -{number} $$"))["a"].error
    assert isinstance(error, CommandFailed)
    assert str(number) in str(error)


def test_a_command_that_does_not_exist_fails_and_is_named() -> None:
    error = execute(Task("a", argv=["no-such-command-anywhere"]))["a"].error
    assert isinstance(error, FileNotFoundError)
    assert "no-such-command-anywhere" in str(error)


def test_a_command_is_retried_like_any_task(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    task = Task("a", shell=f"test -e {mark} || {{ touch {mark}; exit 1; }}", retries=1, backoff=0.001)
    result = execute(task)
    assert result["a"].status == "completed"
    assert result["a"].attempts == 2


def test_a_command_finds_its_input_empty() -> None:
    assert output(Task("a", argv=["cat"])) == ""


LONG = 3 * OUTPUT_LIMIT
PRINT_LONG = f"import sys; sys.stdout.write('x' * {LONG}); sys.stderr.write('y' * {LONG}); print('end')"


def test_the_whole_output_of_a_command_is_its_result() -> None:
    assert output(Task("a", argv=[PYTHON, "-c", PRINT_LONG])) == "x" * LONG + "end"


def test_a_result_above_the_limit_fails_its_task_once_the_command_has_ended() -> None:
    done = f"{PRINT_LONG}; print('z' * {LONG})"
    error = execute(Task("a", argv=[PYTHON, "-c", done]), result_limit=LONG)["a"].error
    assert isinstance(error, TooLarge)
    assert str(error) == (
        f"the output of the command has {2 * LONG + 5:,} bytes, and the limit is {LONG:,}: write it to a file and pass "
        "on the name of the file, or raise the limit with: "
        "asterism run --result-limit SIZE, or LocalDevice(result_limit=…)"
    )
    assert execute(Task("a", argv=["echo", "12345"]), result_limit=6)["a"].value == "12345"
    assert isinstance(execute(Task("a", argv=["echo", "123456"]), result_limit=6)["a"].error, TooLarge)


def test_a_command_that_fails_after_much_output_reports_its_end() -> None:
    error = execute(Task("a", argv=[PYTHON, "-c", f"{PRINT_LONG}; sys.exit(3)"]), result_limit=10)["a"].error
    assert isinstance(error, CommandFailed)
    assert error.output == "y" * OUTPUT_LIMIT


def test_the_result_of_a_function_has_the_same_limit_where_results_are_json() -> None:
    def rows() -> list[str]:
        return ["abc", "def"]

    options = {"json_results": True, "result_limit": 12}
    assert "the result of task 'a' has 13 bytes, and the limit is 12" in str(
        execute(Task("a", rows), **options)["a"].error
    )
    assert execute(Task("a", rows), **{**options, "result_limit": 13})["a"].value == ["abc", "def"]
    assert isinstance(execute(Task("a", lambda: "é" * 7), **options)["a"].error, TooLarge)
    assert execute(Task("a", lambda: 7), **options)["a"].value == 7
    assert execute(Task("a", rows), result_limit=1)["a"].value == ["abc", "def"]
    with pytest.raises(ValueError, match="result_limit must be a number of bytes, 0 or more, not -1"):
        LocalDevice("device", result_limit=-1)


def test_errors_that_are_not_utf_8_do_not_fail_the_task() -> None:
    assert output(Task("a", shell=r"printf 'caf\351' >&2; echo done")) == "done"


async def test_commands_run_beside_each_other() -> None:
    plan = independent(*(Task(f"t{n}", argv=["echo", str(n)]) for n in range(20)))
    result = await deadline(Orchestrator([LocalDevice("device", slots=8)]).run(plan))
    assert [task.value for task in result] == [str(n) for n in range(20)]


def test_processes_left_in_the_group_of_a_command_end_with_it(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    result = execute(Task("a", shell=f"sleep 1000 & echo $! > {noted}; echo done"), seconds=300)
    assert result["a"].value == "done"
    (left,) = pids(noted)
    soon(lambda: not alive(left))


# -- what it sees ------------------------------------------------------------------------------------------------------


def test_a_command_sees_its_inputs_environment_and_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_OUTSIDE", "outside")
    plan = Constellation("p")
    plan.add(Task("up-stream", call=after(0, {"n": [1, 2]})))
    plan.add(
        Task(
            "a",
            shell='echo "$FROM_OUTSIDE|$WORD|$WHOLE|$PART|$EXTRA"'
            ' "$ASTERISM_PLAN|$ASTERISM_TASK|$ASTERISM_ATTEMPT|$ASTERISM_EPOCH"',
            inputs={
                "WORD": "a b",
                "WHOLE": {"from": "up-stream"},
                "PART": {"from": "up-stream", "select": "result.n[1]"},
            },
            env={"EXTRA": {"from": "up-stream", "select": "size(result.n)"}},
        ),
        after="up-stream",
    )
    result = Orchestrator([LocalDevice("device")]).run_sync(plan)
    assert result["a"].value == 'outside|a b|{"n": [1, 2]}|2|2 p|a|1|2'


def test_inputs_fill_command_arguments_and_never_split_or_inject() -> None:
    task = Task("a", argv=["printf", "%s|", "{x}", "{{x}}", "a{x}b"], inputs={"x": "1 $(echo no); 'q'"})
    assert output(task) == "1 $(echo no); 'q'|{x}|a1 $(echo no); 'q'b|"


def test_an_argument_with_an_unknown_input_fails_and_names_it() -> None:
    error = execute(Task("a", argv=["echo", "{nothing}"]))["a"].error
    assert "names {nothing}, but there is no such input" in str(error)


def test_a_secret_reaches_the_command_and_never_its_error_or_its_story(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value")
    options: dict[str, Any] = {"env": {"TOKEN": {"secret": "MY_TOKEN"}}, "inputs": {"word": {"secret": "MY_TOKEN"}}}
    result = execute(
        Task("check", shell='test "$TOKEN" = s3cr3t-value && echo right', **options),
        Task("text", shell='echo "token: $TOKEN"', **options),
        Task("json", shell="""printf '{"t": "%s", "l": ["%s"]}' "$TOKEN" "$TOKEN" """, **options),
        Task("argv", argv=["echo", "{word}"], **options),
        Task("fails", shell='echo "bad $TOKEN" >&2; exit 1', **options),
    )
    assert result["check"].value == "right"
    assert result["text"].value == "token: s3cr3t-value"  # results are data, and never altered
    assert result["json"].value == {"t": "s3cr3t-value", "l": ["s3cr3t-value"]}
    assert result["argv"].value == "s3cr3t-value"
    error = result["fails"].error
    assert isinstance(error, CommandFailed)
    assert str(error) == "the command exited with 1: bad [secret]"
    assert "s3cr3t-value" not in repr(vars(error)) + repr(error.args) + "\n".join(map(str, result.story()))


def test_a_secret_made_of_digits_is_masked_where_a_result_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PIN", "8675309")
    task = Task("a", shell="""printf '{"pin": %s}' "$PIN" """, env={"PIN": {"secret": "MY_PIN"}})
    result = execute(task)
    assert result["a"].value == {"pin": 8675309}
    assert result_json(result)["tasks"]["a"]["value"] == {"pin": "[secret]"}


async def exits(token: str) -> None:
    sys.exit(f"cannot log in with {token}")


async def groups(token: str) -> None:
    raise ExceptionGroup("several", [ValueError(f"wrong token {token}")])


async def causes(token: str) -> None:
    try:
        raise KeyError(token)
    except KeyError as error:
        raise RuntimeError("wrapped") from error


async def notes(token: str) -> None:
    error = RuntimeError("noted")
    error.add_note(f"the token was {token}")
    raise error


@pytest.mark.parametrize("function", [exits, groups, causes, notes])
def test_a_secret_is_hidden_in_whatever_a_function_raises(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value")
    result = execute(Task("a", call=function, inputs={"token": {"secret": "MY_TOKEN"}}))
    error = result["a"].error
    assert error is not None
    shown = "\n".join([*map(str, result.story()), *traceback.format_exception(error)])
    assert "s3cr3t-value" not in shown


def test_a_secret_that_is_not_there_fails_the_task_and_is_named() -> None:
    result = execute(Task("a", argv=["true"], env={"TOKEN": {"secret": "NO_SUCH_SECRET"}}))
    assert "the environment has no secret 'NO_SUCH_SECRET'" in str(result["a"].error)


# -- stopping ----------------------------------------------------------------------------------------------------------


def cancel_when(path: Path, task: Task, count: int = 1, grace: float = PATIENCE) -> tuple[Any, list[int]]:
    """Run a task until it has written its pids, then cancel the plan."""

    async def main() -> Any:
        orchestrator = Orchestrator([LocalDevice("device", grace=grace)], grace=PATIENCE)
        running = asyncio.create_task(orchestrator.run(independent(task, id="p")))
        noted = await soon_async(lambda: pids(path, count))
        await deadline(orchestrator.cancel("p"))
        return await deadline(running), noted

    return asyncio.run(main())


def test_cancelling_asks_the_command_to_stop(tmp_path: Path) -> None:
    noted, said = tmp_path / "pid", tmp_path / "said"
    script = f"trap 'echo bye > {said}; exit 0' TERM; echo $$ > {noted}; while :; do sleep 0.01; done"
    result, (pid,) = cancel_when(noted, Task("a", shell=script))
    assert result["a"].status == "cancelled"
    assert said.read_text() == "bye\n"
    assert not alive(pid)


def test_cancelling_kills_a_command_that_does_not_listen_after_the_grace(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    script = f"trap '' TERM; echo $$ > {noted}; while :; do sleep 0.01; done"
    result, (pid,) = cancel_when(noted, Task("a", shell=script), grace=0.1)
    assert result["a"].status == "cancelled"
    soon(lambda: not alive(pid))


def test_cancelling_reaches_the_whole_group(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    script = f"sleep 1000 & echo $! >> {noted}; (sleep 1000 & echo $! >> {noted}; wait) & echo $$ >> {noted}; wait"
    _, numbers = cancel_when(noted, Task("a", shell=script), count=3)
    assert len(numbers) == 3
    for number in numbers:
        soon(lambda number=number: not alive(number))


def test_a_command_that_outlives_its_timeout_is_stopped(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    result = execute(Task("a", shell=f"echo $$ > {noted}; exec sleep 1000", timeout=0.5))
    assert isinstance(result["a"].error, TimeoutError)
    soon(lambda: not any(map(alive, pids(noted))))


async def test_cancelling_the_awaiting_coroutine_ends_the_command_before_it_returns(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    plan = independent(Task("a", shell=f"echo $$ > {noted}; exec sleep 1000"))
    running = asyncio.create_task(Orchestrator([LocalDevice("device")]).run(plan))
    (pid,) = await soon_async(lambda: pids(noted))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deadline(running)
    assert not alive(int(pid))


def test_cancelling_at_any_moment_of_the_start_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = tmp_path / "pids"
    started: list[int] = []
    spawn = process_guard.Guard.spawn

    def noting(guard: process_guard.Guard, ticket: int, launch: process_guard.Launch) -> int:
        started.append(spawn(guard, ticket, launch))
        return started[-1]

    monkeypatch.setattr(process_guard.Guard, "spawn", noting)
    cancel_at_every_turn(Task("a", shell=f"echo $$ >> {noted}; exec sleep 1000"))
    assert started, "no turn was late enough for a process to start"
    for pid in [*pids(noted, 0), *started]:
        soon(lambda pid=pid: not alive(pid))


# -- the guard ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Records what the guard receives."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, False)
    monkeypatch.setattr(process_guard.Guard, "pipe", lambda self: writing)

    def read() -> tuple[list[int], list[int]]:
        os.set_blocking(reading, False)
        try:
            lines = os.read(reading, 1 << 20).decode().split()
        except BlockingIOError:
            lines = []
        begun = sorted(int(line[1:]) for line in lines if line[0] == "+")
        return begun, sorted(int(line[1:]) for line in lines if line[0] == "-")

    yield read
    os.close(reading)
    os.close(writing)


def test_the_guard_hears_of_the_beginning_and_the_end_of_every_command(ledger: Any) -> None:
    execute(Task("a", argv=["true"]), Task("b", shell="exit 1"))
    begun, ended = ledger()
    assert len(begun) == 2
    assert begun == ended


def test_the_guard_drops_the_pid_of_a_command_that_never_began(ledger: Any) -> None:
    """A pid that it keeps may belong to another process by the time it kills."""
    execute(Task("a", argv=["no-such-command-anywhere"]))
    begun, ended = ledger()
    assert begun == ended


def test_the_guard_drops_the_pid_of_a_command_cancelled_as_it_began(ledger: Any) -> None:
    cancel_at_every_turn(Task("a", argv=["sleep", "1000"]))
    begun, ended = ledger()
    assert begun, "no command was cancelled late enough to have begun"
    assert not Counter(begun) - Counter(ended)


async def test_a_device_that_left_leaves_no_guard_behind(tmp_path: Path) -> None:
    go, noted = tmp_path / "go", tmp_path / "pid"
    script = f"echo $$ > {noted}; while ! test -e {go}; do sleep 0.01; done"
    orchestrator = Orchestrator([LocalDevice("device"), LocalDevice("other")])
    await deadline(orchestrator.run(independent(Task("a", argv=["true"], device="device"), id="first")))
    running = asyncio.create_task(orchestrator.run(independent(Task("a", shell=script, device="device"), id="second")))
    await soon_async(lambda: pids(noted))
    orchestrator.leave("device")
    go.touch()
    await deadline(running)


async def test_the_end_of_one_orchestrator_does_not_end_the_commands_of_another_on_the_same_device(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    noted = tmp_path / "pid"
    device = LocalDevice("shared")
    script = f"echo $$ > {noted}; while ! test -e {go}; do sleep 0.01; done; echo survived"
    long = asyncio.create_task(Orchestrator([device]).run(independent(Task("long", shell=script), id="long")))
    await soon_async(lambda: pids(noted))
    await deadline(Orchestrator([device]).run(independent(Task("short", argv=["true"]), id="short")))
    go.touch()
    result = await deadline(long)
    assert result["long"].value == "survived"


def test_commands_work_in_a_second_event_loop() -> None:
    orchestrator = Orchestrator([LocalDevice("device")])
    for n in range(2):
        assert orchestrator.run_sync(independent(Task("a", argv=["echo", str(n)])))["a"].value == str(n)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_dead_orchestrator_takes_its_commands_with_it(tmp_path: Path, number: signal.Signals) -> None:
    noted = tmp_path / "pids"
    program = textwrap.dedent(
        f"""
        import asyncio
        import signal
        from asterism import Constellation, LocalDevice, Orchestrator, Task
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the test runner may ignore it
        plan = Constellation()
        for n in range(3):
            plan.add(Task(f"t{{n}}", shell="trap '' TERM; sleep 1000 & echo $! >> {noted}; echo $$ >> {noted}; wait"))
        asyncio.run(Orchestrator([LocalDevice("device", grace=0.2)], grace=0.2).run(plan))
        """
    )
    orchestrator = subprocess.Popen([PYTHON, "-c", program], stderr=subprocess.DEVNULL)
    try:
        numbers = soon(lambda: pids(noted, 6))
        assert all(map(alive, numbers))
        orchestrator.send_signal(number)
        orchestrator.wait(timeout=300)
        for pid in numbers:
            soon(lambda pid=pid: not alive(pid))
    finally:
        orchestrator.kill()
        orchestrator.wait()
        for pid in pids(noted, 0):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
