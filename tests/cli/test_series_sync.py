"""``asterism series sync``, and the other commands on series with ``--github``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from click.testing import CliRunner, Result

from asterism.cli.main import commands
from tests.cli.local_github import GitHubServer, Refusal, scenes


@pytest.fixture
def server():
    with GitHubServer(scenes.world_of()) as running:
        yield running
        assert running.world.doubles == []


def asterism(server: Any, *words: str, **more: str) -> Result:
    known = {**scenes.environ(server), "ASTERISM_SERIES_ASSIGNEE": "robot", "GITHUB_REPOSITORY": "acme/rocket"}
    result = CliRunner().invoke(commands, words, env={**known, **more})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    return result


def test_a_sync_says_what_it_did(server):
    result = asterism(server, "series", "sync", "--github", "acme/rocket", "--assign", "robot")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "series RFC-093: #1 is active, 2 waiting",
        "  #1 promoted",
        "  queued #2, #3",
    ]
    scenes.merged(server, 1)
    assert asterism(server, "series", "sync").stdout.splitlines() == [
        "series RFC-093: #2 is active, 1 waiting",
        "  #1 completed",
        "  #2 promoted",
    ]


def test_an_issue_that_is_asked_about_is_claimed_or_queued(server):
    result = asterism(server, "series", "sync", "--issue", "1", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["status"], told["active"], told["position"]) == (0, "claimed", 1, 0)
    result = asterism(server, "series", "sync", "--issue", "3", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["status"], told["active"], told["position"]) == (75, "queued", 1, 2)
    assert "number 2 in the queue" in asterism(server, "series", "sync", "--issue", "3").stdout


@pytest.mark.parametrize("words", [["--label", "bot"], ["--series", "OPS-7"]], ids=["no label", "another series"])
def test_an_issue_that_is_not_meant_is_in_no_series(server, words):
    result = asterism(server, "series", "sync", "--issue", "1", "--json", *words)
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (0, "none")
    assert scenes.assigned(server) == []


@pytest.mark.parametrize("words", [["--mode", "observe"], ["--dry-run"]])
def test_who_only_observes_never_says_that_anything_is_claimed(server, words):
    """Two could be told so, one after the other: nothing is written that would tell the second of the first."""
    result = asterism(server, "series", "sync", "--issue", "1", "--json", *words)
    told = json.loads(result.stdout)
    assert (result.exit_code, told["status"], told["active"], told["position"]) == (75, "observed", 1, 0)
    assert told["sync"]["series"][0]["status"] == "observed"
    first = server.call(lambda world: world.add_issue("RFC-093-00: before all others")).number
    result = asterism(server, "series", "sync", "--issue", str(first), "--json", *words)
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (75, "observed")
    result = asterism(server, "series", "sync", *words)
    assert (result.exit_code, "claimed or assigned" in result.stdout) == (0, True)
    assert json.loads(asterism(server, "series", "sync", "--json", *words).stdout)["status"] == "observed"
    assert scenes.assigned(server) == []


def test_an_issue_that_is_closed_has_left(server):
    asterism(server, "series", "sync")
    scenes.merged(server, 1)
    result = asterism(server, "series", "sync", "--issue", "1", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["status"], told["active"], told["position"]) == (0, "left", 2, None)


def test_an_issue_of_no_series_and_one_that_is_not_there_are_told(server):
    number = server.call(lambda world: world.add_issue("a question")).number
    result = asterism(server, "series", "sync", "--issue", str(number))
    assert (result.exit_code, "belongs to no selected series" in result.stdout) == (0, True)
    told = json.loads(asterism(server, "series", "sync", "--issue", str(number), "--json").stdout)
    assert (told["status"], told["series"], told["active"], told["position"]) == ("none", None, None, None)
    result = asterism(server, "series", "sync", "--issue", "99")
    assert (result.exit_code, "cannot read issue" in result.stderr) == (64, True)


def test_a_login_that_cannot_be_assigned_has_an_exit_code_of_its_own(server):
    result = asterism(server, "series", "sync", "--assign", "nobody-there")
    assert result.exit_code == 64
    assert "check the login" in result.stderr


def test_a_state_of_a_later_version_has_an_exit_code_of_its_own(server):
    asterism(server, "series", "sync")
    later = '{"version": 2}'
    server.call(lambda world: world.write_document("refs/asterism/series/RFC-093", later, "series.json"))
    result = asterism(server, "series", "sync")
    assert (result.exit_code, "version 2" in result.stderr) == (65, True)


def test_a_github_that_refuses_or_is_not_there_has_an_exit_code_of_its_own(server):
    result = asterism(server, "series", "sync", "--json", GITHUB_TOKEN="wrong")
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (69, "unavailable")
    assert "refuses the credentials" in result.stderr


@pytest.mark.parametrize(("mode", "code"), [("observe", 69), ("enforce", 0)])
def test_an_observation_whose_view_was_not_written_is_no_success(server, mode, code):
    """Where the state is kept, a view that is late is written with the next cycle."""
    answer = server.routes.answer

    def may_not_track(method: str, path: str, query: Any, headers: Any, body: bytes) -> Any:
        if method == "POST" and (path.endswith("/issues") or (mode == "observe" and "/git/" in path)):
            raise Refusal(403, "Resource not accessible by integration")
        return answer(method, path, query, headers, body)

    server.routes.answer = may_not_track
    result = asterism(server, "series", "sync", "--mode", mode)
    assert (result.exit_code, "the tracking issue was not written" in result.stderr) == (code, True), result.stderr


def test_a_turn_that_another_has_is_contended(server, monkeypatch):
    monkeypatch.setattr("asterism.series.github.series_sync.LOCK_DEADLINE", 0.05)
    held = json.dumps({"series": "RFC-093", "holder": "another", "until": time.time() + 60})
    server.call(lambda world: world.write_document("refs/asterism/turns/RFC-093", held, "series.json"))
    result = asterism(server, "series", "sync", "--issue", "1", "--json", "--no-view")
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (76, "contended")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--github", "rocket"], "not a valid repository"),
        (["--pattern", "("], "not a valid regular expression"),
        (["--pattern", "x"], "has no group"),
        (["--mode", "dream"], "observe"),
    ],
)
def test_what_cannot_be_meant_is_refused(server, words, said):
    result = asterism(server, "series", "sync", *words)
    assert (result.exit_code, said in result.stderr) == (64, True), result.stderr


def test_without_credentials_it_says_what_is_needed(server):
    result = asterism(server, "series", "sync", GITHUB_TOKEN="", GH_TOKEN="")
    assert (result.exit_code, "set GITHUB_TOKEN" in result.stderr) == (64, True)


def test_a_dry_run_changes_nothing(server):
    result = asterism(server, "series", "sync", "--dry-run", "--json")
    assert json.loads(result.stdout)["sync"]["series"][0]["promoted"] == 1
    assert scenes.assigned(server) == []
    assert server.call(lambda world: world.documents()) == {}


def test_the_figures_are_written_and_add_up(server, tmp_path):
    file, text = tmp_path / "figures" / "m.json", tmp_path / "m.prom"
    words = ("series", "sync", "--metrics", str(file), "--prometheus", str(text))
    asterism(server, *words)
    scenes.merged(server, 1)
    asterism(server, *words)
    figures = json.loads(file.read_text())
    assert (figures["promotion_events"], figures["completed"], figures["duplicate_prevented"]) == (1, 1, 0)
    total = figures["total"]
    assert (total["promotion_events"], total["assigned"], total["duplicate_prevented"]) == (2, 2, 2)
    assert {"retries", "conflicts"} <= set(figures)
    assert figures["series"]["RFC-093"]["queue_length"] == 1
    lines = text.read_text().splitlines()
    assert "asterism_series_assigned_total 2" in lines
    assert 'asterism_series_queue_length{series="RFC-093"} 1' in lines
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_figures_that_cannot_be_written_keep_nobody_from_hearing_what_happened(server, tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    result = asterism(server, "series", "sync", "--json", "--issue", "1", "--metrics", str(in_the_way / "m.json"))
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (0, "claimed")
    assert "cannot write the metrics" in result.stderr


def test_without_a_name_the_figures_go_where_the_seed_says(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asterism(server, "series", "sync", "--metrics")
    assert json.loads((tmp_path / "assignment_mutex_metrics.json").read_text())["assigned"] == 1


def test_a_cache_makes_a_cycle_free(server, tmp_path):
    words = ("series", "sync", "--json", "--cache", str(tmp_path / "cache.json"))
    for _ in range(2):
        asterism(server, *words)
    told = json.loads(asterism(server, *words).stdout)
    assert told["sync"]["api"] == {"requests": 2, "not_modified": 2}


def test_the_other_commands_take_github_too(server):
    place = ("--github", "acme/rocket")
    server.call(lambda world: [world.add_issue(f"OPS-7-{micro}: tidy") for micro in (1, 2, 3)])
    assert asterism(server, "series", "claim", "OPS-7", "--issue", "5", *place).exit_code == 0
    assert asterism(server, "series", "claim", "OPS-7", "--issue", "6", *place).exit_code == 75
    told = json.loads(asterism(server, "series", "status", "OPS-7", "--json", *place).stdout)
    assert "6" in json.dumps(told)
    assert asterism(server, "series", "pause", "OPS-7", "--reason", "lunch", *place).exit_code == 0
    assert asterism(server, "series", "release", "OPS-7", "--issue", "5", *place).exit_code == 0
    assert asterism(server, "series", "resume", "OPS-7", *place).exit_code == 0
    history = json.loads(asterism(server, "series", "history", "OPS-7", "--json", *place).stdout)
    assert len(history["changes"]) == 5
    assert json.loads(server.world.documents()["OPS-7"])["active_issue"] == 6


def test_a_repository_that_cannot_be_seen_is_out_of_reach_for_every_command(server):
    for words in (["status", "RFC-093"], ["claim", "RFC-093", "--issue", "1", "--dry-run"], ["history", "RFC-093"]):
        assert asterism(server, "series", *words, "--github", "acme/nowhere").exit_code == 69


def test_a_limit_is_not_waited_for_beyond_the_deadline(server):
    server.secondary_next = 30
    result = asterism(server, "series", "sync", "--deadline", "25s")
    assert (result.exit_code, "accepts the next request in 30 s" in result.stderr) == (69, True)


@pytest.mark.parametrize("words", [["claim", "OPS-7", "--issue", "6"], ["promote", "OPS-7"], ["rebuild", "RFC-093"]])
def test_no_command_waits_for_a_limit_beyond_its_deadline(server, words):
    """It says so at once. To wait until the deadline, and say then that GitHub did not answer, would be untrue."""
    server.secondary_next = 30
    result = asterism(server, "series", *words, "--github", "acme/rocket", "--deadline", "25s")
    assert (result.exit_code, "accepts the next request in 30 s" in result.stderr) == (69, True), result.output
    assert len(server.log) == 1


def test_what_is_wrong_is_said_once_and_what_is_not_known_is_not_said(server):
    asterism(server, "series", "sync")
    server.call(lambda world: world.write_document("refs/asterism/series/RFC-093", '{"version": 2}', "series.json"))
    result = asterism(server, "series", "sync")
    assert (result.exit_code, result.stdout) == (65, "series RFC-093: left unchanged\n")
    assert result.stderr == "series RFC-093: the state has version 2, and this version of Asterism reads version 1\n"


@pytest.mark.parametrize("number", ["0", "-3", "x"])
def test_what_is_no_number_of_an_issue_is_not_asked_for(server, number):
    result = asterism(server, "series", "sync", "--issue", number)
    assert (result.exit_code, "is not the number of an issue" in result.stderr) == (64, True)
    assert server.log == []


def test_a_series_that_is_named_and_not_there_is_named_in_the_answer(server):
    result = asterism(server, "series", "sync", "--series", "NOPE")
    assert (result.exit_code, result.stdout) == (0, "no open issue belongs to NOPE\n")


@pytest.mark.parametrize("words", [["sync"], ["claim", "OPS-7", "--issue", "6", "--github", "acme/rocket"]])
def test_a_deadline_of_nothing_is_refused(server, words):
    result = asterism(server, "series", *words, "--deadline", "0s")
    assert (result.exit_code, "above zero" in result.stderr) == (64, True), result.output


def test_rebuild_asks_github_for_the_issues(server):
    asterism(server, "series", "sync")
    server.call(lambda world: world.write_document("refs/asterism/series/RFC-093", "{broken", "series.json"))
    result = asterism(server, "series", "rebuild", "RFC-093", "--github", "acme/rocket")
    assert result.exit_code == 0, result.output
    state = json.loads(server.world.documents()["RFC-093"])
    assert (state["active_issue"], state["queue"]) == (1, [2, 3])


def test_nothing_of_github_is_imported_before_it_is_meant():
    program = (
        "import sys\n"
        "from asterism.cli.series.series_commands import series\n"
        "assert 'sync' in series.commands\n"
        "heavy = ('githubkit', 'httpx', 'starlette', 'uvicorn')\n"
        "print([name for name in sys.modules if name.split('.')[0] in heavy])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_rebuild_that_finds_no_issue_writes_nothing(server):
    server.call(lambda world: [world.add_issue("[Alpha 1] a"), world.add_issue("[Alpha 2] b")])
    pattern = r"^\[(?P<series>\w+) (?P<micro>\d+)\]"
    asterism(server, "series", "sync", "--github", "acme/rocket", "--pattern", pattern)
    before = scenes.state(server, "Alpha")
    result = asterism(server, "series", "rebuild", "Alpha", "--github", "acme/rocket")
    assert (result.exit_code, scenes.state(server, "Alpha")) == (64, before)
    again = asterism(server, "series", "rebuild", "Alpha", "--github", "acme/rocket", "--pattern", pattern)
    assert again.exit_code == 0
    assert scenes.state(server, "Alpha")["active_issue"] == before["active_issue"]


def test_a_claim_looks_at_the_issues(server):
    place = ("--github", "acme/rocket", "--by", "ann")
    assert asterism(server, "series", "claim", "RFC-093", "--issue", "1", *place).exit_code == 0
    scenes.merged(server, 1)
    rehearsed = asterism(server, "series", "claim", "RFC-093", "--issue", "2", "--dry-run", *place)
    assert (rehearsed.exit_code, rehearsed.stdout.splitlines()) == (
        0,
        ["#1 would leave RFC-093: completed", "would claim RFC-093 for #2 (revision 2)"],
    )
    result = asterism(server, "series", "claim", "RFC-093", "--issue", "2", *place)
    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        ["#1 left RFC-093: completed", "claimed RFC-093 for #2 (revision 2)"],
    )
    result = asterism(server, "series", "claim", "RFC-093", "--issue", "3", "--json", *place)
    told = json.loads(result.stdout)
    assert (result.exit_code, told["status"], told["active"], told["left"]) == (75, "queued", 2, {})
    assert "completed #1; claim #2 by ann" in asterism(server, "series", "history", "RFC-093", *place[:2]).stdout


@pytest.mark.parametrize(("issue", "said"), [("1", "#1 is closed (completed)"), ("4711", "issue #4711 does not exist")])
def test_what_cannot_be_claimed_is_refused_with_64(server, issue, said):
    scenes.merged(server, 1)
    words = ("series", "claim", "RFC-093", "--issue", issue, "--github", "acme/rocket")
    result = asterism(server, *words)
    assert (result.exit_code, result.stdout) == (64, "")
    assert said in result.stderr
    result = asterism(server, *words, "--json")
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (64, "refused")


# -- claims with --force and --assign ----------------------------------------------------------------------------------


def foreign(server: Any) -> str:
    return str(server.call(lambda world: world.add_issue("RFC-100-01: another matter")).number)


CLAIM = ("series", "claim", "RFC-093", "--github", "acme/rocket")


def test_a_claim_of_an_issue_of_another_series_is_refused_with_a_sentence(server):
    number = foreign(server)
    result = asterism(server, *CLAIM, "--issue", number)
    assert result.exit_code == 64
    assert "belongs to RFC-100, not RFC-093" in result.stderr
    assert "--force" in result.stderr
    told = json.loads(asterism(server, *CLAIM, "--issue", number, "--json").stdout)
    assert (told["status"], "RFC-100" in told["error"]) == ("refused", True)
    assert server.call(lambda world: world.documents()) == {}


def test_a_forced_claim_is_shown_as_forced(server):
    number = foreign(server)
    result = asterism(server, *CLAIM, "--issue", number, "--force", "--by", "ann")
    assert (result.exit_code, result.stdout) == (0, f"claimed RFC-093 for #{number} (revision 1)\n")
    shown = asterism(server, "series", "status", "RFC-093", "--github", "acme/rocket").stdout
    assert f"forced   #{number}" in shown
    assert "force #4 by ann" in asterism(server, "series", "history", "RFC-093", "--github", "acme/rocket").stdout
    sync = asterism(server, "series", "sync")
    assert (sync.exit_code, f"series RFC-093: #{number} is active" in sync.stdout) == (0, True)
    assert "#4 is active" in asterism(server, "series", "rebuild", "RFC-093", "--github", "acme/rocket").stdout


def test_force_on_an_active_issue_says_what_it_did(server):
    server.call(lambda world: setattr(world.issue(1), "title", "RFC-093-01: first"))
    asterism(server, *CLAIM, "--issue", "1")
    result = asterism(server, *CLAIM, "--issue", "1", "--force")
    assert result.stdout == "forced #1 into RFC-093 (revision 2)\n"
    assert asterism(server, *CLAIM, "--issue", "1", "--force").stdout == "#1 already holds RFC-093 (revision 2)\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--force"], "knows no titles"), (["--assign", "robot"], "--assign needs --github")],
)
def test_options_without_effect_are_refused(tmp_path, words, said):
    store = f"sqlite:///{tmp_path / 'series.db'}"
    result = CliRunner().invoke(commands, ["series", "claim", "RFC-093", "--issue", "1", "--store", store, *words])
    assert (result.exit_code, said in result.stderr) == (64, True)
    assert not (tmp_path / "series.db").exists()


def test_a_claim_assigns_in_one_command(server):
    result = asterism(server, *CLAIM, "--issue", "2", "--assign", "@robot")
    assert (result.exit_code, result.stdout) == (0, "claimed RFC-093 for #2 (revision 1)\nassigned #2 to robot\n")
    assert scenes.assigned(server) == [2]
    assert scenes.state(server)["queue"] == []  # nothing else is queued or promoted
    told = json.loads(asterism(server, *CLAIM, "--issue", "2", "--assign", "robot", "--json").stdout)
    assert (told["status"], told["assigned"]) == ("claimed", True)


def test_a_claim_that_waits_assigns_nothing(server):
    asterism(server, *CLAIM, "--issue", "1")
    result = asterism(server, *CLAIM, "--issue", "2", "--assign", "robot", "--json")
    assert (result.exit_code, json.loads(result.stdout)["assigned"]) == (75, False)
    assert scenes.assigned(server) == []


def test_a_claim_unassigns_what_else_is_assigned_in_its_series(server):
    server.call(lambda world: world.assign(3, "robot", by_hand=True))
    assert asterism(server, *CLAIM, "--issue", "1", "--assign", "robot").exit_code == 0
    assert scenes.assigned(server) == [1]


def test_a_forced_claim_assigns_whatever_the_title_is(server):
    number = foreign(server)
    result = asterism(server, *CLAIM, "--issue", number, "--force", "--assign", "robot")
    assert (result.exit_code, scenes.assigned(server, "RFC-100")) == (0, [int(number)])
    question = str(server.call(lambda world: world.add_issue("a question")).number)
    other = ("series", "claim", "house", "--github", "acme/rocket", "--issue", question, "--assign", "robot")
    assert asterism(server, *other).exit_code == 0
    assert scenes.state(server, "house")["active_issue"] == int(question)
    assert len(server.call(lambda world: world.issue(int(question)).assignees)) == 1


def test_a_claim_whose_login_cannot_be_assigned_is_made_and_says_so(server):
    result = asterism(server, *CLAIM, "--issue", "1", "--assign", "nobody-there")
    assert (result.exit_code, "check the login" in result.stderr) == (64, True)
    assert "claimed RFC-093 for #1" in result.stdout
    assert scenes.state(server)["active_issue"] == 1


def test_a_dry_run_would_assign(server):
    result = asterism(server, *CLAIM, "--issue", "1", "--assign", "robot", "--dry-run")
    assert result.stdout.splitlines() == ["would claim RFC-093 for #1 (revision 1)", "would assign #1 to robot"]
    assert scenes.assigned(server) == []
