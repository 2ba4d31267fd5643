"""`asterism schedule`: add, list, show, pause, resume, remove, next, history and run."""

from __future__ import annotations

from pathlib import Path

import pytest

from asterism.fleet.fleet import Fleet
from asterism.fleet.monitor import Monitor
from tests.cli.command_scenes import Scene

NIGHTLY = ("schedule", "add", "nightly", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin", "--workflow", "work")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path)
    scene.workflow("work")
    return scene


def refused(scene: Scene, *words: str) -> str:
    result = scene.run("schedule", *words)
    assert result.exit_code == 64, result.output
    return result.stderr


def test_a_schedule_from_adding_to_removing(scene: Scene) -> None:
    result = scene.run(*NIGHTLY, "--input", '{"n": 1}')
    assert result.stdout.startswith("Schedule 'nightly' creates workflow work, 0 3 * * * (Europe/Berlin); first at 20")
    assert "03:00:00 CE" in result.stdout
    assert "No coordinator is running, so nothing is created. Start one with: asterism monitor" in result.stderr
    [listed] = scene.json("schedule", "list")
    assert (listed["name"], listed["workflow"], listed["input"], listed["made"]) == ("nightly", "work", {"n": 1}, 0)
    assert 0 < listed["due_in"] <= 86_400 + 3600
    table = scene.ok("schedule", "list")
    assert "SCHEDULE" in table
    assert "0 3 * * * (Europe/Berlin)" in table
    assert scene.ok("schedule", "remove", "nightly") == "Schedule 'nightly' is removed.\n"
    empty = scene.run("schedule", "list")
    assert empty.stderr.startswith("There are no schedules. Add one with: asterism schedule add NAME")
    assert scene.json("schedule", "list") == []


def test_next_times_are_in_the_time_zone(scene: Scene) -> None:
    scene.ok(*NIGHTLY)
    lines = scene.ok("schedule", "next", "nightly", "-n", "3").splitlines()
    assert len(lines) == 3
    assert all(line[11:23] == "03:00:00 CET" or line[11:24] == "03:00:00 CEST" for line in lines)
    ticks = scene.json("schedule", "next", "nightly")
    assert len(ticks) == 5
    assert ticks[1]["at"] - ticks[0]["at"] in (82_800, 86_400, 90_000)


def test_pause_and_resume(scene: Scene) -> None:
    scene.ok(*NIGHTLY)
    words = scene.ok("schedule", "pause", "nightly", "--reason", "holiday")
    assert words == "Schedule 'nightly' is paused, by ann: holiday.\n"
    assert "was already paused, by ann: holiday" in scene.ok("schedule", "pause", "nightly")
    nothing = scene.run("schedule", "next", "nightly")
    assert nothing.stdout == ""
    assert "Resume it with: asterism schedule resume nightly" in nothing.stderr
    assert "paused" in scene.ok("schedule", "list")
    assert "holiday" in scene.ok("schedule", "show", "nightly")
    assert scene.ok("schedule", "resume", "nightly").startswith("Schedule 'nightly' is resumed; next at 20")
    assert scene.json("schedule", "resume", "nightly")["paused"] is None


def test_run_and_history(scene: Scene) -> None:
    scene.ok(*NIGHTLY)
    assert "has created nothing yet" in scene.run("schedule", "history", "nightly").stderr
    run_id = scene.ok("schedule", "run", "nightly").strip()
    assert scene.json("runs", "show", run_id)["workflow"] == "work"
    again = scene.run("schedule", "run", "nightly")
    assert (again.exit_code, again.stderr) == (1, f"Nothing was created: {run_id} has not ended.\n")
    entries = scene.json("schedule", "history", "nightly")
    assert [(entry["outcome"], entry["tick"], entry["what"]) for entry in entries] == [
        ("created", None, run_id),
        ("skipped", None, None),
    ]
    table = scene.ok("schedule", "history", "nightly")
    assert "on request" in table
    assert run_id[-8:] in table
    shown = scene.json("schedule", "show", "nightly")
    assert (shown["open"], shown["made"], shown["coordinator"]) == ([run_id], 1, None)
    assert len(shown["history"]) == 2
    text = scene.ok("schedule", "show", "nightly")
    assert "Start one with: asterism monitor" in text
    assert run_id in text


def test_ticks_are_in_the_history(scene: Scene) -> None:
    scene.ok("schedule", "add", "poll", "--every", "1s", "--workflow", "work", "--jitter", "500ms")

    async def passes(fleet: Fleet) -> None:
        monitor = Monitor(fleet, "hub")
        while not await fleet.schedules.history("poll"):
            await monitor.run_pass()

    scene.ask(passes)
    [entry, *_] = scene.json("schedule", "history", "poll")
    assert entry["outcome"] == "created"
    assert scene.json("runs", "show", entry["what"])["key"].startswith("schedule:poll/20")


def test_a_schedule_can_be_changed(scene: Scene) -> None:
    scene.ok(*NIGHTLY)
    again = refused(scene, *NIGHTLY[1:])
    assert "there is a schedule 'nightly' already" in again
    assert "; change it with --replace" in again
    scene.ok("schedule", "add", "nightly", "--every", "5m", "--workflow", "work", "--overlap", "queue", "--replace")
    schedule = scene.json("schedule", "show", "nightly")
    assert (schedule["every"], schedule["cron"], schedule["overlap"]) == (300, None, "queue")


def test_secrets_in_the_input_are_not_shown(scene: Scene) -> None:
    scene.ok(*NIGHTLY, "--input", '{"token": {"secret": "API_TOKEN"}}', API_TOKEN="hunter2-hunter2")
    text = scene.ok("schedule", "show", "nightly", API_TOKEN="hunter2-hunter2")
    assert "API_TOKEN" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--cron", "0 0 30 2 *"),
            "the cron expression '0 0 30 2 *' never fires: no month that it names has such a day",
        ),
        (("--cron", "0 0 * *"), "has 4 fields; it must have 5"),
        (
            ("--cron", "0 3 * * *", "--timezone", "Berlin"),
            "there is no time zone 'Berlin'; did you mean Europe/Berlin?",
        ),
        (("--every", "5m", "--timezone", "Europe/Berlin"), "a time zone needs a cron expression"),
        (("--cron", "0 3 * * *", "--every", "5m"), "Give one of --cron, --every and --on-event."),
        ((), "Give one of --cron, --every and --on-event."),
        (("--every", "500ms"), "the interval must be a whole number of seconds"),
        (("--every", "0s"), "the duration must be above zero"),
        (("--every", "99999w"), "every must be a whole number of seconds from 1 to 316,224,000"),
        (("--every", "1m", "--overlap", "both"), "is not one of 'skip', 'queue', 'replace', 'allow'"),
        (("--every", "1m", "--input", "[1]"), "not a JSON object"),
    ],
)
def test_what_cannot_be_added(scene: Scene, words: tuple[str, ...], message: str) -> None:
    assert message in refused(scene, "add", "bad", "--workflow", "work", *words)
    assert scene.json("schedule", "list") == []


def test_names_that_do_not_exist(scene: Scene) -> None:
    assert "there is no workflow 'wrok'; did you mean 'work'?" in refused(
        scene, "add", "a", "--every", "1m", "--workflow", "wrok"
    )
    assert "there is no workflow 'nope'" in refused(scene, "add", "a", "--every", "1m", "--workflow", "nope")
    assert "Give either --workflow or --plan" in refused(scene, "add", "a", "--every", "1m")
    for command in ("show", "pause", "resume", "remove", "next", "history", "run"):
        assert "there is no schedule 'nope'; list them with: asterism schedule list" in refused(scene, command, "nope")


PLAN = """asterism: 1
tasks:
  extract: {shell: "echo 41"}
  load: {shell: "echo loading", after: extract}
"""


def test_a_schedule_of_a_plan_file(scene: Scene, tmp_path: Path) -> None:
    path = tmp_path / "etl.yaml"
    path.write_text(PLAN, "utf-8")
    added = scene.run("schedule", "add", "etl", "--every", "1h", "--plan", str(path))
    assert added.stdout.startswith("Schedule 'etl' creates plan etl, every 1h; first at 20")
    assert added.stderr == "No coordinator is running, so nothing is created. Start one with: asterism monitor\n"
    path.unlink()  # the store keeps it
    assert scene.ok("schedule", "show", "etl", "--plan-file") == PLAN
    name = scene.ok("schedule", "run", "etl").strip()
    assert name.startswith("etl-")
    assert [plan["name"] for plan in scene.json("plan", "list")] == [name]
    assert f"no process runs {name}. Start one with: asterism monitor" in scene.ok("schedule", "show", "etl")
    assert name in scene.ok("schedule", "history", "etl")
    assert scene.json("schedule", "list")[0]["plan"] == "etl"


def test_plan_files_that_cannot_be_used(scene: Scene, tmp_path: Path) -> None:
    path = tmp_path / "etl.yaml"
    path.write_text("asterism: 1\ntasks:\n  a: {shel: x}\n", "utf-8")
    words = refused(scene, "add", "etl", "--every", "1h", "--plan", str(path))
    assert "etl.yaml:3" in words
    assert "nothing was done" in words
    assert "cannot be read" in refused(scene, "add", "etl", "--every", "1h", "--plan", str(tmp_path / "none.yaml"))
    both = refused(scene, "add", "etl", "--every", "1h", "--plan", str(path), "--workflow", "work")
    assert "Give either --workflow or --plan" in both
    scene.ok(*NIGHTLY)
    assert "keeps no plan file" in refused(scene, "show", "nightly", "--plan-file")
    path.write_text(PLAN, "utf-8")
    words = refused(scene, "add", "etl", "--every", "1h", "--plan", str(path), "--priority", "3")
    assert "are for the runs of a workflow, not for a plan" in words


def test_a_plan_with_parameters(scene: Scene) -> None:
    path = scene.folder / "etl.yaml"
    path.write_text("asterism: 1\nparams: {day: {}}\ntasks:\n  a: {argv: [echo, '{params.day}']}\n")
    words = ("add", "p", "--every", "1h", "--plan", str(path))
    assert "parameter 'day': a value is required; give one with --set day=VALUE" in refused(scene, *words)
    assert "--set needs --plan" in refused(scene, "add", "a", "--every", "1h", "--workflow", "work", "--set", "day=1")
    scene.ok("schedule", *words, "--set", "day=monday")
    assert "params       day=monday\n" in scene.ok("schedule", "show", "p")
    assert scene.json("schedule", "show", "p")["params"] == {"day": "monday"}
    scene.ok("schedule", "run", "p")
    [plan] = scene.json("plan", "list")
    assert scene.json("plan", "show", plan["name"])["params"] == {"day": "monday"}
