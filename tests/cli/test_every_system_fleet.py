"""Commands on devices, workflows, schedules, notices, settings, tokens and the store, on every system."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asterism.api.credentials import Credentials
from asterism.api.local import fleet_handlers, schedule_handlers  # noqa: F401
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.fleet.fleet import Fleet
from asterism.fleet.joinable_devices import CODES
from asterism.gateway import enrolment
from asterism.store.protocol import Notice
from tests.cli.cli_scenes import read_until
from tests.cli.command_scenes import a_few, started, taken_by
from tests.cli.system_scenes import (
    Names,
    Row,
    SystemScene,
    nothing,
    rows_and_systems,
    run_everywhere,
    system_scene,
)

PLAN = "asterism: 1\ninclude: parts/more.yaml\nparams: {day: {default: monday}}\ntasks:\n  a: {shell: 'true'}\n"
MORE = "asterism: 1\ntasks:\n  b: {argv: [echo, '{params.day}'], after: a}\n"


# -- scenes ------------------------------------------------------------------------------------------------------------


def devices(scene: SystemScene) -> Names:
    """Two devices: one has a run to finish, the other has not been heard of for long."""
    scene.workflow("work")
    run = scene.create()
    scene.device("desk", can=frozenset({"gpu"}), profile={"battery": 0.5, "plugged": False, "labels": ["no", "map"]})
    scene.device("attic", timeout=1e-6)
    scene.step(run, taken_by("desk"), started)
    return {"run": run.id}


def workflow(scene: SystemScene) -> Names:
    scene.workflow("work", argv=("ffmpeg", "{file}"), needs={"gpu"})
    path = scene.folder / "flows.yaml"
    path.write_text("workflows:\n  first: {shell: 'true'}\n  second: {argv: [ls]}\n")
    return {"file": str(path)}


def schedules(scene: SystemScene) -> Names:
    names = workflow(scene)
    secret = {"token": {"secret": "API_TOKEN"}}
    scene.ask(lambda fleet: fleet.schedules.add("nightly", workflow="work", cron="0 3 * * *", input=secret))
    scene.ask(lambda fleet: fleet.schedules.add("rests", workflow="work", every=3600))
    scene.ask(lambda fleet: fleet.schedules.pause("rests", "holiday"))
    return {**names, "plan": plan_file(scene)}


def plan_file(scene: SystemScene) -> str:
    (scene.folder / "parts").mkdir()
    (scene.folder / "parts" / "more.yaml").write_text(MORE)
    path = scene.folder / "etl.yaml"
    path.write_text(PLAN)
    return str(path)


def plan_schedule(scene: SystemScene) -> Names:
    """A schedule of plans, and a backfill of it that no coordinator carries on."""
    plan = Constellation("etl")
    plan.add(Task("a", argv=["true"]))
    scene.ask(lambda fleet: fleet.schedules.add("etl", plan=plan, cron="0 3 * * *", after_previous="success"))
    scene.ask(lambda fleet: fleet.schedules.start_backfill("etl", "2026-01-01", "2026-01-03"))
    return {}


def backfill(*fields: str) -> State:
    async def read(fleet: Fleet) -> list[Any]:
        last = await fleet.schedules.read_backfill("etl")
        return [getattr(last, field) for field in fields]

    return lambda scene, names: scene.ask(read)


def run_schedule(scene: SystemScene) -> Names:
    names = schedules(scene)
    entry = scene.ask(lambda fleet: fleet.schedules.run("nightly"))
    return {**names, "run": str(entry.what)}


def notices(scene: SystemScene) -> Names:
    run = a_few(scene)[1].id

    async def leave(fleet: Fleet) -> None:
        now = fleet.store.clock()
        await fleet.store.commit([Notice(now - 5000.0, "late", "the first", run), Notice(now, "brake", "the second")])

    scene.ask(leave)
    return {"run": run}


def secret_settings(scene: SystemScene) -> Names:
    url = "https://user:hunter2@example.org/hook"
    scene.ask(lambda fleet: fleet.configure(notify_url=url, notify_command=("post", url)))
    return {}


def tokens(scene: SystemScene) -> Names:
    """The token of ann, which a server has anyway, and one of a robot."""

    async def create(fleet: Fleet) -> str:
        if scene.server is None:
            await Credentials(fleet.store).create("ann", ["admin"], by="test")
        return (await Credentials(fleet.store).create("ci", ["observe"], by="bob")).credential.id

    return {"token": scene.ask(create)}


def enrolled(scene: SystemScene) -> Names:
    """A device that has joined through a server."""

    async def enter(fleet: Fleet) -> None:
        code = await enrolment.invite(fleet.store, name="lab-1")
        await enrolment.enrol(fleet.store, code, "lab-1", "key")

    scene.ask(enter)
    return {}


# -- facts -------------------------------------------------------------------------------------------------------------

State = Callable[[SystemScene, Names], Any]


def changed(scene: SystemScene, names: Names) -> Any:
    """The reasons of changes that have no story."""
    return [notice["message"] for notice in notice_list(scene) if notice["kind"] == "changed"]


def notice_list(scene: SystemScene) -> Any:
    async def read(fleet: Fleet) -> list[dict[str, Any]]:
        return [{"kind": notice.kind, "message": notice.message} for _, notice in await fleet.store.notices()]

    return scene.ask(read)


def draining(scene: SystemScene, names: Names) -> Any:
    return scene.ask(draining_devices), changed(scene, names)


async def draining_devices(fleet: Fleet) -> list[str]:
    return [session.device for session in await fleet.devices() if session.draining]


def workflows(scene: SystemScene, names: Names) -> Any:
    async def read(fleet: Fleet) -> list[str]:
        return [f"{flow.name}@{flow.version}" for flow in await fleet.workflows.all()]

    return scene.ask(read)


def schedule(name: str, *fields: str) -> State:
    async def read(fleet: Fleet) -> list[Any]:
        by_name = {stored_schedule.name: stored_schedule for stored_schedule in await fleet.schedules.all()}
        return [getattr(by_name[name], field) for field in fields] if name in by_name else []

    return lambda scene, names: scene.ask(read)


def setting(name: str) -> State:
    async def read(fleet: Fleet) -> Any:
        return getattr(await fleet.settings(), name)

    return lambda scene, names: scene.ask(read)


def codes(scene: SystemScene, names: Names) -> Any:
    """For whom codes were made, and why."""

    async def read(fleet: Fleet) -> list[Any]:
        return [(register.value["name"], register.value["can"]) for register in await fleet.store.registers(CODES)]

    return scene.ask(read), changed(scene, names)


def token_state(scene: SystemScene, names: Names) -> Any:
    async def read(fleet: Fleet) -> list[str]:
        credentials = await Credentials(fleet.store).all()
        return [
            f"{credential.name} {credential.state(fleet.store.clock())}"
            for credential in credentials
            if credential.name != "ann"
        ]

    return scene.ask(read)


DEVICES = (
    Row("device list", "desk", devices),
    Row("devices list --json", '"labels": {{}}', devices),
    Row("device list", "No device has joined."),
    Row("device show desk", "Runs that it holds", devices),
    Row("device show desk --json", '"id": "{run}"', devices),
    Row("device show nobody", "no device 'nobody' has joined", devices, code=64),
    Row(
        *("device drain desk --reason repair", "desk was asked to leave; it has 1 run to finish.", devices, draining),
        (["desk"], ["ann asked device desk to leave: repair"]),
    ),
    Row("device drain attic", "it leaves when it comes back", devices, draining, (["attic"], [])),
    Row("device drain nobody", "no device 'nobody' is joined", devices, draining, ([], []), code=64),
    Row("device scores work", "no free slot", devices),
    Row("device scores {run} --json", '"assigned_to": "desk"', devices),
    Row("device scores zzzz", "there is no workflow 'zzzz', and no run has 'zzzz' in its id", devices, code=64),
)
WORKFLOWS = (
    Row(
        "workflow add cut --argv 'cut {{file}}' --reason new",
        "cut@1 added",
        workflow,
        changed,
        ["ann added workflow cut@1: new"],
    ),
    Row(
        "workflow add work --argv 'ffmpeg {{file}}' --needs gpu",
        "work@1 exists already",
        workflow,
        workflows,
        ["work@1"],
    ),
    Row("workflow add --file {file} --json", '"added": true', workflow, workflows, ["first@1", "second@1", "work@1"]),
    Row(
        "workflow add bad --argv true --heartbeat-timeout 1s --heartbeat 9s",
        "timeout",
        workflow,
        workflows,
        ["work@1"],
        code=64,
    ),
    Row("workflows list", "ffmpeg {{file}}", workflow),
    Row("workflow list", "There are no workflows."),
    Row("workflow show work@1", "assignment_timeout", workflow),
    Row("workflow show nothing", "there is no workflow 'nothing'", workflow, code=64),
    Row("workflow remove work --reason old", "Workflow 'work' is removed.", workflow, workflows, []),
    Row("workflow remove work", "Workflow 'work' is removed.", devices, workflows, []),
    Row("workflow remove work", "schedule 'nightly' creates its runs", schedules, workflows, ["work@1"], code=64),
)
SCHEDULES = (
    Row("schedule list", "0 3 * * * (UTC)", schedules),
    Row("schedules list --json", '"target": "workflow work"', schedules),
    Row("schedule list", "There are no schedules."),
    Row("schedule show nightly", '{{"token": {{"secret": "API_TOKEN"}}}}', schedules),
    Row("schedule show nightly --json", '"history": [{{"at": ', run_schedule),
    Row("schedule ticks nightly --from 2026-11-16 --to 2026-11-17", "2026-11-16T03:00:00+00:00", schedules),
    Row("schedule ticks nightly --from 2026-11-16T04:00 --to 2026-11-16T05:00", "no tick in this time", schedules),
    Row("schedule ticks nightly --json --from 2026-11-16 --limit 2", '"timezone": "UTC"', schedules),
    Row("schedule show nothing", "there is no schedule 'nothing'", schedules, code=64),
    Row(
        *(
            'schedule add hourly --every 1h --workflow work --input \'{{"file": "a"}}\'',
            "creates workflow work, every 1h",
        ),
        *(schedules, schedule("hourly", "input", "every", "created_by"), [{"file": "a"}, 3600, "ann"]),
    ),
    Row(
        *("schedule add etl --every 1h --plan {plan} --set day=friday", "creates plan etl, every 1h"),
        *(schedules, lambda scene, names: plan_of_schedule(scene), (["a", "b"], {"day": "friday"})),
    ),
    Row(
        "schedule add orders --on-event 'payment/*' --parallel 2 --plan {plan}",
        "creates plan etl, on event payment/*.",
        schedules,
        schedule("orders", "on_event", "parallel", "overlap"),
        ["payment/*", 2, "queue"],
    ),
    Row("schedule add nightly --every 1h --workflow work", "there is a schedule 'nightly' already", schedules, code=64),
    Row(
        "schedule add odd --cron '0 0 30 2 *' --workflow work",
        "never fires",
        schedules,
        schedule("odd", "cron"),
        [],
        code=64,
    ),
    Row("schedule add odd --every 1h --workflow wrok", "did you mean 'work'?", schedules, code=64),
    Row(
        "schedule pause nightly --reason lunch",
        "is paused, by ann: lunch.",
        schedules,
        schedule("nightly", "paused"),
        ["by ann: lunch"],
    ),
    Row("schedule pause rests", "was already paused, by ann: holiday.", schedules),
    Row(
        "schedule resume rests --reason back",
        "is resumed; next at",
        schedules,
        changed,
        ["ann resumed schedule 'rests': back"],
    ),
    Row("schedule resume nightly", "was not paused; next at", schedules, schedule("nightly", "paused"), [None]),
    Row("schedule next nightly -n 2", "03:00:00 UTC", schedules),
    Row("schedule history nightly", "on request", run_schedule),
    Row("schedule run nightly", "", schedules, schedule("nightly", "made"), [1]),
    Row("schedule run nightly", "has not ended.", run_schedule, schedule("nightly", "made"), [1], code=1),
    Row("schedule show etl", "after previous", plan_schedule),
    Row(
        "schedule add etl --every 1h --plan {plan} --set day=friday --after-previous success --late-after 2h",
        "creates plan etl, every 1h",
        schedules,
        schedule("etl", "after_previous", "late_after"),
        ["success", 7200.0],
    ),
    Row(
        "schedule add odd --every 1h --workflow work --late-after 2h",
        "after_previous and late_after are for plans",
        schedules,
        schedule("odd", "every"),
        [],
        code=64,
    ),
    Row(
        "schedule backfill etl --cancel --reason oops",
        "0 of 3 ticks done, cancelled by ann: oops",
        plan_schedule,
        backfill("cancelled"),
        ["by ann: oops"],
    ),
    Row("schedule backfill etl --detach --json", '"total": 3', plan_schedule, backfill("total", "parallel"), [3, 1]),
    Row("schedule backfill etl --from 2026-02-01 --detach", "has not ended; cancel it with", plan_schedule, code=64),
    Row("schedule backfill nightly --from 2026-01-01 --detach", "a backfill creates plans", schedules, code=64),
    Row("schedule backfill nightly --detach", "schedule 'nightly' has had no backfill", schedules, code=64),
    Row("schedule backfill etl --from 5x", "'5x' is not a valid tick", plan_schedule, code=64),
    Row("schedule backfill etl --parallel 2", "--parallel needs --from.", plan_schedule, code=64),
    Row("schedule remove nightly", "Schedule 'nightly' is removed.", schedules, schedule("nightly", "made"), []),
)
NOTICES = (
    Row("notice list", "the second", notices),
    Row("notices list --json --limit 1", '"kind": "brake"', notices),
    Row("notice list --kind late --run {run}", "the first", notices),
    Row("notice list --since 1h --limit 0", "the second", notices),
    Row("notice list --kind nothing", "No notice matches.", notices),
    Row("notice list", "There are no notices."),
    Row("notice list --run 00000000", "no run has '00000000' in its id", notices, code=64),
)
FLEET = (
    Row("fleet show", "runs are deleted 30 d after their end"),
    Row("fleet show --json", '"notify_command": ["post", "https://example.org/hook"]', secret_settings),
    Row(
        "fleet set --keep 7d --weight load=80 --reason disk",
        "load 80",
        left=["ann changed the settings keep, weights: disk"],
        state=changed,
    ),
    Row("fleet set --notify-url ''", "notify_url", secret_settings, setting("notify_url"), None),
    Row("fleet set --weight beauty=1", "there is no weight 'beauty'", code=64),
    Row("fleet metrics --window 1h", "# EOF", workflow),
    Row("fleet metrics --json", '"samples": ', workflow),
)
TOKENS = (
    Row("token list", "observe", tokens),
    Row("tokens list --json", '"created_by": "bob"', tokens),
    Row("token create --scope operate --for robot", "ast_", tokens, token_state, ["ci active", "robot active"]),
    Row(
        "token create --scope root --for robot",
        "'root' is not a valid scope",
        tokens,
        token_state,
        ["ci active"],
        code=64,
    ),
    Row("token revoke {token} --reason lost", "Revoked {token} of ci.", tokens, token_state, ["ci revoked"]),
    Row("token revoke nothing", "no token has the id 'nothing'", tokens, code=64),
    Row("token login --scope observe --server https://host.example", "https://host.example/login?code=", tokens),
)
LAB = ([("lab-1", ["gpu"])], ["ann invited device 'lab-1': new"])
INVITE = "device invite --name lab-1 --can gpu --server https://host:7400"
ENROLMENT = (
    Row(
        f"{INVITE} --reason new",
        "device join lab-1 --can gpu --server https://host:7400 --code astc_",
        nothing,
        codes,
        LAB,
    ),
    Row(f"{INVITE} --json", '"seconds": 600.0', nothing, codes, ([("lab-1", ["gpu"])], [])),
    Row("device invite --name plan@host", "the name 'plan@host' is reserved", nothing, codes, ([], []), code=64),
    Row(
        "device revoke lab-1 --reason stolen",
        "Revoked lab-1.",
        enrolled,
        changed,
        ["ann revoked device 'lab-1': stolen"],
    ),
    Row("device revoke lab-1 --json", '"revoked_at": ', enrolled, changed, []),
    Row("device revoke nobody", "no device 'nobody' is enrolled", enrolled, changed, [], code=64),
)
STORE = (
    Row("store info", "completed", notices),
    Row("store info --json", '"workflows": 1', workflow),
)


async def _plan_of_schedule(fleet: Fleet) -> Any:
    kept = await fleet.store.register("schedule-plan/etl")
    assert kept is not None
    return sorted(Constellation.from_json(kept.value["plan"]).nodes), kept.value["params"]


def plan_of_schedule(scene: SystemScene) -> Any:
    return scene.ask(_plan_of_schedule)


ROWS = (*DEVICES, *WORKFLOWS, *SCHEDULES, *NOTICES, *FLEET, *TOKENS, *ENROLMENT, *STORE)


@rows_and_systems(ROWS, others=pytest.mark.long)
def test_fleet(row: Row, systems: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run_everywhere(row, systems, tmp_path, request)


# -- what a server is not for ------------------------------------------------------------------------------------------

SERVER = "https://host.example:7400"
NEEDS_THE_STORE = {
    "device join desk": f"A device joins through it with: asterism device join desk --server {SERVER}",
    "monitor": "A monitor needs the store itself",
    "serve": "A server serves a store",
    "peer list": "This command needs the store itself",
    "store init": "A server has its store already",
    "store check": "`asterism store check` acts on the files of a store",
    "store backup {folder}/file": "`asterism store backup` acts on the files of a store",
    "store restore {folder}/file": "`asterism store restore` acts on the files of a store",
}


@pytest.mark.parametrize("words", NEEDS_THE_STORE)
def test_a_command_that_needs_the_store_says_so_on_a_server(words: str, tmp_path: Path) -> None:
    result = SystemScene(tmp_path).run(*words.format(folder=tmp_path).split(), ASTERISM_STORE=SERVER)
    assert result.exit_code == 64
    assert f"{SERVER} is a server. {NEEDS_THE_STORE[words]}" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_store_init_creates_an_empty_store_once(tmp_path: Path) -> None:
    scene = SystemScene(tmp_path)
    assert scene.ok("store", "init") == f"{scene.url} is created: an empty store.\n"
    scene.workflow("work")
    assert scene.ok("store", "init") == f"{scene.url} exists already.\n"
    assert scene.json("store", "init") == {"store": scene.url, "created": False}
    assert workflows(scene, {}) == ["work@1"]


def test_notices_are_followed_through_a_restart_of_the_server_and_none_is_lost_or_repeated(tmp_path: Path) -> None:
    def leave(text: str) -> None:
        scene.ask(lambda fleet: fleet.store.commit([Notice(fleet.store.clock(), "late", text)]))

    with system_scene("server", tmp_path / "server", "") as scene:
        assert scene.server is not None
        leave("before")
        with scene.process("notice", "list", "--follow", "--json") as process:
            lines = read_until(process, "before")
            leave("first")
            lines += read_until(process, "first")
            scene.server.stop()
            leave("while it was away")
            scene.server.start()
            leave("last")
            lines += read_until(process, "last")
    assert [json.loads(line)["message"] for line in lines] == ["before", "first", "while it was away", "last"]
