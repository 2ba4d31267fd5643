"""A repository with a series in it, and syncs of it, as tests want them: without pauses that nobody needs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from asterism.series.compare_and_swap import RetryOptions
from asterism.series.github.github_register import GitHubRegister, open_github
from asterism.series.github.series_sync import SyncSettings
from asterism.series.github.sync import SyncService
from asterism.series.github.sync_report import SeriesReport, SyncReport
from tests.series.github.github_server import TOKEN, GitHubServer
from tests.series.github.github_world import World

SERIES = "RFC-093"
QUICK = RetryOptions(tries=20, jitter=(0.0, 0.02), deadline=None)


def world_of(count: int = 3, series: str = SERIES) -> World:
    """Issues #1 … of one series, in the order of their micro numbers."""
    world = World()
    for micro in range(1, count + 1):
        world.add_issue(f"{series}-{micro:02}: part {micro}")
    return world


def environ(server: GitHubServer) -> dict[str, str]:
    return {"GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": server.url}


def opened(server: GitHubServer, **more: Any) -> GitHubRegister:
    return open_github("acme/rocket", environ=environ(server), **more)


def service_of(register: GitHubRegister, mode: Any = "enforce", assignee: str = "robot", **more: Any) -> SyncService:
    # a crowd on a machine that is busy may have to wait longer for a turn than a user would
    usual: dict[str, Any] = {"retry": QUICK, "by": "cron", "lock_deadline": 300.0}
    return SyncService(register, SyncSettings(assignee, mode, **(usual | more)))


async def synced(server: GitHubServer, mode: Any = "enforce", **more: Any) -> SyncReport:
    """One sync by a process that begins anew."""
    register = opened(server)
    try:
        return await service_of(register, mode, **more).sync()
    finally:
        await register.close()


def sync(server: GitHubServer, mode: Any = "enforce", **more: Any) -> SeriesReport:
    """One sync; the report of the one series."""
    report = asyncio.run(synced(server, mode, **more))
    [series_report] = report.series
    return series_report


def state(server: GitHubServer, series: str = SERIES) -> dict[str, Any]:
    """What the register says."""
    document: dict[str, Any] = json.loads(server.call(lambda world: world.documents()[series]))
    return document


def view(server: GitHubServer, number: int) -> dict[str, Any]:
    """What the tracking issue shows."""
    body: str = server.call(lambda world: world.issue(number).body)
    shown: dict[str, Any] = json.loads(body.split("```json\n")[1].split("```")[0])
    return shown


def assigned(server: GitHubServer, series: str = SERIES) -> list[int]:
    """The open issues of the series that the bot is assigned to."""
    numbers: list[int] = server.call(lambda world: world.assigned_by_series().get(series, []))
    return numbers


def merged(server: GitHubServer, issue: int) -> None:
    def merge(world: World) -> None:
        world.merge(world.open_pull(f"closes #{issue}", [issue]).number)

    server.call(merge)
