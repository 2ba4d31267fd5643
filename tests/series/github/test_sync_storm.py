"""A hundred syncs at once, from eight processes, while replies get lost, connections break and issues are merged.

The server checks it: it sees every assignment at the instant it is made.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.forked_commands import ForkedCommand
from tests.series.github.github_fixtures import SERIES, assigned, environ, state, synced, view, world_of
from tests.series.github.github_server import Faults, GitHubServer
from tests.series.github.github_world import World


def merge_now_and_then(server: GitHubServer) -> Callable[[], None]:
    """People merge what is assigned meanwhile: at every 200th request, until four are merged. Call the result to
    stop them."""
    asked = [0]
    merged: list[int] = []
    answer = server._answered

    def answered(*args: Any) -> Any:
        asked[0] += 1
        if asked[0] % 200 == 0 and len(merged) < 4:
            for [number] in server.world.assigned_by_series().values():
                server.world.merge(server.world.open_pull("done", [number]).number)
                merged.append(number)
        return answer(*args)

    server._answered = answered  # type: ignore[method-assign]
    return lambda: merged.extend([0] * 4)


def run_all(server: GitHubServer, processes: int, syncs: int) -> list[dict[str, Any]]:
    children = [
        ForkedCommand(
            [str(syncs)],
            program="tests.series.github.sync_process",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environ(server)},
        )
        for _ in range(processes)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    ends = []
    for child in children:
        out, _ = child.communicate()
        assert child.returncode == 0
        ends += json.loads(out)
    return ends


def open_issues(world: World, series: str) -> tuple[list[int], list[int]]:
    """The open issues of the series: assigned, and not."""
    open_ones = [issue for issue in world.listed() if issue.state == "open" and issue.title.startswith(f"{series}-")]
    robot = world.people["robot"]
    return (
        sorted(issue.number for issue in open_ones if robot in issue.assignees and not issue.is_pull),
        sorted(issue.number for issue in open_ones if robot not in issue.assignees and not issue.is_pull),
    )


@pytest.mark.parametrize(("processes", "syncs", "losses"), [(2, 2, 1), pytest.param(5, 5, 5, marks=pytest.mark.long)])
def test_many_syncs_at_once_never_assign_two_issues_of_a_series(processes, syncs, losses, capsys):
    world = world_of(12)
    for micro in range(1, 5):
        world.add_issue(f"OPS-7-{micro}: tidy")
    faults = Faults(seed=7, lose=0.03, drop=0.02, broken=0.01, secondary=0.005)
    with GitHubServer(world, faults, listening=True) as server:
        server.limit.remaining = 1_000_000
        stop_merging = merge_now_and_then(server)
        ends = run_all(server, processes, syncs)
        assert len(ends) == processes * syncs
        faulty = {key: server.counted[key] for key in ("all", "lost", "dropped", "secondary")}
        assert server.counted["lost"] > losses

        # what each was told
        allowed = {"in step", "contended", "unavailable", "no view", "RegisterUnavailable", "OutcomeUnknown"}
        told = Counter(status for end in ends for status in end["statuses"])
        assert set(told) <= allowed, [end for end in ends if not set(end["statuses"]) <= allowed]

        # what was so at every instant
        assert world.doubles == []

        # one further cycle, without faults
        server.faults = Faults()
        stop_merging()
        report = asyncio.run(synced(server))
        assert [series_report.status for series_report in report.series] == ["in step", "in step"]
        for series in (SERIES, "OPS-7"):
            holding, waiting = server.call(lambda world, series=series: open_issues(world, series))
            document = state(server, series)
            assert holding == ([document["active_issue"]] if document["active_issue"] else [])
            assert sorted(document["queue"]) == waiting
            assert len(holding) == (1 if holding or waiting else 0)
            [number] = [
                issue.number
                for issue in world.listed()
                if issue.title == f"{series} Series State" and issue.state == "open"
            ]
            assert view(server, number) == document
        assert world.doubles == []
        promoted = Counter(number for end in ends for number in end["promoted"])
        assert max(promoted.values(), default=1) == 1  # nobody promotes what another has promoted
        with capsys.disabled():
            print(
                f"\n{len(ends)} syncs, {faulty}, told {dict(told)}, {len(promoted)} promotions, assigned now ", end=""
            )
            print(assigned(server), end=" ")
