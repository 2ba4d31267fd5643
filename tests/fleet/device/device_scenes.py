"""Shared by the tests of a device: one execution from begin to end, and processes to watch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from asterism.core.run.run import Progress, Run
from asterism.core.run.work import Work, Workflow
from asterism.fleet.device.executor import DeviceExecutor, RunWork
from asterism.fleet.policy.device_policy import DevicePolicy
from tests.process_scenes import PATIENCE


def a_run(workflow: Workflow, run_input: Any = None) -> Run:
    """A run of a workflow, whose function need not have an import path."""
    work = Work(**{name: getattr(workflow, name) for name in Work.__struct_fields__})
    return Run("r1", workflow.name, 1, 0.0, "test", work, {} if run_input is None else run_input, epoch=3)


class Reports:
    """What an execution reports."""

    def __init__(self) -> None:
        self.progress: list[Progress] = []
        self.output: list[str] = []

    def work(self, workflow: Workflow, run_input: Any = None, run: Run | None = None) -> RunWork:
        run = a_run(workflow) if run is None else run.changed(work=a_run(workflow).work)
        return RunWork(run, {} if run_input is None else run_input, self.progress.append, self.output.append)


def executors(policy: DevicePolicy | None = None, **options: Any) -> DeviceExecutor:
    return DeviceExecutor(policy or DevicePolicy.open(), **{"device": "kitchen", "session": "s1", **options})


def execute(workflow: Workflow, run_input: Any = None, policy: DevicePolicy | None = None, **options: Any) -> Any:
    """The result of one execution."""
    reports = options.pop("reports", None) or Reports()
    run = options.pop("run", None)

    async def main() -> Any:
        made = executors(policy, **options)
        try:
            async with asyncio.timeout(PATIENCE):
                return await made.execute(reports.work(workflow, run_input, run))
        finally:
            made.close()

    return asyncio.run(main())


def check(workflow: Workflow, run_input: Any = None, policy: DevicePolicy | None = None) -> str | None:
    made = executors(policy)
    return made.check(a_run(workflow, run_input))


def command(*argv: str, **options: Any) -> Workflow:
    return Workflow("work", argv=argv, **options)


def shell(line: str, **options: Any) -> Workflow:
    return Workflow("work", shell=line, **options)


def lines(path: Path, count: int = 1) -> list[str]:
    """The lines that a command has written; empty while they are not all there."""
    written = path.read_text().split("\n")[:-1] if path.exists() else []
    return written if len(written) >= count else []
