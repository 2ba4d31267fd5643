"""Shared by the tests of a device: one execution from begin to end, and processes to watch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from asterism.core.run.run import Progress, Run
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.executor import DeviceExecutor, RunWork
from asterism.fleet.policy.device_policy import DevicePolicy
from tests.process_scenes import PATIENCE


class Reports:
    """What an execution reports."""

    def __init__(self) -> None:
        self.progress: list[Progress] = []
        self.output: list[str] = []

    def work(self, workflow: Workflow, given: Any = None, run: Run | None = None) -> RunWork:
        run = run or Run("r1", workflow.name, 1, 0.0, "test", epoch=3)
        return RunWork(run, workflow, {} if given is None else given, self.progress.append, self.output.append)


def executors(policy: DevicePolicy | None = None, **terms: Any) -> DeviceExecutor:
    return DeviceExecutor(policy or DevicePolicy.open(), **{"device": "kitchen", "session": "s1", **terms})


def execute(workflow: Workflow, given: Any = None, policy: DevicePolicy | None = None, **terms: Any) -> Any:
    """The result of one execution."""
    reports = terms.pop("reports", None) or Reports()
    run = terms.pop("run", None)

    async def main() -> Any:
        made = executors(policy, **terms)
        try:
            async with asyncio.timeout(PATIENCE):
                return await made.execute(reports.work(workflow, given, run))
        finally:
            made.close()

    return asyncio.run(main())


def check(workflow: Workflow, given: Any = None, policy: DevicePolicy | None = None) -> str | None:
    made = executors(policy)
    return made.check(workflow, {} if given is None else given)


def command(*argv: str, **terms: Any) -> Workflow:
    return Workflow("work", argv=argv, **terms)


def shell(line: str, **terms: Any) -> Workflow:
    return Workflow("work", shell=line, **terms)


def lines(path: Path, count: int = 1) -> list[str]:
    """The lines that a command has written; empty while they are not all there."""
    found = path.read_text().split("\n")[:-1] if path.exists() else []
    return found if len(found) >= count else []
