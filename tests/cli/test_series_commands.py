"""``asterism series`` for people and scripts: its output, its exit codes, and what it does not change."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from asterism.cli.series.series_commands import series
from asterism.cli.series.series_context import EXIT_CONTENDED, EXIT_QUEUED, EXIT_UNAVAILABLE, EXIT_UNREADABLE
from tests.cli.cli_scenes import ASTERISM
from tests.cli.command_scenes import Scene
from tests.process_scenes import PATIENCE
from tests.series.register_openers import bare_repository

NAME = "RFC-093"
REF = "refs/asterism/series/RFC-093"


class Remote(Scene):
    """Series on a bare repository, and the commands on them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.remote = folder / "remote.git"
        bare_repository(self.remote)
        self.place: tuple[str, ...] = ("--remote", f"file://{self.remote}")

    def do(self, *words: str, code: int = 0, **options: Any) -> Result:
        result = self.run("series", *words, *self.place, **options)
        assert result.exit_code == code, result.output
        return result

    def said(self, *words: str, code: int = 0) -> str:
        return self.do(*words, code=code).stdout

    def told(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.do(*words, "--json", code=code).stdout)

    def write(self, text: str) -> None:
        """Write a state as a person could by hand."""
        git = ["git", "-C", str(self.remote), "-c", "user.name=x", "-c", "user.email=x"]
        blob = subprocess.run([*git, "hash-object", "-w", "--stdin"], input=text, capture_output=True, text=True)
        line = f"100644 blob {blob.stdout.strip()}\tseries.json\n"
        tree = subprocess.run([*git, "mktree"], input=line, capture_output=True, text=True).stdout.strip()
        commit = subprocess.run([*git, "commit-tree", tree, "-m", "by hand"], capture_output=True, text=True).stdout
        subprocess.run([*git, "update-ref", REF, commit.strip()], check=True)


class InAStore(Remote):
    def __init__(self, folder: Path) -> None:
        Scene.__init__(self, folder)
        self.place = ()


@pytest.fixture(params=[pytest.param(Remote, marks=pytest.mark.long), InAStore])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Remote:
    """Both registers. On a remote, a command takes several git processes, so most of these tests are long there."""
    made: Remote = request.param(tmp_path)
    return made


@pytest.fixture(params=[Remote, InAStore])
def any_scene(request: pytest.FixtureRequest, tmp_path: Path) -> Remote:
    made: Remote = request.param(tmp_path)
    return made


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path)


# -- claims ------------------------------------------------------------------------------------------------------------


def test_the_first_is_claimed_and_the_next_is_queued_behind_it(any_scene: Remote) -> None:
    assert any_scene.said("claim", NAME, "--issue", "123") == "claimed RFC-093 for #123 (revision 1)\n"
    told = any_scene.said("claim", NAME, "--issue", "#124", code=EXIT_QUEUED)
    assert told.startswith("queued #124 in RFC-093 behind #123, active for ")
    assert told.endswith(" s, by ann; it is number 1 of 1 in the queue\n")
    again = any_scene.said("claim", NAME, "--issue", "124", code=EXIT_QUEUED)
    assert again.startswith("waiting: #124 in RFC-093 behind #123")


def test_claiming_what_one_holds_is_no_error_and_no_change(scene: Remote) -> None:
    scene.said("claim", NAME, "--issue", "123")
    assert scene.said("claim", NAME, "--issue", "123") == "#123 already holds RFC-093 (revision 1)\n"
    assert len(scene.told("history", NAME)["changes"]) == 1


def test_a_script_is_told_everything_in_json(any_scene: Remote) -> None:
    claimed = any_scene.told("claim", NAME, "--issue", "123", "--by", "cron")
    assert {key: claimed[key] for key in ("status", "issue", "position", "active", "tries", "dry_run")} == {
        "status": "claimed",
        "issue": 123,
        "position": 0,
        "active": 123,
        "tries": 1,
        "dry_run": False,
    }
    assert claimed["state"]["by"] == "cron"
    queued = any_scene.told("claim", NAME, "--issue", "124", code=EXIT_QUEUED)
    assert (queued["status"], queued["position"], queued["active"]) == ("queued", 1, 123)


def test_a_lease_runs_out_and_the_next_one_is_up(scene: Remote) -> None:
    scene.said("claim", NAME, "--issue", "1", "--lease", "1ms")
    assert scene.said("claim", NAME, "--issue", "2", "--lease", "2h") == "claimed RFC-093 for #2 (revision 2)\n"
    told = scene.said("status", NAME)
    assert "  lease    2 h left\n" in told
    renewed = scene.said("claim", NAME, "--issue", "2", "--lease", "3h", "--renew")
    assert renewed == "renewed the lease of #2 on RFC-093 (revision 3)\n"
    assert "  lease    3 h left\n" in scene.said("status", NAME)


def test_a_lease_may_be_asked_for_later(scene: Remote) -> None:
    scene.said("claim", NAME, "--issue", "1")
    scene.said("claim", NAME, "--issue", "2", code=EXIT_QUEUED)
    assert scene.said("release", NAME, "--issue", "1") == "released #1 from RFC-093; #2 is now active (revision 3)\n"
    leased = scene.said("claim", NAME, "--issue", "2", "--lease", "2h")
    assert leased == "set the lease of #2 on RFC-093 (revision 4)\n"
    assert "  lease    2 h left\n" in scene.said("status", NAME)


def test_what_others_call_themselves_does_nothing_to_the_terminal(tmp_path: Path) -> None:
    scene = InAStore(tmp_path)
    scene.said("claim", NAME, "--issue", "1", "--by", "\x1b[31mred\x1b]0;owned\x07")
    assert ", held by ·[31mred·]0;owned· for " in scene.said("claim", NAME, "--issue", "2", code=EXIT_QUEUED)
    scene.said("pause", NAME, "--by", "\x1b[31mred")
    for words in (("pause", NAME), ("status", NAME), ("history", NAME)):
        assert "\x1b" not in scene.said(*words)


def test_a_lease_that_has_run_out_is_shown_and_ended_by_a_promotion(scene: Remote) -> None:
    scene.said("claim", NAME, "--issue", "1", "--lease", "1ms")
    told = scene.said("status", NAME)
    assert "  lease    expired " in told
    assert "the lease of #1 has expired: the next claim or promotion ends it" in told
    assert "expired" in scene.said("status")
    assert scene.said("promote", NAME) == "ended the lease of #1 on RFC-093; the queue is empty\n"


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("--issue", "x"), "'x' is not the number of an issue (example: 123)."),
        (("--issue", "0"), "'0' is not the number of an issue"),
        (("--issue", "1", "--lease", "0s"), "A lease takes at least 0.001 s."),
        (("--issue", "1", "--lease", "0.1ms"), "A lease takes at least 0.001 s."),
        (
            ("--issue", "1", "--lease", "99999999h"),
            "A lease takes at most 3650 days; without --lease the claim has no end.",
        ),
        (("--issue", "1", "--renew"), "--renew needs --lease"),
        (("--issue", "1", "--tries", "-1"), "-1 is not in the range"),
        ((), "Missing option '--issue'"),
    ],
)
def test_what_makes_no_sense_is_refused(remote: Remote, words: tuple[str, ...], wrong: str) -> None:
    assert wrong in remote.do("claim", NAME, *words, code=64).stderr


def test_a_name_that_is_none_is_refused(remote: Remote) -> None:
    assert "is not a valid name of a series" in remote.do("claim", " ", "--issue", "1", code=64).stderr


@pytest.mark.long
def test_a_series_that_others_keep_changing_is_contended(remote: Remote) -> None:
    """A hook on the remote plays another writer that comes first at each push."""
    remote.said("claim", NAME, "--issue", "1")
    hook = remote.remote / "hooks" / "update"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        "#!/bin/sh\nexport GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x\n"
        "unset GIT_QUARANTINE_PATH GIT_OBJECT_DIRECTORY\n"
        f'new=$(git commit-tree "{REF}^{{tree}}" -p {REF} -m another) && git update-ref {REF} "$new"\n'
    )
    hook.chmod(0o755)
    result = remote.do("claim", NAME, "--issue", "2", "--tries", "2", code=EXIT_CONTENDED)
    assert "Error: series RFC-093 is contended: other writers won all 2 tries" in result.stderr
    assert "nothing was written" in result.stderr
    told = remote.told("claim", NAME, "--issue", "2", "--tries", "1", code=EXIT_CONTENDED)
    assert told["status"] == "contended"
    hook.unlink()
    assert remote.told("status", NAME)["queue"] == []


# -- looking -----------------------------------------------------------------------------------------------------------


def test_all_series_stand_in_a_table(scene: Remote) -> None:
    scene.said("claim", "RFC-093", "--issue", "1")
    scene.said("claim", "RFC-093", "--issue", "2", code=EXIT_QUEUED)
    scene.said("claim", "RFC-094", "--issue", "7", "--lease", "2h")
    scene.said("pause", "RFC-094", "--reason", "freeze")
    head, *lines = scene.said("status").splitlines()
    assert head.split() == ["SERIES", "ACTIVE", "FOR", "BY", "LEASE", "QUEUE", "NOTE"]
    assert [line.split()[:2] for line in lines] == [["RFC-093", "#1"], ["RFC-094", "#7"]]
    assert lines[0].split()[-1] == "#2"
    assert lines[1].endswith("paused by ann: freeze")
    assert [row["series"] for row in scene.told("status")["series"]] == ["RFC-093", "RFC-094"]


@pytest.mark.long
def test_where_there_is_no_series_that_is_said(remote: Remote) -> None:
    assert remote.do("status").stderr.startswith("There is no series in file://")
    assert remote.do("history", NAME).stderr == "Series RFC-093 has no changes yet.\n"
    assert remote.do("status", NAME).stderr.startswith("Series RFC-093 does not exist in file://")
    told = remote.told("status", NAME)
    assert (told["exists"], told["status"], told["active_issue"]) == (False, "free", None)
    said = remote.said("release", NAME, "--issue", "1")
    assert said == f"series RFC-093 does not exist in file://{remote.remote}: nothing to change\n"
    assert remote.told("release", NAME, "--issue", "1")["status"] == "unchanged"


def test_status_says_why_nobody_was_promoted(scene: Remote) -> None:
    scene.said("claim", NAME, "--issue", "1")
    scene.said("claim", NAME, "--issue", "2", code=EXIT_QUEUED)
    scene.said("release", NAME, "--issue", "1", "--no-promote")
    told = scene.told("status", NAME)
    assert told["active_issue"] is None
    assert told["why_not_promoted"].startswith("not promoted yet: run `asterism series promote RFC-093`")
    assert "not promoted" in scene.said("status")


def test_the_history_tells_who_did_what(scene: Remote) -> None:
    scene.said("claim", NAME, "--issue", "1", "--by", "ann")
    scene.said("claim", NAME, "--issue", "2", "--by", "bob", code=EXIT_QUEUED)
    scene.said("pause", NAME, "--by", "carl")
    scene.said("resume", NAME, "--by", "carl")
    scene.said("release", NAME, "--issue", "1", "--by", "ann")
    told = scene.told("history", NAME)
    messages = [change["message"] for change in told["changes"]]
    assert messages == ["release #1 by ann", "resume by carl", "pause by carl", "queue #2 by bob", "claim #1 by ann"]
    assert told["changes"][0]["state"]["active_issue"] == 2
    assert len(scene.said("history", NAME, "--limit", "2").splitlines()) == 3


# -- changing ----------------------------------------------------------------------------------------------------------


def test_a_release_lets_the_next_one_have_its_turn(scene: Remote) -> None:
    for number, code in ((1, 0), (2, EXIT_QUEUED), (3, EXIT_QUEUED)):
        scene.said("claim", NAME, "--issue", str(number), code=code)
    assert scene.said("release", NAME, "--issue", "1") == "released #1 from RFC-093; #2 is now active (revision 4)\n"
    assert scene.said("release", NAME, "--issue", "1") == "#1 is not in RFC-093\n"
    assert scene.said("release", NAME, "--issue", "3") == "released #3 from RFC-093; #2 is active (revision 5)\n"
    told = scene.told("release", NAME, "--issue", "2")
    assert (told["status"], told["active"], told["promoted"]) == ("released", None, None)


def test_a_pause_holds_everybody_and_a_resume_lets_the_first_one_go(scene: Remote) -> None:
    scene.said("claim", NAME, "--issue", "1")
    assert scene.said("pause", NAME, "--reason", "freeze") == "paused RFC-093; #1 stays active (revision 2)\n"
    assert scene.said("pause", NAME) == "RFC-093 is already paused by ann: freeze\n"
    scene.said("claim", NAME, "--issue", "2", code=EXIT_QUEUED)
    assert scene.said("release", NAME, "--issue", "1") == (
        "released #1 from RFC-093; no issue is active, 1 waiting (revision 4)\n"
    )
    queued = scene.said("claim", NAME, "--issue", "2", code=EXIT_QUEUED)
    assert queued == (
        "waiting: #2 in RFC-093 with no active issue; it is number 1 of 1 in the queue (paused by ann: freeze)\n"
    )
    assert scene.said("promote", NAME) == "nothing to promote: RFC-093 is paused by ann: freeze\n"
    assert scene.said("resume", NAME) == "resumed RFC-093; #2 is now active (revision 5)\n"
    assert scene.said("resume", NAME) == "RFC-093 is not paused\n"
    assert "pause (freeze) by ann" in scene.said("history", NAME)
    assert scene.said("promote", NAME) == "nothing to promote: #2 is active in RFC-093\n"


def test_one_that_waits_can_be_moved_to_the_front(scene: Remote) -> None:
    for number, code in ((1, 0), (2, EXIT_QUEUED), (3, EXIT_QUEUED)):
        scene.said("claim", NAME, "--issue", str(number), code=code)
    assert scene.said("front", NAME, "--issue", "3") == "moved #3 to the head of the queue of RFC-093 (revision 4)\n"
    assert scene.said("front", NAME, "--issue", "3") == "#3 is at the head of the queue of RFC-093\n"
    assert scene.said("front", NAME, "--issue", "1") == "#1 is active in RFC-093\n"
    assert (
        "#9 is not in the queue of RFC-093: claim it first" in scene.do("front", NAME, "--issue", "9", code=64).stderr
    )
    assert scene.told("status", NAME)["queue"] == [3, 2]


def test_a_promotion_gives_the_first_of_the_queue_its_turn(scene: Remote) -> None:
    scene.said("claim", NAME, "--issue", "1")
    scene.said("claim", NAME, "--issue", "2", code=EXIT_QUEUED)
    scene.said("release", NAME, "--issue", "1", "--no-promote")
    assert scene.said("promote", NAME) == "promoted #2 in RFC-093 (revision 4)\n"
    scene.said("release", NAME, "--issue", "2")
    assert scene.said("promote", NAME) == "nothing to promote: RFC-093 is empty\n"


HISTORY_PREFIX = {
    "claim": ("--issue", "9"),
    "release": ("--issue", "1"),
    "promote": (),
    "pause": ("--reason", "x"),
    "resume": (),
    "front": ("--issue", "3"),
    "rebuild": ("--issue", "3"),
}


@pytest.mark.parametrize("name", HISTORY_PREFIX)
def test_a_dry_run_says_what_would_happen_and_changes_nothing(tmp_path: Path, name: str) -> None:
    scene = InAStore(tmp_path)
    for number, code in ((1, 0), (2, EXIT_QUEUED), (3, EXIT_QUEUED)):
        scene.said("claim", NAME, "--issue", str(number), code=code)
    if name in ("promote", "resume"):
        scene.said("pause", NAME)
        scene.said("release", NAME, "--issue", "1")
    if name == "promote":
        scene.said("resume", NAME)
        scene.said("release", NAME, "--issue", "2", "--no-promote")
    before = scene.told("status", NAME)
    told = scene.said(name, NAME, *HISTORY_PREFIX[name], "--dry-run", code=EXIT_QUEUED if name == "claim" else 0)
    assert told.startswith(f"would {'queue' if name == 'claim' else 'move' if name == 'front' else name} ")
    assert {**scene.told("status", NAME), "age": before["age"]} == before


def test_every_command_that_changes_something_can_be_rehearsed() -> None:
    for name in ("status", "history"):  # they change nothing anyhow
        assert "--dry-run" in {option for param in series.commands[name].params for option in param.opts}
    changing = {name for name, command in series.commands.items() if name not in ("status", "history", "serve")}
    for name in changing - {"sync"}:
        options = {option for param in series.commands[name].params for option in param.opts}
        assert {"--dry-run", "--tries", "--deadline", "--by", "--remote", "--github", "--store", "--json"} <= options


# -- states that cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_state_that_cannot_be_read_is_taken_until_it_is_rebuilt(remote: Remote) -> None:
    remote.write('{"series": "RFC-093", "active_issue": 7, "queue": [8], "version": 2, "revision": 4}')
    for words in (("claim", NAME, "--issue", "9"), ("promote", NAME), ("release", NAME, "--issue", "7")):
        result = remote.do(*words, code=EXIT_UNREADABLE)
        assert (
            "the state has version 2, and this version of Asterism reads version 1. The series counts as taken"
            in result.stderr
        )
    assert remote.told("claim", NAME, "--issue", "9", code=EXIT_UNREADABLE)["status"] == "unreadable"
    assert "the state has version 2" in remote.said("status", NAME, code=EXIT_UNREADABLE)
    assert "unreadable" in remote.said("status")
    assert "Name the open issues" in remote.do("rebuild", NAME, code=64).stderr
    told = remote.said("rebuild", NAME, "--issue", "9", "--issue", "7", "--issue", "8")
    assert told == "rebuilt RFC-093: #7 is active, the queue is #9, #8 (revision 5)\n"
    assert remote.said("history", NAME).splitlines()[-1].split()[2] == "?"


def test_a_rebuild_names_the_active_one_if_told_to(scene: Remote) -> None:
    scene.said("claim", NAME, "--issue", "1")
    told = scene.said("rebuild", NAME, "--issue", "1", "--issue", "2", "--active", "3")
    assert told == "rebuilt RFC-093: #3 is active, the queue is #1, #2 (revision 2)\n"
    assert scene.said("rebuild", NAME, "--issue", "1", "--issue", "2", "--active", "3").startswith("nothing to rebuild")
    assert (
        scene.said("rebuild", NAME, "--empty")
        == "rebuilt RFC-093: no issue is active, the queue is empty (revision 3)\n"
    )


def test_a_dry_run_of_a_rebuild_reads_the_history(scene: Remote) -> None:
    """A repair needs the earlier states of a series, also if the series does not exist."""
    scene.said("claim", NAME, "--issue", "1")
    assert scene.said("rebuild", "RFC-094", "--issue", "1", "--dry-run") == (
        "would rebuild RFC-094: no issue is active, the queue is #1 (revision 1)\n"
    )


def test_a_rebuild_during_a_pause_makes_nobody_active(scene: Remote) -> None:
    scene.said("claim", NAME, "--issue", "1")
    scene.said("pause", NAME)
    refused = scene.do("rebuild", NAME, "--issue", "1", "--active", "3", code=64)
    assert "RFC-093 is paused by ann: resume it before an issue becomes active" in refused.stderr
    assert scene.told("rebuild", NAME, "--issue", "2", "--active", "1")["active"] == 1


# -- places ------------------------------------------------------------------------------------------------------------


def test_two_places_at_once_are_refused(remote: Remote) -> None:
    result = remote.do("status", "--store", remote.url, code=64)
    assert "--remote and --store name different registers: give one of them." in result.stderr


def test_a_remote_that_is_not_there_is_out_of_reach(remote: Remote) -> None:
    result = remote.run("series", "claim", NAME, "--issue", "1", "--remote", f"file://{remote.folder}/nowhere.git")
    assert result.exit_code == EXIT_UNAVAILABLE
    assert "does not appear to be a git repository" in result.stderr


def test_a_remote_of_the_checkout_is_known_by_its_name(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = remote.folder / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(remote.remote), str(checkout)], check=True, capture_output=True)
    monkeypatch.chdir(checkout)
    remote.place = ("--remote", "origin")
    assert remote.said("claim", NAME, "--issue", "1") == "claimed RFC-093 for #1 (revision 1)\n"
    remote.place = ("--remote", "upstream")
    assert "nor a remote of this checkout" in remote.do("status", code=64).stderr
    status = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True)
    assert status.stdout == ""


def test_a_store_in_memory_cannot_be_shared(remote: Remote) -> None:
    remote.place = ("--store", "memory:")
    assert "commands cannot share a series in it" in remote.do("status", code=64).stderr


def test_who_only_looks_makes_no_store(tmp_path: Path) -> None:
    scene = InAStore(tmp_path)
    assert scene.run("series", "status").exit_code == EXIT_UNAVAILABLE
    assert not scene.file.exists()


def test_help_and_claims_import_nothing_that_takes_long(remote: Remote) -> None:
    code = """
import sys
sys.argv = ["asterism", "series", "claim", "X", "--issue", "1", "--remote", sys.argv[1]]
from asterism.cli.main import main
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
heavy = ("asyncpg", "httpx", "githubkit", "starlette", "cel", "asterism.store.sqlite", "pydantic", "yaml", "rich")
print([name for name in heavy if name in sys.modules], file=sys.stderr)
"""
    told = subprocess.run(
        [ASTERISM[0], "-c", code, f"file://{remote.remote}"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert told.stderr == "[]\n"
    assert told.stdout == "claimed X for #1 (revision 1)\n"


def test_an_interrupted_command_ends_at_once_and_with_its_code(remote: Remote) -> None:
    fifo = remote.folder / "begun"
    os.mkfifo(fifo)
    program = remote.folder / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho begun > {fifo}\nexec sleep 1000\n")
    program.chmod(0o755)
    words = ["series", "claim", NAME, "--issue", "1", *remote.place]
    with remote.process(*words, PATH=f"{program.parent}:{os.environ['PATH']}") as process:
        assert fifo.read_text() == "begun\n"
        process.send_signal(2)
        assert process.wait(PATIENCE) == 130
