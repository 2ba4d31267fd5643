"""`asterism runs`: creating, listing, showing, asking things of them."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path

import pytest
from fleet_scenes import Scene, assigned_to, completed, failed, started, taken_by

from asterism.core import assigning
from asterism.core.run import Progress, Run
from asterism.runtime.fleet.fleet import Fleet
from asterism.store.protocol import Report

FIELDS = {
    *("id", "workflow", "version", "created_at", "created_by", "key", "series", "priority", "pinned", "retry_of"),
    *("timeout", "revision", "epoch", "device", "session", "assigned_by", "assigned_at", "claimed_at", "started_at"),
    *("ended_at", "due_at", "waiting_since", "not_before", "held", "paused", "wish", "wished_by", "failures"),
    *("losses", "rounds", "error", "cancelled", "status", "assigned_to", "last_heartbeat_at"),
    *("assignment_expires_at", "claim_expires_at", "completed_at", "failed_at", "avoid", "declined"),
    *("previous_assignments", "scores", "progress", "input", "output", "story"),
}
"""What programs count on."""


# -- creating ----------------------------------------------------------------------------------------------------------


def test_without_a_device_a_new_run_says_so_and_what_to_do(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow(argv=("cp", "{file}", "{out}"), needs={"gpu"})
    result = scene.run("runs", "create", "work", "--input", '{"file": "a", "out": "b"}')
    run_id = result.stdout.strip()
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "It waits: no device is joined.",
        "Start one that can, on any machine that reaches the store: asterism device join NAME --can gpu",
        f"Follow it with: asterism runs watch, or asterism why {run_id[-8:]}",
    ]
    assert scene.json("runs", "show", run_id)["input"] == {"file": "a", "out": "b"}


def test_a_new_run_says_which_device_it_is_assigned_to(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    scene.device("laptop")
    result = scene.run("runs", "create", "work")
    assert "It is assigned to laptop, score 90.0." in result.stderr


def test_a_run_that_no_device_can_take_says_why_of_each(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow(argv=("true",), needs={"gpu"})
    scene.device("laptop")
    result = scene.run("runs", "create", "work")
    assert "It waits: the only device cannot take it; laptop: it cannot gpu." in result.stderr
    assert "asterism device join NAME --can gpu" in result.stderr


def test_all_that_can_be_said_of_a_run_is_said_at_its_creation(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    told = scene.json(
        "runs",
        "create",
        "work",
        "--key",
        "k",
        "--series",
        "s",
        "--priority",
        "7",
        "--device",
        "laptop",
        "--input",
        "{}",
    )
    assert set(told) == FIELDS
    assert [told[name] for name in ("key", "series", "priority", "pinned", "created_by", "status")] == [
        *("k", "s", 7, "laptop"),
        *("ann", "created"),
    ]
    assert scene.json("runs", "create", "work", "--key", "k")["id"] == told["id"]


def test_a_key_that_was_used_names_the_run_of_that_time(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    run = scene.step(scene.create(key="k"), taken_by("laptop"), started, completed(1))
    result = scene.run("runs", "create", "work", "--key", "k")
    assert result.stdout == f"{run.id}\n"
    assert result.stderr == "It is completed already: the key 'k' was used before.\n"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ('{"file": ', "what is given cannot be used: it is not JSON: Expecting value, line 1, column 10"),
        ("[1, 2]", "is a list: write an object of named values"),
        ('{"file": Infinity}', "Infinity is not JSON"),
        ("@none.json", "none.json cannot be read: No such file or directory"),
        ('{"out": 1}', "workflow 'work' asks for file: give --input '{\"file\": …}'"),
    ],
)
def test_an_input_that_cannot_be_right_creates_nothing(tmp_path: Path, given: str, words: str) -> None:
    scene = Scene(tmp_path)
    scene.workflow(argv=("cp", "{file}", "{out}", "{{x}}"))
    result = scene.run("runs", "create", "work", "--input", given)
    assert (result.exit_code, result.stdout) == (64, "")
    assert words in result.stderr
    assert scene.json("runs", "list") == []


def test_an_address_that_asks_for_inputs_gets_them(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow(http={"url": "http://localhost/{a}/{b}"})
    result = scene.run("runs", "create", "work")
    assert "workflow 'work' asks for a and b" in result.stderr


def test_the_input_may_come_from_the_standard_input(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    scene.ok("runs", "create", "work", "--input", "-", given='{"n": "é"}')
    assert [run["input"] for run in scene.json("runs", "list")] == [{"n": "é"}]


def test_an_input_of_ten_megabytes_is_kept_apart_and_comes_back_whole(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    given = {"text": "x" * 10_000_000}
    (tmp_path / "large.json").write_text(json.dumps(given))
    told = scene.json("runs", "create", "work", "--input", f"@{tmp_path / 'large.json'}")
    assert told["input"] == {"$blob": told["input"]["$blob"], "size": 10_000_011}
    assert "input    9.537 MiB, kept apart" in scene.ok("runs", "show", told["id"])

    async def fetched(fleet: Fleet) -> object:
        return await fleet.blobs.fetch((await fleet.run(told["id"])).input)

    assert scene.ask(fetched) == given


def test_an_input_beyond_what_the_fleet_keeps_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    scene.ok("fleet", "set", "--most", "1k", "--large", "1k")
    result = scene.run("runs", "create", "work", "--input", json.dumps({"text": "x" * 2000}))
    assert result.exit_code == 64
    assert "has 2,011 bytes, and this fleet keeps at most 1,024" in result.stderr


def test_a_workflow_may_stay_in_its_file(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    path = tmp_path / "flows.yaml"
    path.write_text("workflows:\n  a: {shell: echo 1}\n  b: {shell: echo 2}\n")
    assert scene.json("runs", "create", "b", "--file", str(path))["workflow"] == "b"
    assert scene.json("runs", "create", "b", "--file", str(path))["version"] == 1
    for words, told in [
        (["c"], "has no workflow 'c', but a and b."),
        ([], "has several workflows: name one of a and b."),
    ]:
        result = scene.run("runs", "create", *words, "--file", str(path))
        assert result.exit_code == 64
        assert told in result.stderr
    path.write_text("name: only\nshell: echo 1\n")
    assert scene.json("runs", "create", "--file", str(path))["workflow"] == "only"


def test_a_run_of_nothing_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert "Give the name of a WORKFLOW, or a --file with one." in scene.run("runs", "create").stderr
    result = scene.run("runs", "create", "work")
    assert result.exit_code == 64
    assert "there is no workflow 'work'; add it with `asterism workflow add work …`" in result.stderr


# -- listing -----------------------------------------------------------------------------------------------------------


def a_few(scene: Scene) -> list[Run]:
    """One that completed, one that failed, one under way, and one that waits for a device."""
    scene.workflow("work")
    scene.workflow("play", shell="echo 1")
    runs = [scene.create(name) for name in ("work", "play", "work")]
    scene.device("laptop")
    return [
        scene.step(runs[0], taken_by("laptop"), started, completed({"n": 5})),
        scene.step(runs[1], taken_by("laptop"), started, failed("no luck")),
        scene.step(runs[2], taken_by("laptop"), started),
        scene.create("play", series="s", device="desktop"),
    ]


def test_runs_are_listed_in_a_table(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    done, bad, busy, new = a_few(scene)
    titles, *rows = scene.ok("runs", "list").splitlines()
    assert titles.split() == ["RUN", "WORKFLOW", "STATUS", "DEVICE", "FOR", "BEAT", "NOTE"]
    words = [row.split() for row in rows]
    assert [row[:4] for row in words] == [
        ["●", done.id[-8:], "work", "completed"],
        ["✗", bad.id[-8:], "play", "failed"],
        ["◐", busy.id[-8:], "work", "processing"],
        ["○", new.id[-8:], "play", "created"],
    ]
    assert rows[1].endswith("no luck")
    assert rows[3].endswith("only on desktop")


def test_the_list_may_be_narrowed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    done, bad, busy, new = (run.id for run in a_few(scene))

    def listed(*words: str) -> list[str]:
        return [run["id"] for run in scene.json("runs", "list", *words)]

    assert listed() == [done, bad, busy, new]
    assert listed("--newest") == [new, busy, bad, done]
    assert listed("--limit", "2") == [busy, new]
    assert listed("--limit", "0") == [done, bad, busy, new]
    assert listed("--status", "failed", "--status", "processing") == [bad, busy]
    assert listed("--status", "open") == [busy, new]
    assert listed("--status", "ended") == [done, bad]
    assert listed("--workflow", "play") == [bad, new]
    assert listed("--device", "laptop") == [done, bad, busy]
    assert listed("--series", "s") == [new]
    result = scene.run("runs", "list", "--limit", "3")
    assert "There are more than these 3: --limit 0 shows all." in result.stderr
    assert "There are no such runs." in scene.run("runs", "list", "--workflow", "none").stderr


def test_a_fleet_without_runs_says_what_to_do(tmp_path: Path) -> None:
    result = Scene(tmp_path).run("runs", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "There are no runs yet: asterism runs create WORKFLOW" in result.stderr


def test_as_json_a_run_has_the_names_that_programs_count_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    a_few(scene)
    done, bad, busy, new = scene.json("runs", "list")
    assert all(set(run) == FIELDS for run in (done, bad, busy, new))
    assert (done["status"], done["output"], done["completed_at"]) == ("completed", {"n": 5}, done["ended_at"])
    assert (bad["status"], bad["error"], bad["failed_at"]) == ("failed", "no luck", bad["ended_at"])
    assert bad["previous_assignments"] == [
        {
            "device": "laptop",
            "epoch": 1,
            "assigned_at": bad["assigned_at"],
            "ended_at": bad["ended_at"],
            "reason": "failed",
            "detail": "no luck",
        }
    ]
    assert busy["assigned_to"] == busy["device"] == "laptop"
    assert busy["last_heartbeat_at"] > 0
    assert [entry["what"] for entry in busy["story"]] == ["created", "assigning to self", "claimed", "processing"]
    assert new["last_heartbeat_at"] is new["completed_at"] is new["assigned_to"] is None


def test_as_json_an_assignment_and_a_claim_say_when_they_run_out(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    one, other = scene.create(), scene.create()
    scene.step(one, assigned_to("laptop"))
    scene.step(other, taken_by("laptop"))
    first, second = scene.json("runs", "list")
    assert first["assignment_expires_at"] == pytest.approx(first["assigned_at"] + 30)
    assert second["claim_expires_at"] == pytest.approx(second["claimed_at"] + 60)
    assert first["claim_expires_at"] is second["assignment_expires_at"] is None
    assert first["scores"] == {"laptop": 90.0}


# -- one run -----------------------------------------------------------------------------------------------------------


def test_a_run_is_shown_with_its_story(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow(argv=("true",), retries=1, backoff=0)
    run = scene.create(given={"n": 1}, priority=5)
    scene.device("laptop")
    scene.step(run, assigned_to("laptop"))
    scene.step(run, lambda one, flow, now: _declined(one, now))
    run = scene.step(run, taken_by("laptop"), started, failed("the disk is full"), taken_by("laptop"), started)
    text = scene.ok("runs", "show", run.id[-6:])
    for words in (
        f"◐ {run.id}  work@1  processing",
        " by ann",
        "device     laptop, epoch 3",
        "heartbeat",
        "it counts as lost after 90 s",
        'input      {"n": 1}',
        "priority   5",
        "attempts   3 (1 failed)",
        "it has been running on laptop for",
        "declined: it is raining",
        "Assignments that ended",
        "failed    the disk is full",
    ):
        assert words in text, text
    told = scene.json("runs", "show", run.id)
    assert set(told) == FIELDS | {"tail", "notices", "why"}
    assert [one["reason"] for one in told["previous_assignments"]] == ["declined", "failed"]
    assert [one["kind"] for one in told["why"]] == ["running"]


def _declined(run: Run, now: float) -> Run:
    assert run.grant is not None
    return assigning.decline(run, run.grant, "it is raining", now)


def test_a_failed_run_is_shown_with_its_error_and_its_notice(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    _, bad, _, _ = a_few(scene)
    text = scene.ok("runs", "show", bad.id)
    assert "error    no luck" in text
    assert f"run {bad.id} (play) failed: no luck" in text
    assert scene.json("runs", "show", bad.id)["notices"][0]["kind"] == "failed"


def test_what_a_run_says_is_shown_as_far_as_its_device_has_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    _, _, busy, _ = a_few(scene)

    async def tell(fleet: Fleet) -> None:
        report = Report(busy.id, busy.epoch, Progress(3, 10), "frame 1\nframe \x1b[31m2")
        await fleet.store.beat("session-laptop", {}, [report])

    scene.ask(tell)
    text = scene.ok("runs", "show", busy.id)
    assert "progress   3/10" in text
    assert "Output so far, its end\n  frame 1\n  frame ·[31m2" in text
    told = scene.json("runs", "show", busy.id)
    assert (told["progress"], told["tail"]) == ({"step": 3, "total": 10}, "frame 1\nframe \x1b[31m2")
    assert " 3/10" in scene.ok("runs", "list")


def beginning_of(runs: list[Run]) -> str:
    """What the ids of all of them begin with."""
    places = zip(*(run.id for run in runs), strict=True)
    return "".join(letters[0] for letters in takewhile(lambda some: len(set(some)) == 1, places))


def test_a_run_is_meant_by_any_part_of_its_id_that_no_other_has(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    one, other = scene.create(), scene.create()
    part = beginning_of([one, other])
    assert scene.json("runs", "show", one.id[len(part) :].upper())["id"] == one.id
    result = scene.run("runs", "show", part)
    assert (result.exit_code, result.stdout) == (64, "")
    assert f"Error: '{part}' is in the ids of several runs; give more of the id:" in result.stderr
    for run in (one, other):
        assert f"  {run.id}  work  created" in result.stderr
    result = scene.run("runs", "show", "zzz")
    assert "there is no run with 'zzz' in its id" in result.stderr
    assert "not by nothing" in scene.run("runs", "show", " ").stderr


def test_very_many_candidates_are_not_all_listed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()

    async def many(fleet: Fleet) -> list[Run]:
        return [await fleet.create("work") for _ in range(13)]

    runs = scene.ask(many)
    result = scene.run("runs", "show", beginning_of(runs))
    assert result.stderr.count("  work  created") == 10
    assert "and more than 10 in all" in result.stderr


# -- what is asked of runs ---------------------------------------------------------------------------------------------


def test_runs_are_cancelled_at_once_or_their_devices_are_asked(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    done, _, busy, new = a_few(scene)
    result = scene.run("runs", "cancel", new.id, busy.id, done.id, new.id)
    assert result.exit_code == 64
    assert result.stdout.splitlines() == [
        f"{new.id[-8:]} cancelled by ann",
        f"{busy.id[-8:]}: laptop was asked to cancel it",
    ]
    assert result.stderr == (f"Run {done.id}: it is completed and will not change any more: it cannot be cancelled.\n")
    again = scene.json("runs", "cancel", busy.id)
    assert [(run["status"], run["wish"], run["wished_by"]) for run in again] == [("processing", "cancel", "ann")]
    assert scene.ok("runs", "cancel", busy.id) == f"{busy.id[-8:]} is as it was: processing\n"
    assert " cancelling " in scene.ok("runs", "list")
    assert " cancelled " in scene.ok("runs", "list")


def test_runs_are_paused_with_a_reason_and_resumed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    _, _, busy, new = a_few(scene)
    assert scene.ok("runs", "pause", new.id, busy.id, "--reason", "the disk is full").splitlines() == [
        f"{new.id[-8:]} is paused by ann: the disk is full",
        f"{busy.id[-8:]}: laptop was asked to pause it",
    ]
    listed = scene.ok("runs", "list")
    assert " paused " in listed
    assert " pausing " in listed
    assert scene.ok("runs", "resume", new.id, busy.id).splitlines() == [
        f"{new.id[-8:]} waits for a device",
        f"{busy.id[-8:]} goes on",
    ]
    result = scene.run("runs", "resume", new.id)
    assert (result.exit_code, result.stderr) == (
        64,
        f"Run {new.id}: it is created: it cannot be resumed: it is not paused.\n",
    )


def test_a_retry_is_a_new_run_that_names_the_old_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    _, bad, busy, _ = a_few(scene)
    new_id, *words = scene.ok("runs", "retry", bad.id).split()
    assert words[:5] == ["is", "a", "retry", "of", f"{bad.id[-8:]}:"]
    assert scene.json("runs", "show", new_id)["retry_of"] == bad.id
    assert "retry of " in scene.ok("runs", "show", new_id)
    [again] = scene.json("runs", "retry", bad.id)
    assert again["retry_of"] == bad.id
    result = scene.run("runs", "retry", busy.id, bad.id)
    assert result.exit_code == 64
    assert "only a run that has ended can be retried" in result.stderr
    assert f"is a retry of {bad.id[-8:]}" in result.stdout


def test_what_a_run_returned_is_printed_as_it_is(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    runs = [scene.create() for _ in range(3)]
    for run, output in zip(runs, ["a line\nand another", {"n": [1, "é"]}, "x" * 200_000], strict=True):
        scene.step(run, taken_by("laptop"), started, completed(output if len(output) < 99 else _kept(scene, output)))
    assert scene.ok("runs", "output", runs[0].id) == "a line\nand another\n"
    assert scene.json("runs", "output", runs[0].id) == "a line\nand another"
    assert scene.ok("runs", "output", runs[1].id) == '{"n": [1, "é"]}\n'
    assert scene.ok("runs", "output", runs[2].id) == "x" * 200_000 + "\n"


def _kept(scene: Scene, value: str) -> object:
    async def keep(fleet: Fleet) -> object:
        return await fleet.blobs.keep(value, await fleet.settings(), "it")

    return scene.ask(keep)


def test_a_run_that_returned_nothing_says_why(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    _, bad, busy, _ = a_few(scene)
    result = scene.run("runs", "output", bad.id)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Run {bad.id} failed: no luck\n")
    result = scene.run("runs", "output", busy.id)
    assert (result.exit_code, result.stdout) == (64, "")
    assert "is processing: it has returned nothing yet" in result.stderr


def test_waiting_tells_each_end_and_whether_one_failed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    done, bad, _, new = a_few(scene)
    result = scene.run("runs", "wait", done.id, bad.id)
    assert result.exit_code == 1
    assert sorted(line.split(" after ")[0] for line in result.stdout.splitlines()) == sorted(
        [f"{done.id[-8:]} completed on laptop", f"{bad.id[-8:]} failed on laptop"]
    )
    told = scene.json("runs", "wait", bad.id, done.id, code=1)
    assert [run["id"] for run in told] == [bad.id, done.id]
    assert scene.run("runs", "wait", done.id).exit_code == 0
    scene.ok("runs", "cancel", new.id)
    result = scene.run("runs", "wait", new.id)
    assert (result.exit_code, result.stdout) == (1, f"{new.id[-8:]} cancelled by ann\n")


def test_old_runs_are_forgotten(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    a_few(scene)
    assert scene.ok("runs", "prune", "--older-than", "30d") == "0 runs forgotten.\n"
    assert scene.json("runs", "prune", "--older-than", "0") == {"pruned": 2}
    assert [run["status"] for run in scene.json("runs", "list")] == ["processing", "created"]
    assert "'30 days' is no duration" in scene.run("runs", "prune", "--older-than", "30 days").stderr


def test_what_a_terminal_would_act_upon_never_reaches_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    run = scene.step(scene.create(), taken_by("laptop"), started, failed("\x1b]0;gotcha\x07\x1b[2J"))
    for words in (["list"], ["show", run.id], ["wait", run.id]):
        assert "\x1b" not in scene.run("runs", *words).output
    assert "\x1b" not in scene.run("why", run.id).output
