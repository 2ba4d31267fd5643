"""A sync that only observes claims nothing, says so, and writes nothing twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from asterism.series.github.sync_report import SyncReport
from asterism.series.register import STATE_FILE
from tests.series.github.github_fixtures import SERIES, assigned, opened, service_of, sync, synced, view, world_of
from tests.series.github.github_server import GitHubServer
from tests.series.github.github_world import iso


@pytest.fixture
def server():
    with GitHubServer(world_of()) as running:
        yield running


@pytest.mark.parametrize(("mode", "dry"), [("observe", False), ("enforce", True)])
def test_what_is_only_observed_says_so(server, mode, dry):
    report = sync(server, mode, dry_run=dry)
    assert (report.status, report.observed, report.state.active, report.promoted) == ("observed", True, 1, 1)
    assert report.lines() == [
        f"series {SERIES}: #1 would be active, 2 waiting",
        "  #1 would be promoted",
        "  would queue #2, #3",
    ]
    assert report.to_json()["observed"]
    assert assigned(server) == []


def writes(server: GitHubServer) -> list[tuple[str, str]]:
    return [(method, path) for method, path, _ in server.log if method != "GET" and path != "/graphql"]


@pytest.mark.parametrize("state", [None, "{broken", '{"active_issue": 3, "queue": "rubbish"}'])
async def test_to_observe_twice_writes_once(server, state):
    """Also of what would be changed: the view says nothing that differs each time, such as when."""
    if state is not None:
        server.call(lambda world: world.write_document(f"refs/asterism/series/{SERIES}", state, STATE_FILE))

    opened_last = iso(server.call(lambda world: world.issue(3)).created_at)
    register = opened(server)
    service = service_of(register, "observe")
    await service.sync()
    server.forget()
    ahead = register.client.clock
    register.client.clock = lambda: ahead() + 3600  # type: ignore[method-assign]
    report = await service.sync()
    assert writes(server) == []
    assert view(server, report.series[0].tracking or 0)["updated_at"] == opened_last
    await register.close()


def test_what_would_change_after_an_enforced_beginning_is_observed_without_writing_twice(server):
    sync(server)
    server.call(lambda world: world.close(1))
    assert sync(server, "observe").state.active == 2
    server.forget()
    assert sync(server, "observe").state.active == 2
    assert writes(server) == []


async def test_only_what_was_done_is_counted(server):

    server.call(lambda world: world.assign(1, "robot", by_hand=True))
    server.call(lambda world: world.assign(3, "robot", by_hand=True))
    register = opened(server)
    service = service_of(register, "observe")
    for _ in range(2):
        await service.sync()
    await register.close()
    assert service.metrics.gauges[SERIES]["duplicates"] == 1
    counts = service.metrics.counts
    counted_once = {"duplicates_preventable": 1}
    assert {key: counts[key] for key in counted_once} == counted_once
    assert {key for key, count in counts.items() if count} <= {"api_requests", "api_not_modified", *counted_once}


def observed(server: GitHubServer, file: Path, times: int = 1) -> tuple[SyncReport, dict[str, int]]:
    """By processes that begin anew, as cron starts them; and the totals in the file for the figures."""

    async def once() -> SyncReport:
        register = opened(server)
        service = service_of(register, "observe")
        service.metrics.load_observed(file)
        report = await service.sync()
        await register.close()
        service.metrics.write(file)
        return report

    for _ in range(times):
        report = asyncio.run(once())
    return report, json.loads(file.read_text())["total"]


def test_each_duplicate_that_enforcing_would_have_prevented_is_counted_once(server, tmp_path):
    file = tmp_path / "m.json"
    report, total = observed(server, file, 2)
    assert (report.preventable, total["duplicates_preventable"]) == (0, 0)
    server.call(lambda world: world.assign(1, "robot", by_hand=True))
    server.call(lambda world: world.assign(3, "robot", by_hand=True))
    report, total = observed(server, file, 3)
    assert (report.preventable, total["duplicates_preventable"]) == (1, 1)
    assert "enforcing would have prevented 1 assignment besides an active issue" in report.observations()
    server.call(lambda world: world.assign(2, "robot", by_hand=True))
    report, total = observed(server, file, 2)
    assert (report.to_json()["preventable_duplicates"], total["duplicates_preventable"]) == (2, 2)
    server.call(lambda world: world.unassign(3, "robot"))
    assert observed(server, file, 2)[1]["duplicates_preventable"] == 2
    server.call(lambda world: world.assign(3, "robot", by_hand=True))
    assert observed(server, file, 2)[1]["duplicates_preventable"] == 3


@pytest.mark.parametrize("text", ["{", "[]", '{"series": 7}', '{"series": {"RFC-093": 7}, "total": []}'])
def test_figures_that_cannot_be_read_are_begun_anew(server, tmp_path, text):
    (tmp_path / "m.json").write_text(text)
    assert observed(server, tmp_path / "m.json")[1]["duplicates_preventable"] == 0


def test_near_misses_and_names_that_look_alike_are_told_by_who_observes_only(server, tmp_path):
    titles = ["rfc-093-04: small", "A fix for RFC-093-02", "RFC-093: the whole", "nothing of that kind", "RFC-93-05: x"]
    server.call(lambda world: [world.add_issue(title) for title in titles])
    server.call(lambda world: world.add_issue("RFC-093: by a label", labels=["series:house"]))
    report, _ = observed(server, tmp_path / "m.json")
    assert [(near_miss.number, near_miss.why) for near_miss in report.near_misses] == [
        (4, "its capitals are written in lower case"),
        (5, "the name is not at the beginning of the title"),
        (6, "it has no micro number"),
    ]
    assert report.lookalikes == [["RFC-093", "RFC-93"]]
    assert report.to_json()["near_misses"][0]["title"] == "rfc-093-04: small"
    told = "\n".join(report.observations())
    assert "#4 belongs to no series: its capitals are written in lower case: rfc-093-04: small" in told
    assert "RFC-093, RFC-93" in told
    acting = asyncio.run(synced(server))
    assert (acting.near_misses, acting.lookalikes, acting.observations()) == ([], [], [])


def test_of_very_many_near_misses_some_are_told(server, tmp_path):
    server.call(lambda world: [world.add_issue(f"rfc-093-{number}") for number in range(10, 35)])
    report, _ = observed(server, tmp_path / "m.json")
    assert len(report.near_misses) == 25
    assert "and 5 more" in report.observations()[-1]
