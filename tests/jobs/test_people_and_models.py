"""Jobs 11, 12, 14, 16 to 20 and 24: the page and its API, rights, Python, models, agents, and the first hour.

Most of these have whole folders of tests. Here are the first things that a user does."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
from typing import Any

import pytest
from mcp import Client

from asterism import Constellation, LocalDevice, Orchestrator, Task, edits
from asterism.cli.top import SystemThread, Top
from tests.agents.test_acp_executor import PLAIN
from tests.cli.cli_scenes import read_until
from tests.cli.server_thread import server_thread
from tests.cli.stored_plan_scenes import Trace
from tests.cli.test_mcp_commands import server as mcp_process
from tests.cli.test_model_commands import MODEL, served
from tests.cli.test_top import rows
from tests.jobs.desk import Desk
from tests.mcp.mcp_scenes import call
from tests.models.model_server import Reply
from tests.page.browser_scenes import chromium, expect, needs_chromium, opened
from tests.process_scenes import PATIENCE, ended


@pytest.mark.slow
def test_11_200_tasks_on_a_server_are_watched_edited_and_read_again(desk: Desk) -> None:
    """The page itself is in tests/page."""
    desk.write("wide.yaml", "tasks:\n  each: {foreach: {range: [1, 200]}, shell: 'echo $item'}\n")
    assert "200 pending" in desk.sh("show wide.yaml")
    with server_thread(desk.url) as server:
        there = {"ASTERISM_STORE": server.url, "ASTERISM_TOKEN": server.token("operate")}
        with desk.process("run", "wide.yaml", "--store", desk.url, "--id", "wide", "--plain") as process:
            read_until(process, "wide started with")
            assert "wide ended: completed" in desk.sh("plan watch wide --plain", **there)
            assert ended(process)[0] == 0
        assert "each  completed  200 completed" in desk.sh("plan show wide", **there)  # one task, until it is opened
        assert "201 tasks, 200 dependencies" in desk.sh("plan show wide --open each", **there)
        desk.sh('plan edit wide --add \'{"id": "two", "shell": "echo 2", "after": "each"}\' --reason more', **there)
        assert "two" not in desk.sh("plan history wide 0", **there)
        assert "two" in desk.sh("plan history wide 1", **there)
        assert "more" in desk.sh("plan history wide", **there)
        assert desk.sh("plan logs wide 'each[200]'", **there) == "200\n"


SCRIPT = """\
set -e
for word in 'one  two' "three"; do
\tprintf '%s – ' "$word"
done
"""


@needs_chromium
def test_11_a_script_of_several_lines_is_mended_on_the_page_and_the_plan_goes_on(desk: Desk) -> None:
    """The plan is at rest: its process was killed. *Resume* lets the server run it."""
    trace = Trace(desk)
    with desk.process(*trace.words) as process:
        trace.pids.read_text()
        process.kill()
        process.wait()
    edits = [{"op": "update_task", "task_id": "three", "changes": {"shell": SCRIPT}}]
    desk.write("mend.json", json.dumps({"edits": edits}))
    desk.sh("plan edit nightly --edits mend.json")
    with desk.process("serve", "--local", "2", "--listen", "127.0.0.1:0", "--json") as server, chromium() as browser:
        served_at = json.loads(read_until(server, '"login"')[-1])
        url, login = served_at["url"], served_at["login"]
        with opened(browser, url, login.removeprefix(f"{url}/")) as page:
            page.goto(f"{url}/#/plans/nightly/graph?task=three")
            page.get_by_role("button", name="Edit three").click()
            form = page.get_by_role("complementary", name="Edit the plan")
            expect(form.get_by_label("Command")).to_have_value(SCRIPT, timeout=1000 * PATIENCE)
            form.get_by_label("Command").fill(f"{SCRIPT}echo mended\n")
            form.get_by_role("button", name="Apply").click()
            form.wait_for(state="detached")
            page.get_by_role("button", name="Resume").click()
            trace.pids.read_text()
            trace.open()
            page.locator("[data-box=three].is-completed").wait_for()
    [three] = [task for task in desk.json("plan", "show", "nightly")["tasks"] if task["id"] == "three"]
    assert three["result"] == "one  two – three – mended"


def test_12_a_second_person_may_only_read(desk: Desk) -> None:
    desk.write("small.yaml", "tasks:\n  one: {shell: echo 1}\n")
    desk.sh("run small.yaml --id small --plain")
    with server_thread(desk.url) as server:
        there = {"ASTERISM_STORE": server.url, "ASTERISM_TOKEN": server.token("observe")}
        assert "observe" in desk.sh("whoami", **there)
        assert "small" in desk.sh("plan list", **there)
        desk.sh("plan remove small", code=64, **there)
        assert "operate" in desk.said  # which right is missing
        assert "small" in desk.sh("plan list", **there)


def test_14_top(desk: Desk) -> None:
    desk.write("small.yaml", "tasks:\n  one: {shell: echo 1}\n")
    desk.sh(f"run small.yaml --store {desk.url} --id small --plain")

    async def look() -> None:
        with SystemThread(desk.url) as system:
            async with asyncio.timeout(PATIENCE), Top(system, "plans").run_test(size=(80, 24)) as pilot:
                while not any("small" in row and "1/1" in row for row in rows(pilot)):
                    await pilot.pause(0.05)

    asyncio.run(look())


def test_16_a_plan_in_python(desk: Desk) -> None:
    """tests/orchestrator has the types, which mypy checks."""
    program = """\
from asterism import Constellation, LocalDevice, Orchestrator, PlanFailed

p = Constellation("sums")

@p.task
def numbers() -> list[int]:
    return [1, 2, 3]

@p.task
def total(numbers: list[int]) -> int:
    return sum(numbers)

@p.task
def broken(total: int) -> int:
    return total // 0

result = Orchestrator([LocalDevice("here")]).run_sync(p)
print(result[total] + 1)
try:
    result.raise_for_failures()
except PlanFailed as failure:
    print(failure)
"""
    desk.write("sums.py", program)
    done = subprocess.run([sys.executable, "sums.py"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    first, *failures = done.stdout.splitlines()
    assert first == "7"
    assert "broken" in failures[0]
    assert "division" in " ".join(failures)


def test_17_an_executor_and_an_editor_of_ones_own(desk: Desk) -> None:
    """docs/how-to/devices.md."""

    class Printer:
        id, can, slots = "printer", frozenset({"print"}), 1

        async def execute(self, work: object) -> str:
            return "printed"

    async def editor(view: Any, events: list[Any]) -> list[Any]:
        return [] if "again" in view else [edits.AddTask(Task("again", call=str, needs={"print"}))]

    plan = Constellation("print")
    plan.add(Task("once", call=str, needs={"print"}))
    result = Orchestrator([Printer(), LocalDevice("here")], editor=editor).run_sync(plan)
    assert {task.id: (task.value, task.device) for task in result} == dict.fromkeys(
        ("once", "again"), ("printed", "printer")
    )


def test_18_a_model_repairs_a_plan(desk: Desk) -> None:
    """Budgets, approvals and refusals are in tests/models and tests/cli/test_model_story.py."""
    desk.write("plan.yaml", "id: logs\ntasks:\n  compare: {shell: exit 3}\n")
    again = {"op": "add_task", "task": {"id": "again", "shell": "echo the same"}}
    repairs = {"op": "add_dependency", "source": "compare", "target": "again", "on": "failure", "handled": True}
    with served(Reply.edits(again, repairs)) as server:
        model = f"--editor model --model {MODEL} --budget '$2 9calls'"
        said = desk.sh(f"run plan.yaml --store {desk.url} --plain {model}", **server.environment)
    assert "repaired" in said
    assert "the same" in said
    budget = desk.sh("plan budget logs")
    assert "Budget of plan 'logs': $2.00, 9 calls" in budget
    assert ", 1 call," in budget


async def test_19_a_client_of_mcp_plans_watches_and_edits(desk: Desk) -> None:
    text = "asterism: 1\nid: nightly\ntasks: {one: {shell: echo 1}}\n"
    add = {"op": "add_task", "task": {"id": "two", "shell": "echo 2", "after": "one"}}
    with (desk.folder / "log").open("w") as log:
        async with asyncio.timeout(PATIENCE), Client(mcp_process(desk, log, "--local", "2", "--by", "ann")) as client:
            done = await call(client, "submit_plan", text=text, follow=True)
            assert (done["ended"], done["counts"]) == (True, {"completed": 1})
            assert (await call(client, "edit_plan", plan="nightly", edits=[add], reason="more"))["version"] == 1
            [listed] = (await call(client, "list_plans"))["items"]
            assert (listed["name"], listed["tasks"]) == ("nightly", 2)
            [edge] = (await call(client, "read_plan", plan="nightly"))["dependencies"]
            assert (edge["source"], edge["target"]) == ("one", "two")


def test_20_an_agent_is_a_device(desk: Desk) -> None:
    steps = json.dumps([{"say": "hello"}])
    desk.write("ask.yaml", f"tasks:\n  ask: {{agent: {json.dumps(steps)}}}\n")
    with desk.beside("store init", f"device join coder --agent '{shlex.join(PLAIN)}'"):
        assert desk.sh("run ask.yaml --no-local --result ask") == "hello\n"


def test_24_the_first_hour(desk: Desk) -> None:
    """tests/cli has all mistakes; these are those of a first day."""
    assert "run" in desk.sh("--help")
    assert "complete" in desk.sh("completion bash")
    desk.write("typo.yaml", "tasks:\n  build: {shel: make}\n  test: {shell: make test, after: biuld}\n")
    desk.sh("check typo.yaml", code=64)
    assert "typo.yaml:3" in desk.said
    assert "'shell'" in desk.said
    assert "did you mean 'build'?" in desk.said
    mistakes = {
        "run nowhere.yaml": "nowhere.yaml",
        "plan shwo nightly": "show",
        "plan show nightly": "there is no store",
        "runs create nothing": "there is no store",
        "run typo.yaml --timeout 3 parsecs": "--timeout",
    }
    for line, said in mistakes.items():
        result = desk.run(*line.split())
        assert result.exit_code not in (0, 1), line
        assert said in result.output, result.output
