"""`asterism runs create` and `asterism runs list`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asterism.fleet import run_queries
from asterism.fleet.fleet import Fleet
from asterism.fleet.workflows import VERSIONS
from asterism.store.protocol import PutRegister
from tests.cli.command_scenes import RUN_FIELDS, Scene, a_few, assigned_to, completed, started, taken_by

# -- creating ----------------------------------------------------------------------------------------------------------


def test_without_a_device_a_new_run_says_so_and_what_to_do(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow(argv=("cp", "{file}", "{out}"), needs={"gpu"})
    result = scene.run("runs", "create", "work", "--input", '{"file": "a", "out": "b"}')
    run_id = result.stdout.strip()
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "It waits: no device is joined.",
        "On any machine that reaches the store, start a capable device: asterism device join NAME --can gpu",
        f"Follow it with: asterism runs watch, or: asterism runs why {run_id[-8:]}",
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
    assert "It waits: the only device cannot take it; laptop: it lacks gpu." in result.stderr
    assert "asterism device join NAME --can gpu" in result.stderr


def test_every_term_of_a_run_can_be_given_at_its_creation(tmp_path: Path) -> None:
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
    assert set(told) == RUN_FIELDS
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
    assert result.stderr == "A run with the key 'k' exists: it is completed.\n"


@pytest.mark.parametrize(
    ("run_input", "words"),
    [
        ('{"file": ', "the value cannot be used: it is not JSON: Expecting value, line 1, column 10"),
        ("[1, 2]", "is a list, not a JSON object"),
        ('{"file": Infinity}', "Infinity is not JSON"),
        ("@none.json", "none.json cannot be read: No such file or directory"),
        ('{"out": 1}', "workflow 'work' needs file: give --input '{\"file\": …}'"),
    ],
)
def test_an_input_that_cannot_be_right_creates_nothing(tmp_path: Path, run_input: str, words: str) -> None:
    scene = Scene(tmp_path)
    scene.workflow(argv=("cp", "{file}", "{out}", "{{x}}"))
    result = scene.run("runs", "create", "work", "--input", run_input)
    assert (result.exit_code, result.stdout) == (64, "")
    assert words in result.stderr
    assert scene.json("runs", "list") == []


def test_an_address_that_asks_for_inputs_gets_them(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow(http={"url": "http://localhost/{a}/{b}"})
    result = scene.run("runs", "create", "work")
    assert "workflow 'work' needs a and b" in result.stderr


def test_the_input_may_come_from_the_standard_input(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    scene.ok("runs", "create", "work", "--input", "-", stdin='{"n": "é"}')
    assert [run["input"] for run in scene.json("runs", "list")] == [{"n": "é"}]


def test_an_input_of_ten_megabytes_is_kept_apart_and_comes_back_whole(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    run_input = {"text": "x" * 10_000_000}
    (tmp_path / "large.json").write_text(json.dumps(run_input))
    told = scene.json("runs", "create", "work", "--input", f"@{tmp_path / 'large.json'}")
    assert told["input"] == {"$blob": told["input"]["$blob"], "size": 10_000_011}
    assert "input    9.537 MiB, stored apart" in scene.ok("runs", "show", told["id"])

    async def fetched(fleet: Fleet) -> object:
        return await fleet.blobs.fetch((await fleet.run(told["id"])).input)

    assert scene.ask(fetched) == run_input


def test_an_input_beyond_what_the_fleet_keeps_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    scene.ok("fleet", "set", "--most", "1k", "--large", "1k")
    result = scene.run("runs", "create", "work", "--input", json.dumps({"text": "x" * 2000}))
    assert result.exit_code == 64
    assert "has 2,011 bytes, and the limit is 1,024" in result.stderr


def test_a_workflow_may_stay_in_its_file(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    path = tmp_path / "flows.yaml"
    path.write_text("workflows:\n  a: {shell: echo 1}\n  b: {shell: echo 2}\n")
    assert scene.json("runs", "create", "b", "--file", str(path))["workflow"] == "b"
    assert scene.json("runs", "create", "b", "--file", str(path))["version"] == 1
    for words, told in [
        (["c"], "has no workflow 'c'; it has a and b."),
        ([], "has several workflows; name one of them: a and b."),
    ]:
        result = scene.run("runs", "create", *words, "--file", str(path))
        assert result.exit_code == 64
        assert told in result.stderr
    path.write_text("name: only\nshell: echo 1\n")
    assert scene.json("runs", "create", "--file", str(path))["workflow"] == "only"


def test_a_run_of_nothing_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path).made()
    assert "Give the name of a WORKFLOW, or --file." in scene.run("runs", "create").stderr
    result = scene.run("runs", "create", "work")
    assert result.exit_code == 64
    assert "there is no workflow 'work'; add it with `asterism workflow add work …`" in result.stderr


# -- listing -----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("scanned", [run_queries.MOST_SCANNED, 1])
def test_the_list_may_be_narrowed(tmp_path: Path, scanned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that looks at one run only is repeated until all were looked at."""
    monkeypatch.setattr(run_queries, "MOST_SCANNED", scanned)
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
    assert "These are the newest 3 runs; list all with: --limit 0" in result.stderr
    assert "No run matches." in scene.run("runs", "list", "--workflow", "none").stderr


def test_a_fleet_without_runs_says_what_to_do(tmp_path: Path) -> None:
    result = Scene(tmp_path).made().run("runs", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "There are no runs. Create one with: asterism runs create WORKFLOW" in result.stderr


def test_as_json_a_run_has_the_names_that_programs_count_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    a_few(scene)
    done, bad, busy, new = scene.json("runs", "list")
    assert all(set(run) == RUN_FIELDS for run in (done, bad, busy, new))
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
            "score": None,
        }
    ]
    assert busy["assigned_to"] == busy["device"] == "laptop"
    assert busy["last_heartbeat_at"] > 0
    assert [entry["what"] for entry in busy["story"]] == ["created", "assigning to self", "claimed", "processing"]
    assert new["last_heartbeat_at"] is new["completed_at"] is new["assigned_to"] is None


def test_as_json_an_assignment_and_a_claim_say_when_they_run_out(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    assigned, claimed = scene.create(), scene.create()
    scene.step(assigned, assigned_to("laptop"))
    scene.step(claimed, taken_by("laptop"))
    first, second = scene.json("runs", "list")
    assert first["assignment_expires_at"] == pytest.approx(first["assigned_at"] + 30)
    assert second["claim_expires_at"] == pytest.approx(second["claimed_at"] + 60)
    assert first["claim_expires_at"] is second["assignment_expires_at"] is None
    assert first["scores"] == {"laptop": 90.0}


def test_a_workflow_that_cannot_be_read_hides_no_run(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow("good")
    scene.workflow("later")
    runs = [scene.create("good"), scene.create("later")]

    async def write(fleet: Fleet) -> None:
        key = f"{VERSIONS}later@1"
        register = await fleet.store.register(key)
        assert register is not None
        await fleet.store.commit([PutRegister(key, {**register.value, "invented_later": 3}, register.revision)])

    scene.ask(write)
    assert {run["id"] for run in scene.json("runs", "list")} == {run.id for run in runs}
