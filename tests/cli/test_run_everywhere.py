"""``asterism run`` does the same on a SQLite file, on PostgreSQL and at a server, and says the same."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from asterism.api.local import fleet_handlers, plan_handlers, schedule_handlers  # noqa: F401 - a loop would load them for long
from asterism.cli.plan import plan_watch
from asterism.durable.journal_store import Head, read_heads
from asterism.durable.plan_submissions import submit_plan
from asterism.fleet.fleet import Fleet
from asterism.planfile import load
from tests.cli.system_scenes import Names, Row, SystemScene, rows_and_systems, system_scene
from tests.forked_commands import ForkedCommand
from tests.process_scenes import ended

NIGHTLY = """\
asterism: 1
include: parts/more.yaml
params:
  word: {default: hello}
tasks:
  build: {inputs: {word: "{params.word}"}, shell: 'echo "$word"'}
  test: {shell: "echo tested", after: build}
"""
MORE = "asterism: 1\ntasks:\n  mail: {shell: echo mailed, after: test}\n"

DAILY = """\
asterism: 1
id: daily
tasks:
  day: {argv: [echo, "{tick.date}"]}
  identity:
    shell: echo "$ASTERISM_PLAN|$ASTERISM_TASK|$ASTERISM_ATTEMPT|$ASTERISM_EPOCH|$ASTERISM_TICK"
    after: day
"""


def files(scene: SystemScene) -> Names:
    """Plan files, which commands name by their paths."""
    (scene.folder / "parts").mkdir()
    (scene.folder / "parts" / "more.yaml").write_text(MORE)
    plan = scene.folder / "nightly.yaml"
    plan.write_text(NIGHTLY)
    named = scene.folder / "named.yaml"
    named.write_text(NIGHTLY.replace("asterism: 1", "asterism: 1\nid: tuesday"))
    wrong = scene.folder / "wrong.yaml"
    wrong.write_text(NIGHTLY.replace("echo tested", "echo about to fail; exit 3"))
    daily = scene.folder / "daily.yaml"
    daily.write_text(DAILY)
    report = scene.folder / "report.html"
    return {"plan": str(plan), "named": str(named), "wrong": str(wrong), "daily": str(daily), "report": str(report)}


def taken(scene: SystemScene) -> Names:
    """A plan with the id of the plan file exists."""
    names = files(scene)
    assert scene.run("run", names["named"], "--plain").exit_code == 0
    return names


def started(scene: SystemScene) -> Names:
    """The plan file was started before."""
    names = files(scene)
    assert scene.run("run", names["plan"], "--plain").exit_code == 0
    return names


def heads(scene: SystemScene) -> list[Head]:
    async def read(fleet: Fleet) -> list[Head]:
        return sorted(await read_heads(fleet.store), key=lambda head: head.created_at)

    return scene.ask(read)


def plans(scene: SystemScene, names: Names) -> Any:
    """The plans in the store: their names, without times, their states and their files."""
    return [(re.sub(r"\d{8}-\d{4}", "START", head.name), head.state, head.file) for head in heads(scene)]


def stored_options(scene: SystemScene, names: Names) -> Any:
    [head] = heads(scene)
    kept = ("policy", "edit_timeout", "no_device_timeout", "strategy")
    approvals, scopes = head.terms["approvals"], head.terms["scopes"]
    return [*(head.terms[name] for name in kept), approvals["rules"], approvals["timeout"], scopes, dict(head.params)]


def report(scene: SystemScene, names: Names) -> Any:
    text = Path(names["report"]).read_text()
    return [word in text for word in ("mailed", "about to fail", "nightly")]


ONE = [("nightly-START", "completed", "nightly.yaml")]
OPTIONS = (
    "--lock-policy global --edit-timeout 7m --no-device-timeout 9m --strategy round_robin --approve edits=remove_task "
    "--approval-timeout 2h --scope edits=cancel_task --set word=moin"
)

ROWS = (
    Row("run {plan} --plain", "build completed on box after", files, plans, ONE),
    Row("run {plan}", "mail completed on box after", files, plans, ONE),
    Row("run {plan} --json --plain", '"value": "hello"', files, plans, ONE),
    Row("run {plan} --result build --set word=moin", "moin", files, plans, ONE),
    Row("run {plan} --stats --only build", "1 completed", files, plans, ONE),
    Row("run {plan} --report {report}", "Report: ", files, report, [True, False, True]),
    Row("run {plan} --id x-{{name}} --plain", "x-nightly ended: completed", files, plans, [("x-nightly", *ONE[0][1:])]),
    Row("run {plan} --id tonight", "tonight", files, plans, [("tonight", *ONE[0][1:])]),
    Row(
        "run {plan} --id '{{name}}-{{day}}'",
        "has no placeholder '{{day}}'; the placeholders are",
        files,
        plans,
        [],
        code=64,
    ),
    Row(
        "run {wrong} --plain",
        "about to fail",
        files,
        plans,
        [("wrong-START", "partially_failed", "wrong.yaml")],
        code=2,
    ),
    Row("run {plan} --plain", "nightly", started, plans, [ONE[0], ("nightly-START-2", *ONE[0][1:])]),
    Row("run {named} --plain", "tuesday", files, plans, [("tuesday", "completed", "named.yaml")]),
    Row(
        f"run {{plan}} {OPTIONS} --plain",
        "ended: completed",
        files,
        stored_options,
        [
            *("global", 420.0, 540.0, "round_robin"),
            *([{"edits": ["remove_task"]}], 7200.0, [{"edits": ["cancel_task"]}], {"word": "moin"}),
        ],
    ),
    Row("run {plan} --set wort=moin", "wort", files, plans, [], code=64),
    Row(
        "run {daily} --tick 2026-11-17 --result identity",
        "daily|identity|1|1|2026-11-17T00:00:00+00:00",
        files,
        plans,
        [("daily", "completed", "daily.yaml")],
    ),
    Row("run {daily} --tick 5x", "'5x' is not a valid tick (examples: 2026-11-17", files, plans, [], code=64),
    Row("run {daily}", "task 'day': uses the tick of a schedule; give one to run it now", files, plans, [], code=64),
    Row("plan watch tuesday --plain", "3 completed", taken),
    Row("plan watch tuesday --json", '"exit_code": 0', taken),
)


@contextmanager
def working_scene(system: str, folder: Path, postgres_url: str) -> Iterator[SystemScene]:
    """A system whose plans run, with a device."""
    with system_scene(system, folder, postgres_url, plans=True) as scene:
        words = ("device", "join", "box", "--slots", "1", "--store", scene.url)
        with scene.process(*words) as device:
            assert device.stderr is not None
            assert any("joined as box" in line for line in iter(device.stderr.readline, ""))
            yield scene


@rows_and_systems(ROWS, others=pytest.mark.long)
def test_run(row: Row, systems: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    said = {}
    for system in systems:
        url = request.getfixturevalue("postgres_url") if system == "postgresql" else ""
        with working_scene(system, tmp_path / system, url) as scene:
            said[system] = row.run(scene)
    assert set(said.values()) == {said["sqlite"]}, said


# -- at a server -------------------------------------------------------------------------------------------------------

REFUSED = (
    ("--local", "--local has no effect at a server: the server runs the plan"),
    ("--no-local", "--no-local has no effect at a server: the server runs the plan"),
    ("--takeover-after 9s", "--takeover-after has no effect at a server: the server runs the plan"),
    ("--concurrency 2", "--concurrency has no effect at a server: the server runs the plan"),
    ("--serve", "--serve has no effect at a server: the server runs the plan"),
    ("--result-limit 1M", "--result-limit has no effect with --store: use `asterism fleet set --most SIZE`."),
    ("--editor module:edit", "--editor cannot be used at a server: the server runs the plan without an editor"),
    ("--editor outside", "--editor cannot be used at a server: the server runs the plan without an editor"),
    ("--editor model", "--editor cannot be used at a server: the server runs the plan without an editor"),
)

WAITING = """\
asterism: 1
tasks:
  first: {shell: "until [ -e FOLDER/go ]; do sleep 0.05; done; echo gone"}
  second: {shell: "echo two", after: first}
"""


@pytest.fixture(scope="module")
def idle_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemScene]:
    with system_scene("server", tmp_path_factory.mktemp("idle") / "server", "") as scene:
        yield scene


@pytest.mark.parametrize(("words", "why"), REFUSED, ids=[words for words, _ in REFUSED])
def test_options_that_have_no_effect_at_a_server_are_refused(words: str, why: str, idle_server: SystemScene) -> None:
    plan = idle_server.folder / "plan.yaml"
    plan.write_text("asterism: 1\ntasks: {a: {shell: 'true'}}\n")
    before = heads(idle_server)
    refused = idle_server.run("run", str(plan), *words.split(" "))
    assert refused.exit_code == 64
    assert why in refused.stderr
    assert heads(idle_server) == before


def test_a_store_in_the_environment_counts_and_memory_ends_that(tmp_path: Path) -> None:
    scene = SystemScene(tmp_path)
    scene.made()
    names = files(scene)
    assert scene.run("run", names["plan"], "--id", "tonight", "--plain").exit_code == 0
    assert scene.run("run", names["plan"], "--store", "memory:").exit_code == 0
    assert scene.run("run", names["plan"], ASTERISM_STORE="").exit_code == 0
    assert [head.name for head in heads(scene)] == ["tonight"]


def test_a_run_in_memory_keeps_its_records_here_though_the_environment_names_a_server(
    idle_server: SystemScene,
) -> None:
    plan, log = idle_server.folder / "skipped.yaml", idle_server.folder / "log"
    task = f"{{shell: 'echo x >> {log}', skip_if_unchanged: {{outputs: [{log}]}}}}"
    plan.write_text(f"asterism: 1\ntasks:\n  a: {task}\n")
    for _ in range(2):
        idle_server.ok("run", str(plan), "--store", "memory:")
    assert log.read_text() == "x\n"


def waiting_plan(scene: SystemScene) -> str:
    path = scene.folder / "waiting.yaml"
    path.write_text(WAITING.replace("FOLDER", str(scene.folder)))
    return str(path)


def read_until(process: ForkedCommand, words: str, *, stderr: bool = False) -> list[str]:
    stream = process.stderr if stderr else process.stdout
    assert stream is not None
    lines = []
    for line in iter(stream.readline, ""):
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(lines)


@pytest.mark.parametrize("as_json", [False, pytest.param(True, marks=pytest.mark.long)])
def test_ctrl_c_detaches_and_says_how_to_follow_again(as_json: bool, tmp_path: Path) -> None:
    with working_scene("server", tmp_path / "server", "") as scene:
        words = ["run", waiting_plan(scene), "--id", "w", "--plain", *(["--json"] if as_json else [])]
        with scene.process(*words) as process:
            read_until(process, "first started", stderr=as_json)  # the server says "executing" before it follows
            process.send_signal(signal.SIGINT)
            code, output, errors = ended(process)
        again = f"asterism plan watch w --store {scene.address}"
        assert code == 130
        assert f"Plan 'w' goes on. Follow it again with: {again}\n" in errors
        if as_json:
            assert json.loads(output) == {"id": "w", "state": "executing", "exit_code": 130, "left": True}
        assert scene.json("plan", "list")[0]["state"] == "executing"
        (scene.folder / "go").touch()
        watched = scene.run(*again.split(" ")[1:], "--plain")
        assert watched.exit_code == 0, watched.output
        assert "2 completed" in watched.stdout


def test_an_interrupt_while_a_plan_is_submitted_waits_for_the_answer(
    idle_server: SystemScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would be unknown whether there is a plan."""
    follow = plan_watch._Watch.submitted

    async def interrupted(self: Any, submit: Any) -> Any:
        async def submit_slowly() -> Any:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
            return await submit()

        return await follow(self, submit_slowly)

    monkeypatch.setattr(plan_watch._Watch, "submitted", interrupted)
    plan = idle_server.folder / "slow.yaml"
    plan.write_text("asterism: 1\nid: slow\ntasks: {a: {shell: 'true'}}\n")
    result = idle_server.run("run", str(plan))
    assert result.exit_code == 130
    assert result.stderr.startswith("Plan 'slow' goes on. Follow it again with: asterism plan watch slow --store ")
    assert "slow" in [head.name for head in heads(idle_server)]


def test_an_interrupt_before_a_submitted_plan_is_followed(
    idle_server: SystemScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has the plan, and may run it already."""

    async def interrupted(*_: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(plan_watch.FollowedPlan, "open", interrupted)
    plan = idle_server.folder / "early.yaml"
    plan.write_text("asterism: 1\nid: early\ntasks: {a: {shell: 'true'}}\n")
    result = idle_server.run("run", str(plan))
    assert result.exit_code == 130
    assert result.stderr.startswith("Plan 'early' goes on. Follow it again with: asterism plan watch early --store ")


def test_a_cut_connection_neither_loses_nor_repeats_an_event(tmp_path: Path) -> None:
    with working_scene("server", tmp_path / "server", "") as scene:
        assert scene.server is not None
        with scene.process("run", waiting_plan(scene), "--id", "w", "--plain") as process:
            lines = read_until(process, "first started")
            scene.server.stop()
            (scene.folder / "go").touch()
            assert process.stderr is not None
            assert "The server cannot be reached: " in process.stderr.readline()
            scene.server.start()
            code, rest, _ = ended(process)
    assert code == 0
    told = [re.sub(r"^ *[\d.]+  | after [\d.]+ m?s$", "", line.strip()) for line in [*lines, *rest.splitlines()]]
    assert told[: told.index("")] == [
        "w started with 2 tasks",
        "first started in the fleet",
        "first completed on box",
        "second started in the fleet",
        "second completed on box",
        "w ended: completed, version 0",
    ]


def test_a_lost_answer_submits_one_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is sent again with its key; without it there would be two plans, since each start has a name."""
    lost: list[httpx.Request] = []
    send = httpx.AsyncClient.send

    async def lose(self: httpx.AsyncClient, request: httpx.Request, **options: Any) -> httpx.Response:
        answer = await send(self, request, **options)
        if request.method == "POST" and not lost:
            lost.append(request)
            raise httpx.ReadError("the cable was cut")
        return answer

    monkeypatch.setattr(httpx.AsyncClient, "send", lose)
    with working_scene("server", tmp_path / "server", "") as scene:
        result = scene.run("run", files(scene)["plan"], "--plain")
        assert (result.exit_code, len(lost)) == (0, 1), result.output
        assert len(heads(scene)) == 1


def test_a_name_that_is_taken_at_a_server_is_explained(idle_server: SystemScene) -> None:
    plan = idle_server.folder / "taken.yaml"
    plan.write_text("asterism: 1\ntasks: {a: {shell: 'true'}}\n")
    idle_server.ok("plan", "list")
    idle_server.ask(lambda fleet: submit_plan(fleet, load(str(plan)).constellation))
    result = idle_server.run("run", str(plan), "--id", "{name}")
    assert result.exit_code == 64
    url = idle_server.address
    assert result.stderr == (
        f"Error: plan 'taken' exists in {url} (ready). A change of the plan file does not change it.\n"
        f"  Follow it with: asterism plan watch taken --store {url}\n"
        "  Start a new plan with another name: --id NAME\n"
    )


def test_a_plan_without_devices_says_so(tmp_path: Path) -> None:
    with (
        system_scene("server", tmp_path / "server", "", plans=True) as scene,
        scene.process("run", waiting_plan(scene), "--plain") as process,
    ):
        assert process.stderr is not None
        line = process.stderr.readline()
    assert line.startswith(
        "No device has joined, so the tasks wait. Join one with: asterism device join NAME --server "
    )
