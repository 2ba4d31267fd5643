"""`asterism run`: exit codes, output, options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_scenes import asterism, write

EDITOR = """
from asterism import Task, edits

async def repair(view, events):
    failed = [event.task_id for event in events if event.kind == "task_failed"]
    if failed and "rebuild" not in view:
        rebuild = Task("rebuild", shell="echo rebuilt")
        return [edits.AddTask(rebuild), edits.AddDependency(failed[0], "rebuild", "failure")]

async def clumsy(view, events):
    return [edits.RemoveTask("no-such-task")]

def broken(view, events):
    raise RuntimeError("no ideas")

not_a_function = 5
"""


@pytest.mark.parametrize(
    ("tasks", "code", "state"),
    [
        ("a: {shell: exit 0}", 0, "completed"),
        ("a: {shell: exit 3}", 1, "failed"),
        ("a: {shell: exit 0}\n  b: {shell: exit 3, after: a}", 2, "partially failed"),
        ("a: {shell: exit 0}\n  b: {shell: exit 3, after: {a: failure}}", 0, "completed"),
    ],
)
def test_the_exit_code_tells_the_end(tmp_path: Path, tasks: str, code: int, state: str) -> None:
    result = asterism("run", write(tmp_path, f"tasks:\n  {tasks}\n"))
    assert result.exit_code == code
    assert f"plan ended: {state}, version 0" in result.stdout
    assert f"State                {state}\n" in result.stdout


def test_a_bad_plan_is_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    path = write(tmp_path, f"tasks:\n  a: {{shell: touch {trace}}}\n  b: {{shell: x, after: c}}\n")
    result = asterism("run", path)
    assert result.exit_code == 64
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"{path}:4: task 'b': comes after 'c', but there is no such task",
        f"1 mistake in {path}; nothing was done.",
    ]
    assert not trace.exists()


def test_plain_lines_say_what_happens_in_words(tmp_path: Path) -> None:
    text = """\
devices: {laptop: {slots: 1}}
tasks:
  fetch: {shell: echo 5}
  build: {shell: "echo no luck >&2; exit 3", after: fetch, retries: 1, backoff: 0}
  pack: {shell: x, after: build}
"""
    lines = [line[10:] for line in asterism("run", write(tmp_path, text)).stdout.splitlines()]
    began = [line for line in lines if " completed after " not in line and " failed after " not in line]
    assert began[:7] == [
        "plan started with 3 tasks",
        "fetch started on laptop",
        "build started on laptop",
        "build: attempt 1 failed and will be retried: the command exited with 3: no luck",
        "build started on laptop, attempt 2",
        "pack cancelled: unreachable: it needs 'build' to succeed, but 'build' failed",
        "plan ended: partially failed, version 0",
    ]
    assert any(line.startswith("fetch completed after ") for line in lines)
    assert any(line.startswith("build failed after ") and line.endswith(": no luck") for line in lines)


def test_the_summary_names_what_did_not_complete_and_why(tmp_path: Path) -> None:
    text = "tasks:\n  a: {shell: exit 3}\n  b: {shell: x, after: a}\n  c: {shell: echo 1}\n"
    output = asterism("run", "--stats", write(tmp_path, text)).stdout
    assert "\na failed: the command exited with 3\n" in output
    assert "\nb cancelled: unreachable: it needs 'a' to succeed, but 'a' failed\n" in output
    for name in ("Makespan", "Lower bound", "Critical path L", "Total work W", "Parallelism W/L", "Time under hold"):
        assert f"\n{name}" in output
    assert "Tasks                1 completed, 1 failed, 1 cancelled\n" in output
    assert "Makespan" not in asterism("run", write(tmp_path, text)).stdout


PRODUCTS = """\
tasks:
  throw: {shell: "echo '[6, 2]'"}
  lines: {shell: "echo one; echo two", after: throw}
  lucky: {shell: echo "a six", after: {throw: {when: "6 in result"}}}
  data: {shell: 'echo "{\\"rows\\": 3}"', after: throw}
  unlucky: {shell: echo no, after: {lucky: failure}}
  silent: {shell: "true", after: throw}
"""


def test_the_end_shows_the_results_of_the_last_tasks_that_completed(tmp_path: Path) -> None:
    _, _, end = asterism("run", write(tmp_path, PRODUCTS)).stdout.partition("\nResults\n")
    assert end.splitlines() == [
        "  lines              one … (2 lines)",
        "  lucky              a six",
        '  data               {"rows": 3}',
    ]


def test_a_plan_without_results_shows_none(tmp_path: Path) -> None:
    assert "Results" not in asterism("run", write(tmp_path, "tasks:\n  a: {shell: 'true'}\n")).output


def test_many_results_are_counted_and_a_long_one_is_shortened(tmp_path: Path) -> None:
    text = "tasks:\n" + "".join(f"  t{n}: {{shell: 'echo {'x' * 300}'}}\n" for n in range(12))
    _, _, end = asterism("run", write(tmp_path, text)).stdout.partition("\nResults\n")
    lines = end.splitlines()
    assert len(lines) == 11
    assert lines[0].endswith("x…")
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "  and 2 more"


def test_one_result_is_printed_raw_and_all_else_goes_to_standard_error(tmp_path: Path) -> None:
    plan = write(tmp_path, PRODUCTS)
    text = asterism("run", plan, "--result", "lines")
    assert (text.exit_code, text.stdout) == (0, "one\ntwo\n")
    assert "State                completed" in text.stderr
    assert asterism("run", plan, "--result", "data").stdout == '{"rows": 3}\n'


@pytest.mark.parametrize("stored", [False, True])
def test_what_functions_print_is_not_mixed_with_data(tmp_path: Path, stored: bool) -> None:
    (tmp_path / "prints_beside_data.py").write_text("def work():\n    print('printed')\n    return {'rows': 3}\n")
    plan = write(tmp_path, "tasks:\n  a: {call: 'prints_beside_data:work'}\n")
    store = ("--store", f"sqlite:///{tmp_path}/s.db") if stored else ()
    result = asterism("run", plan, "--result", "a", *store)
    assert (result.exit_code, result.stdout) == (0, '{"rows": 3}\n')
    assert "printed\n" in result.stderr
    data = asterism("run", plan, "--json", *store, *(("--id", "again") if stored else ()))
    assert json.loads(data.stdout)["tasks"]["a"]["value"] == {"rows": 3}


def test_a_task_without_a_result_is_named_and_the_exit_code_says_so(tmp_path: Path) -> None:
    result = asterism("run", write(tmp_path, PRODUCTS), "--result", "unlucky")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Task 'unlucky' has no result: it is cancelled.\n" in result.stderr


def test_a_result_of_an_unknown_task_is_refused_before_the_run(tmp_path: Path) -> None:
    plan = write(tmp_path, f"tasks:\n  a: {{shell: 'touch {tmp_path}/done'}}\n  load: {{shell: ls}}\n")
    assert "the plan has no task 'lod'; did you mean 'load'?" in asterism("run", plan, "--result", "lod").stderr
    result = asterism("run", plan, "--result", "b")
    assert result.exit_code == 64
    assert "the plan has no task 'b'" in result.stderr
    assert not (tmp_path / "done").exists()
    both = asterism("run", plan, "--result", "a", "--json")
    assert (both.exit_code, "exclude each other" in both.stderr) == (64, True)


def test_json_on_standard_output_and_the_rest_on_standard_error(tmp_path: Path) -> None:
    text = """\
id: nightly
tasks:
  a: {shell: "echo '{\\"n\\": [1, 2]}'"}
  b: {argv: [echo, "{n}"], inputs: {n: {from: a, select: "result.n[1]"}}, after: a}
  c: {shell: exit 3, after: b}
"""
    result = asterism("run", "--json", write(tmp_path, text))
    told = json.loads(result.stdout)
    assert result.exit_code == told["exit_code"] == 2
    assert (told["id"], told["state"], told["version"]) == ("nightly", "partially_failed", 0)
    assert told["tasks"]["a"]["value"] == {"n": [1, 2]}
    assert told["tasks"]["b"]["value"] == "2"
    assert told["tasks"]["c"]["status"] == "failed"
    assert told["tasks"]["c"]["reason"] == "CommandFailed: the command exited with 3"
    assert told["summary"]["makespan"] > 0
    assert "a started on" in result.stderr


def test_a_result_that_is_not_json_fails_its_task_and_says_so(tmp_path: Path) -> None:
    result = asterism("run", "--json", write(tmp_path, "tasks:\n  a: {call: 'os:getcwdb'}\n"))
    assert result.exit_code == 1
    assert "the result of task 'a' is a bytes, which is not JSON" in json.loads(result.stdout)["tasks"]["a"]["reason"]


def test_python_functions_beside_the_plan_are_called(tmp_path: Path) -> None:
    (tmp_path / "sums_beside.py").write_text(
        "def add(one, other=1, *, results): return [one + other, sorted(results)]\n"
    )
    text = "tasks:\n  one: {shell: 'echo [4]'}\n  sum:\n    call: sums_beside:add\n"
    text += "    inputs: {one: {from: one, select: 'result[0]'}}\n    after: one\n"
    result = asterism("run", "--json", write(tmp_path, text))
    assert json.loads(result.stdout)["tasks"]["sum"]["value"] == [5, ["one"]]


def test_conditions_decide_what_is_run(tmp_path: Path) -> None:
    text = """\
tasks:
  a: {shell: "echo '{\\"ok\\": true}'"}
  yes: {shell: echo yes, after: {a: {when: "result.ok == true"}}}
  no: {shell: echo no, after: {a: {when: "result.ok == false"}}}
  late: {shell: echo late, after: {a: {on: completion, when: "status == 'completed'"}}}
  odd: {shell: echo odd, after: {a: {when: "result.missing > 1"}}}
"""
    told = json.loads(asterism("run", "--json", write(tmp_path, text)).stdout)["tasks"]
    assert [told[name]["status"] for name in ("yes", "no", "late", "odd")] == [
        "completed",
        "cancelled",
        "completed",
        "cancelled",
    ]
    assert "does not hold" in told["no"]["reason"]
    assert "could not be evaluated" in told["odd"]["reason"]


def test_a_report_is_written(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = asterism("run", write(tmp_path, "tasks:\n  a: {shell: echo 1}\n"), "--report", str(page))
    assert result.exit_code == 0
    assert f"Report: {page}" in result.stdout
    assert "<h1>plan</h1>" in page.read_text("utf-8")


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    page = str(tmp_path / "none" / "report.html")
    result = asterism("run", write(tmp_path, "tasks:\n  a: {shell: echo 1}\n"), "--report", page)
    assert result.exit_code == 64
    assert result.stderr.splitlines()[-1] == (
        f"Error: Invalid value for '--report': {page!r} cannot be written: there is no directory "
        f"{str(tmp_path / 'none')!r}; create it first."
    )


def test_an_editor_repairs_a_plan(tmp_path: Path) -> None:
    (tmp_path / "editor_beside.py").write_text(EDITOR)
    page = tmp_path / "report.html"
    path = write(tmp_path, "tasks:\n  build: {shell: exit 3}\n")
    result = asterism("run", path, "--editor", "editor_beside:repair", "--report", str(page), "--stats")
    assert result.exit_code == 2
    lines = [line[10:] for line in result.stdout.splitlines()]
    assert "cycle 1 opened for build" in lines
    assert "edit by repair applied: add task 'rebuild'; add dependency 'build' -> 'rebuild' on failure" in lines
    assert "cycle 1 closed" in lines
    assert "Edits accepted       1\n" in result.stdout
    assert "add task 'rebuild'" in page.read_text("utf-8")


def test_an_editor_that_answers_nonsense_or_fails_does_not_stop_the_plan(tmp_path: Path) -> None:
    (tmp_path / "editor_beside.py").write_text(EDITOR)
    path = write(tmp_path, "tasks:\n  a: {shell: echo 1}\n  b: {shell: echo 2, after: a}\n")
    clumsy = asterism("run", path, "--editor", "editor_beside:clumsy")
    assert clumsy.exit_code == 0
    assert "edit by clumsy rejected: there is no task 'no-such-task' in the plan" in clumsy.stdout
    assert "cycle 1: too many edits of clumsy were rejected; the cycle closes without one" in clumsy.stdout
    broken = asterism("run", path, "--editor", "editor_beside:broken")
    assert broken.exit_code == 0
    assert "the editor failed: RuntimeError: no ideas" in broken.stdout


@pytest.mark.parametrize(
    ("editor", "told"),
    [
        (
            "nowhere",
            "--editor must be package.module:function, 'outside' or 'model', not 'nowhere'.",
        ),
        ("no_such_module_here:f", "The editor 'no_such_module_here:f' cannot be imported: ModuleNotFoundError: "),
        ("editor_beside:not_a_function", "is not callable"),
        ("editor_beside:nothing", "has no 'nothing'"),
    ],
)
def test_an_editor_that_is_not_there_is_one_sentence(tmp_path: Path, editor: str, told: str) -> None:
    (tmp_path / "editor_beside.py").write_text(EDITOR)
    result = asterism("run", write(tmp_path, "tasks:\n  a: {shell: x}\n"), "--editor", editor)
    assert result.exit_code == 64
    assert told in result.stderr
    assert result.stdout == ""


def test_the_policy_of_the_file_and_of_the_command(tmp_path: Path) -> None:
    path = write(tmp_path, "policy: global\ntasks:\n  a: {shell: echo 1}\n")
    assert asterism("run", path).exit_code == 0
    other = ("--editor", "policy_editor:repair", "--lock-policy", "speculative", "--strategy", "round_robin")
    (tmp_path / "policy_editor.py").write_text(EDITOR)
    assert asterism("run", path, *other).exit_code == 0


def test_no_more_than_asked_for_runs_at_once(tmp_path: Path) -> None:
    tasks = "".join(f"  t{n}: {{shell: echo {n}}}\n" for n in range(4))
    path = write(tmp_path, f"devices: {{laptop: {{slots: 4}}}}\ntasks:\n{tasks}")
    lines = asterism("run", path, "--concurrency", "1").stdout.splitlines()
    running = most = 0
    for line in lines:
        running += " started on " in line
        running -= " completed after " in line
        most = max(most, running)
    assert most == 1


def test_a_task_that_no_device_can_ever_take_is_named_and_fails_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "devices: {laptop: {}}\ntasks:\n  a: {shell: x, device: {needs: [gpu]}}\n")
    result = asterism("run", path)
    assert result.exit_code == 1
    assert "warning: task 'a': needs a device with gpu, but no listed device has it" in result.stderr
    assert "a: no device with 'gpu' has joined" in result.stdout
    assert "a failed: no device with 'gpu' is there, and none is waited for" in result.stdout


def test_concurrency_is_the_number_of_slots_here_or_what_limits_them_is_named(tmp_path: Path) -> None:
    meet = "until test $(ls begun* | wc -l) -ge 7; do sleep 0.05; done"
    tasks = "".join(f"  t{n}: {{shell: 'touch begun{n}; {meet}', cwd: {tmp_path}, timeout: 60s}}\n" for n in range(7))
    path = write(tmp_path, f"tasks:\n{tasks}")
    for store in ([], ["--store", f"sqlite:///{tmp_path}/fleet.db"]):
        for begun in tmp_path.glob("begun*"):
            begun.unlink()
        result = asterism("run", path, "--concurrency", "7", *store)
        assert result.exit_code == 0, result.stdout
        assert "tasks run at once" not in result.stderr
    path = write(tmp_path, "devices: {laptop: {slots: 4}}\ntasks: {a: {shell: 'true'}}\n")
    limited = "At most 4 tasks run at once, not 7: the devices of the plan file have 4 slots in all."
    assert limited in asterism("run", path, "--concurrency", "7").stderr
    path = write(tmp_path, "tasks: {a: {shell: 'true'}}\n")
    stored = asterism(
        "run", path, "--concurrency", "7", "--local=2", "--id", "other", "--store", f"sqlite:///{tmp_path}/fleet.db"
    )
    limited = "At most 2 tasks run at once, not 7: this process and the joined devices have 2 slots in all."
    assert limited in stored.stderr


def test_a_plan_that_executes_here_does_not_start_without_its_secrets(tmp_path: Path) -> None:
    lines = (
        *("tasks:", f"  first: {{shell: touch {tmp_path}/began}}"),
        *("  a: {shell: x, after: first, env: {A: {secret: NO_SUCH_SECRET}}}", "  b: {shell: x, after: a}"),
    )
    path = write(tmp_path, "\n".join(lines) + "\n")
    result = asterism("run", path)
    assert result.exit_code == 64
    assert "warning: task 'a': env.A needs 'NO_SUCH_SECRET'" in result.stderr
    assert "The environment lacks secrets of the plan: 'NO_SUCH_SECRET' (task 'a'); nothing was done." in result.stderr
    assert not (tmp_path / "began").exists()
    assert asterism("run", path, "--only", "first").exit_code == 0, "nothing that runs needs it"


CHOICE = """\
tasks:
  check: {{shell: "echo '{{\\"ok\\": {0}}}'"}}
  fast: {{shell: echo fast, after: {{check: {{when: result.ok}}}}}}
  slow: {{shell: echo slow, after: {{check: {{when: "!result.ok"}}}}}}
  publish:
    shell: echo "published $fast$slow"
    inputs: {{fast: {{from: fast}}, slow: {{from: slow}}}}
    after: [fast, slow]
    join: any
"""


@pytest.mark.parametrize(("ok", "result"), [("true", "published fastnull"), ("false", "published nullslow")])
def test_an_if_else_with_a_join_does_what_the_reader_expects(ok: str, result: str, tmp_path: Path) -> None:
    done = asterism("run", write(tmp_path, CHOICE.format(ok)), "--json")
    assert done.exit_code == 0
    assert "warning" not in done.stderr
    assert json.loads(done.stdout)["tasks"]["publish"]["value"] == result


def test_a_repaired_plan_exits_with_0_and_says_so(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "tasks:\n  build: {shell: exit 3}\n  test: {shell: x, after: build}\n  fix: {shell: echo ok, handles: build}\n",
    )
    done = asterism("run", path, "--plain")
    assert done.exit_code == 0
    assert "State                repaired\n" in done.stdout
    assert "build failed, handled by fix: the command exited with 3\n" in done.stdout
    assert "plan ended: repaired, version 0\n" in done.stdout
    told = json.loads(asterism("run", path, "--json").stdout)
    assert (told["state"], told["repaired"], told["exit_code"]) == ("completed", True, 0)
    assert told["tasks"]["build"]["handled_by"] == "fix"


def test_an_editor_has_a_scope_and_untrusted_data_leaves_it_little(tmp_path: Path) -> None:
    (tmp_path / "scoped_editor.py").write_text(
        "def add(view, events):\n"
        "    if 'x' not in view:\n"
        "        return [{'op': 'add_task', 'task': {'id': 'x', 'shell': 'true'}}]\n"
    )
    path = write(tmp_path, "tasks:\n  a: {shell: 'true'}\n  b: {shell: 'true', after: a}\n")
    editor = ("--editor", "scoped_editor:add", "--json")
    assert "x" in json.loads(asterism("run", path, *editor).stdout)["tasks"]
    for scope, there in (("any", True), ("tasks=y", False), ("executors=argv", False)):
        result = asterism("run", path, *editor, "--scope", scope)
        assert ("x" in json.loads(result.stdout)["tasks"]) is there
    result = asterism("run", path, "--scope", "nonsense")
    assert "'nonsense' is not a scope (examples: any, edits=cancel_task tasks=*," in result.stderr
    path = write(tmp_path, "tasks:\n  a: {shell: 'true', untrusted: true}\n  b: {shell: 'true', after: a}\n")
    result = asterism("run", path, *editor)
    assert "x" not in json.loads(result.stdout)["tasks"]
    assert result.exit_code == 0
