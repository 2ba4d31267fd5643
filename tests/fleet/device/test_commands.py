"""Commands as the work of a run: what they are reports, what they tell, and how they are stopped."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as generated
from hypothesis import settings
from hypothesis import strategies as st

from asterism.base.secret_mask import Mask
from asterism.core.errors import AsterismError, DeviceUnavailable, NotJson
from asterism.core.run.run import Progress, Run
from asterism.core.schedule.tick_values import TICK_INPUT, tick_on_request
from asterism.execution import guard_main, processes
from asterism.execution.processes import OUTPUT_LIMIT, CommandFailed
from asterism.execution.task_inputs import MissingInput
from asterism.fleet.device.executor import TAIL, LimitReached
from asterism.fleet.device.output_watcher import progress_of
from asterism.fleet.device.process_records import ProcessRecords
from asterism.fleet.device.run_inputs import literal
from asterism.fleet.policy.device_policy import DevicePolicy, Rules
from tests.fleet.device.device_scenes import Reports, check, command, execute, executors, lines, shell
from tests.process_scenes import PATIENCE, alive, soon, soon_async

PYTHON = sys.executable


# -- variables and inputs ----------------------------------------------------------------------------------------------


def test_a_command_gets_its_run_and_the_progress_of_the_attempt_before() -> None:
    names = ("RUN", "EPOCH", "DEVICE", "SESSION", "STEP", "TOTAL")
    line = 'echo "' + "|".join(f"$ASTERISM_{name}" for name in names) + '"'
    run = Run("r7", "work", 1, 0.0, "test", shell(line).work, epoch=4, progress=Progress(3, 10))
    assert execute(shell(line), run=run) == "r7|4|kitchen|s1|3|10"
    assert execute(shell(line)) == "r1|3|kitchen|s1||"
    assert execute(shell("set -u\n" + line)) == "r1|3|kitchen|s1||"
    assert execute(shell(line), run=run.changed(progress=Progress(3))) == "r7|4|kitchen|s1|3|"


def test_a_command_gets_plan_task_attempt_epoch_and_tick() -> None:
    names = ("PLAN", "TASK", "ATTEMPT", "EPOCH", "TICK", "TICK_DATE")
    line = 'echo "' + "|".join(f"$ASTERISM_{name}" for name in names) + '"'
    task = Run("r7", "plan:etl", 1, 0.0, "etl", shell(line).work, key="plan:etl/load/4", epoch=4)
    tick = {TICK_INPUT: tick_on_request("2026-11-17")}
    at = "2026-11-17T00:00:00+00:00|2026-11-17"
    assert execute(shell(line), tick, run=task) == f"etl|load|1|4|{at}"
    assert execute(shell(line), tick) == f"||1|3|{at}"  # of a workflow
    assert execute(shell(line)) == "||1|3||"


def test_variables_of_the_agent_itself_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUN", "EPOCH", "STEP", "TOTAL", "PROGRESS", "INPUT", "SESSION", "PLAN", "TASK", "ATTEMPT", "TICK"):
        monkeypatch.setenv(f"ASTERISM_{name}", "of another run")
    assert "of another run" not in execute(command("env"))


def test_inputs_fill_words_and_are_variables_and_are_in_a_file() -> None:
    inputs = {"file": "a b.mp4", "size": [1, 2], "range": {"from": "monday"}}
    assert execute(command("printf", "%s|", "{file}", "{size}", "{{x}}"), inputs) == "a b.mp4|[1, 2]|{x}|"
    assert execute(shell('echo "$file $size $range"'), inputs) == 'a b.mp4 [1, 2] {"from": "monday"}'
    assert execute(shell('cat "$ASTERISM_INPUT"'), inputs) == inputs
    assert execute(shell('cat "$ASTERISM_INPUT"')) == {}


def test_a_workflow_sets_variables_from_inputs() -> None:
    flow = shell('echo "$A|$B|$C"', env={"A": "x", "B": {"from": "n"}, "C": {"from": "deep", "select": "result.k"}})
    assert execute(flow, {"n": 5, "deep": {"k": "v"}}) == "x|5|v"
    with pytest.raises(MissingInput, match="refers to the input 'n', which the run does not have"):
        execute(flow, {"deep": {}})


@pytest.mark.parametrize("run_input", [None, "text", [1], 5])
async def test_an_input_that_is_no_object_fails_and_says_so(run_input: Any) -> None:
    reports = Reports()
    work = reports.work(shell("true"), "" if run_input is None else run_input)

    async def main() -> None:
        await executors().execute(work)

    with pytest.raises(MissingInput, match="must be an object of named values"):
        await main()
    assert executors().check(work.run.changed(input=work.input)) is None


def test_names_that_cannot_be_variables_are_in_the_file_all_the_same() -> None:
    inputs = {"": 1, "a=b": 2, "nul\0": 3, "ok": "yes\0no", "fine": 4}
    assert execute(shell('test "$fine" = 4 && cat "$ASTERISM_INPUT"'), inputs) == inputs


def test_a_large_input_is_read_from_its_file() -> None:
    inputs = {"text": "x" * 10_000_000, "n": 1}
    program = "import json, os; print(len(json.load(open(os.environ['ASTERISM_INPUT']))['text']), 'text' in os.environ)"
    assert execute(command(PYTHON, "-c", program), inputs) == "10000000 False"


def test_a_nul_character_in_a_word_fails_and_says_where() -> None:
    with pytest.raises(AsterismError, match="word 2 of the command has a NUL character"):
        execute(command("echo", "{x}"), {"x": "a\0b"})


# -- output and progress -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "value"),
    [('{"a": [1, null]}', {"a": [1, None]}), ("plain", "plain"), ("", ""), ("{no json", "{no json")],
)
def test_the_result_is_the_printed_output(printed: str, value: Any) -> None:
    assert execute(command("printf", "%s", printed)) == value


def test_a_result_that_json_cannot_hold_fails_the_work() -> None:
    with pytest.raises(NotJson, match=r"the result\.a is nan, which JSON cannot hold"):
        execute(command("echo", '{"a": NaN}'.replace("{", "{{").replace("}", "}}")))
    with pytest.raises(NotJson, match="nested more than 200 deep"):
        execute(command("echo", "[" * 250 + "]" * 250))
    with pytest.raises(NotJson, match="cannot be written as JSON"):
        execute(command("printf", "%s", r'["\ud800"]'))


def test_a_failed_command_reports_its_exit_code_and_its_last_output() -> None:
    with pytest.raises(CommandFailed, match="the command exited with 3: the disk is full") as caught:
        execute(shell("echo first >&2; echo the disk is full >&2; exit 3"))
    assert (caught.value.code, caught.value.output) == (3, "first\nthe disk is full\n")


def test_the_words_of_a_command_that_failed_are_bounded() -> None:
    with pytest.raises(CommandFailed) as caught:
        execute(command(PYTHON, "-c", "import sys; sys.exit('x' * 3000000)"))
    assert len(str(caught.value)) <= TAIL + 100


def test_the_whole_output_is_the_result_and_bytes_that_are_no_text_are_shown_but_no_result() -> None:
    reports = Reports()
    long = f"import sys; sys.stdout.buffer.write(b'x' * {3 * OUTPUT_LIMIT} + b'%s')"
    assert execute(command(PYTHON, "-c", long % "end")) == "x" * (3 * OUTPUT_LIMIT) + "end"
    with pytest.raises(NotJson, match=rf"not valid UTF-8 \(byte 0xff at offset {3 * OUTPUT_LIMIT:,}\)"):
        execute(command(PYTHON, "-c", long % r"\xff\xfeend"), reports=reports)
    assert reports.output[-1].endswith("x��end")
    assert len(reports.output[-1].encode()) <= TAIL


async def test_the_tail_has_both_pipes_and_is_reported_while_the_command_runs(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)

    async def main() -> Any:
        reports, made = Reports(), executors()
        flow = shell(f"echo one; echo two >&2; read line < {go}; echo $line")
        running = asyncio.create_task(made.execute(reports.work(flow)))
        await soon_async(lambda: any("one" in tail and "two" in tail for tail in reports.output))
        with open(go, "w") as pipe:  # noqa: ASYNC230 - the command waits for it
            pipe.write("three\n")
        value = await running
        made.close()
        return value, reports.output[-1]

    value, tail = await main()
    assert value == "one\nthree"
    assert sorted(tail.split()) == ["one", "three", "two"]


async def test_progress_is_reported_while_the_command_runs_and_at_its_end(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    reports, made = Reports(), executors()
    flow = shell(f'echo 1/10 >> "$ASTERISM_PROGRESS"; read line < {go}; echo 2/10 > "$ASTERISM_PROGRESS"')
    running = asyncio.create_task(made.execute(reports.work(flow)))
    await soon_async(lambda: reports.progress)
    with open(go, "w") as pipe:  # noqa: ASYNC230 - the command waits for it
        pipe.write("\n")
    await running
    made.close()
    assert reports.progress == [Progress(1, 10), Progress(2, 10)]


@pytest.mark.parametrize(
    ("text", "progress"),
    [
        (b"3/10", Progress(3, 10)),
        (b" 3 / 10 \r", Progress(3, 10)),
        (b"3", Progress(3)),
        (b"0/0", Progress(0, 0)),
        (b"-1", None),
        (b"three", None),
        (b"3/10/12", None),
        (b"9" * 16, None),
        ("٣".encode(), None),
    ],
)
def test_progress_is_a_step_or_a_step_of_a_total(text: bytes, progress: Progress | None) -> None:
    assert progress_of(text) == progress


@pytest.mark.parametrize(
    "line",
    [
        'rm "$ASTERISM_PROGRESS"',
        'rm "$ASTERISM_PROGRESS"; mkdir "$ASTERISM_PROGRESS"',
        'rm "$ASTERISM_PROGRESS"; mkfifo "$ASTERISM_PROGRESS"',
        'ln -sf /etc/passwd "$ASTERISM_PROGRESS"',
        'head -c 100000 /dev/zero > "$ASTERISM_PROGRESS"',
        'echo nonsense > "$ASTERISM_PROGRESS"',
        'rm -rf "$(dirname "$ASTERISM_PROGRESS")"',
    ],
)
def test_whatever_a_command_makes_of_its_files_does_no_harm(line: str, state: Path) -> None:
    reports = Reports()
    assert execute(shell(f"{line}; echo done"), reports=reports) == "done"
    assert reports.progress == []
    assert not list((state / "lives").iterdir())


def test_the_last_line_counts_however_many_there_are() -> None:
    reports = Reports()
    execute(shell('seq 1 5000 > "$ASTERISM_PROGRESS"; printf "\\n\\n" >> "$ASTERISM_PROGRESS"'), reports=reports)
    assert reports.progress[-1] == Progress(5000)


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_a_secret_reaches_the_command_and_no_text_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value")
    reports, inputs = Reports(), {"token": {"secret": "MY_TOKEN"}}
    assert (
        execute(shell('test "$token" = s3cr3t-value && echo "got $token"'), inputs, reports=reports)
        == "got s3cr3t-value"
    )
    assert execute(command("echo", "{token}"), inputs, reports=reports) == "s3cr3t-value"  # a result is data
    assert execute(shell('cat "$ASTERISM_INPUT"'), inputs) == inputs
    assert execute(shell("echo $T", env={"T": {"secret": "MY_TOKEN"}}), reports=reports) == "s3cr3t-value"
    assert reports.output[-1] == "[secret]\n"
    with pytest.raises(CommandFailed) as caught:
        execute(shell('echo "bad $token" >&2; exit 1'), inputs, reports=reports)
    assert str(caught.value) == "the command exited with 1: bad [secret]"
    assert "s3cr3t" not in repr(vars(caught.value)) + repr(reports.output)
    with pytest.raises(NotJson) as other:
        execute(shell("""printf '{"%s": NaN}' "$token" """), inputs)
    assert "s3cr3t" not in str(other.value)


def test_a_value_that_looks_like_a_secret_can_be_given_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value")
    data = {"secret": "MY_TOKEN"}
    for value in (data, {"$literal": data}, {"$literal": 1}, {"literal": data}, [data], "text"):
        inputs = {"token": literal(value)}
        assert execute(shell('echo "$token"'), inputs) == value
        assert execute(shell('cat "$ASTERISM_INPUT"'), inputs) == {"token": value}


def test_a_secret_that_the_device_does_not_have_is_its_own_lack_and_not_a_failure() -> None:
    inputs = {"token": {"secret": "NO_SUCH_SECRET"}}
    with pytest.raises(DeviceUnavailable, match="has no secret 'NO_SUCH_SECRET'"):
        execute(shell("true"), inputs)
    assert "has no secret 'NO_SUCH_SECRET'" in (check(shell("true"), inputs) or "")


def test_no_part_of_a_secret_shows_where_the_output_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "K7mQ9zXw2VbN4tRyPgLs"
    monkeypatch.setenv("MY_TOKEN", secret)
    reports = Reports()
    program = (
        "import os, sys\n"
        "t = os.environ['ASTERISM_INPUT_t']\n"
        f"sys.stdout.write(t * ({2 * OUTPUT_LIMIT} // len(t)) + 'end')\n"  # wherever it is cut, a secret is cut
    )
    with pytest.raises(CommandFailed) as caught:
        execute(command(PYTHON, "-c", program + "sys.exit(1)"), {"t": {"secret": "MY_TOKEN"}}, reports=reports)
    for text in (caught.value.output, *reports.output):
        rest = re.sub(r"^[a-z]*\]", "", text).replace("[secret]", "").replace("�", "")  # the mask may be cut, too
        assert rest in ("", "end"), rest[:40]


@settings(max_examples=300)
@generated(st.permutations('abcdefg%é"'), st.lists(st.text("xyz\n", max_size=3)), st.data())
def test_no_part_of_a_secret_shows_wherever_the_text_is_cut(
    letters: list[str], between: list[str], data: st.DataObject
) -> None:
    secret = "".join(letters[: data.draw(st.integers(8, 10))])
    mask = Mask({"TOKEN": secret})
    whole = secret.join(between)
    first = data.draw(st.integers(0, len(whole)))
    last = data.draw(st.integers(first, len(whole)))
    shown = mask.tail(whole[first:last], cut=True, growing=True)
    assert set(shown.replace("[secret]", "")) <= set("xyz\n")


# -- stopping ----------------------------------------------------------------------------------------------------------


def stopped_when(path: Path, count: int, line: str, times: int = 1, **options: Any) -> list[int]:
    """Start a shell line, cancel it once it has written so many process numbers, and return them."""

    async def main() -> list[int]:
        made = executors(**options)
        running = asyncio.create_task(made.execute(Reports().work(shell(line))))
        numbers = [int(line) for line in await soon_async(lambda: lines(path, count))]
        assert all(map(alive, numbers))
        for _ in range(times):
            running.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await running
        made.close()
        return numbers

    return asyncio.run(main())


def test_cancelling_asks_the_whole_group_to_stop(tmp_path: Path) -> None:
    noted, said = tmp_path / "noted", tmp_path / "said"
    line = f"trap 'echo bye > {said}; exit 0' TERM; sleep 1000 & echo $! >> {noted}; echo $$ >> {noted}; wait"
    for number in stopped_when(noted, 2, line, grace=PATIENCE):
        soon(lambda number=number: not alive(number))
    assert lines(said) == ["bye"]


def test_cancelling_kills_a_stubborn_command_after_the_grace_period(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    line = f"trap '' TERM; sleep 1000 & echo $! >> {noted}; echo $$ >> {noted}; while :; do wait; done"
    for number in stopped_when(noted, 2, line, grace=0.05):
        soon(lambda number=number: not alive(number))


def test_a_killed_command_has_ended_when_its_cancellation_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a killed process takes a while to end."""
    signal_group = processes._signal_group

    def late(group: int, number: signal.Signals) -> None:
        asyncio.get_running_loop().call_later(0.1, signal_group, group, number)

    monkeypatch.setattr(processes, "_signal_group", late)
    noted = tmp_path / "noted"
    (leader,) = stopped_when(noted, 1, f"trap '' TERM; echo $$ >> {noted}; while :; do sleep 0.01; done", grace=0.0)
    assert not alive(leader)


def test_cancelling_twice_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    line = f"trap '' TERM; echo $$ >> {noted}; while :; do sleep 0.01; done"
    for number in stopped_when(noted, 1, line, times=2, grace=10_000.0):
        soon(lambda number=number: not alive(number))


@pytest.mark.long
@pytest.mark.parametrize(
    "everything",
    # asyncio does not close the pipes of a command if its own task that connects them is cancelled, nor wait for it
    [
        False,
        pytest.param(
            True,
            marks=[
                pytest.mark.long,
                pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
                pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
            ],
        ),
    ],
)
def test_cancelling_at_any_moment_of_the_start_ends_soon_and_leaves_no_process(
    tmp_path: Path, everything: bool
) -> None:
    noted = tmp_path / "noted"

    async def main(turns: int) -> None:
        made = executors(grace=0.2)
        line = f"trap '' TERM; sleep 1000 & echo $! >> {noted}; echo $$ >> {noted}; while :; do sleep 0.01; done"
        running = asyncio.create_task(made.execute(Reports().work(shell(line))))
        for _ in range(turns):
            await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others if everything else [running]:  # everything: as when a program is interrupted
            task.cancel()
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        made.close()

    for turns in range(1, 16):
        asyncio.run(main(turns))
    for number in map(int, lines(noted, 0)):
        soon(lambda number=number: not alive(number))


async def test_a_stopped_command_has_reported_its_progress(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    reports, made = Reports(), executors()
    flow = shell(f'echo 4/9 > "$ASTERISM_PROGRESS"; echo $$ >> {noted}; exec sleep 1000')
    running = asyncio.create_task(made.execute(reports.work(flow)))
    await soon_async(lambda: lines(noted))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    made.close()
    assert reports.progress == [Progress(4, 9)]


def test_an_execution_that_outlives_its_limit_is_stopped_and_fails(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    flow = shell(f"echo $$ >> {noted}; exec sleep 1000", timeout=0.3)
    with pytest.raises(LimitReached, match=r"it exceeded its limit of 0\.3 s and was stopped") as caught:
        execute(flow)
    assert isinstance(caught.value, TimeoutError)
    for number in map(int, lines(noted, 0)):
        soon(lambda number=number: not alive(number))


async def test_nothing_is_left_behind(state: Path) -> None:
    made = executors()
    flow = shell("exit $n")
    works = [made.execute(Reports().work(flow, {"n": n % 2})) for n in range(6)]
    assert len([answer for answer in await asyncio.gather(*works, return_exceptions=True) if answer == ""]) == 3
    (life,) = (state / "lives").iterdir()
    assert [entry.name for entry in life.iterdir()] == ["groups"]
    made.close()
    assert not list((state / "lives").iterdir())
    assert await made.execute(Reports().work(shell("echo again"))) == "again"
    made.close()


def test_ended_process_groups_are_removed_from_the_records(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asterism.fleet.device.process_records.LARGEST", 40)
    life = ProcessRecords("kitchen", "s1")
    held = life.admit(None)
    child = os.fork()
    if child == 0:
        guard_main.enter(os.open(os.devnull, os.O_WRONLY), 1, (held.ticket, held.own_stat, 0, None), held.groups)
        os.execvp("sleep", ["sleep", "1000"])
    groups = state / "lives" / "s1" / "groups"
    soon(lambda: lines(groups, 2))
    for _ in range(50):
        life.finished(life.admit(None).ticket)
    first, *rest = lines(groups)
    assert json.loads(first)["device"] == "kitchen"
    assert [line for line in rest if line.startswith("+")] == [
        line for line in rest if f"+{held.ticket} {child} " in line
    ]
    assert len(rest) < 10
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    life.close()


# -- missing commands --------------------------------------------------------------------------------------------------


def test_a_missing_command_is_found_before_the_claim() -> None:
    assert check(command("no-such-command-anywhere")) == "there is no command 'no-such-command-anywhere' on this device"
    assert check(command("{program}"), {"program": "no-such-command-anywhere"}) is not None
    assert check(command("{program}"), {"program": "true"}) is None
    assert check(command("{program}")) is None  # that fails, and it is not the device's fault
    assert check(shell("no-such-command-anywhere")) is None


def test_a_missing_command_makes_the_device_unavailable_at_the_start_too(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailable, match="there is no command 'no-such-command-anywhere' on this device"):
        execute(command("no-such-command-anywhere"))
    with pytest.raises(DeviceUnavailable, match="there is no command 'true' on this device"):
        execute(command("true", env={"PATH": str(tmp_path)}))


def test_a_directory_that_became_another_after_it_was_judged_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    policy = DevicePolicy(Rules(commands=("touch",), directories=(str(inside),)))
    judged, is_last = policy.directory, iter([False, True])  # once before anything is evaluated, once to start

    def swapped(cwd: str | None) -> str | None:
        directory = judged(cwd)
        if next(is_last):
            inside.rmdir()
            inside.symlink_to(outside)
        return directory

    monkeypatch.setattr(policy, "directory", swapped)
    with pytest.raises(AsterismError, match="its directory was replaced"):
        execute(command("touch", "here", cwd=str(inside)), policy=policy)
    assert not list(outside.iterdir())
