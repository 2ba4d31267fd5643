"""What ``make demo`` runs: a release on three devices, while an editor repairs it and cuts it down.

The tasks are real: files are written, compiled, tested, packed and signed in a temporary directory (see workshop.py).
One of the tests fails. The editor reads the failure, adds a patch and another test, and makes the package wait for
these instead. It also takes the PDF out of the plan, for the program that would make it is not there. Meanwhile
everything else goes on.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from workshop import Workshop

from asterism import Constellation, ConstellationView, EditBatch, Event, LocalDevice, Orchestrator, Result, Task, edits
from asterism.surfaces.live import watched
from asterism.surfaces.recording import Recording
from asterism.surfaces.reporting import write_report
from asterism.surfaces.secrets import Secrets
from asterism.surfaces.summary import lines, reasons

REPORT = Path("asterism-report.html")
PYTHON = sys.executable
KEY = {"RELEASE_KEY": {"secret": "RELEASE_KEY"}}


def devices() -> list[LocalDevice]:
    return [
        LocalDevice("laptop", slots=2, can=["test"]),
        LocalDevice("builder", slots=2, can=["compile", "test"]),
        LocalDevice("signer", slots=1, can=["sign"]),
    ]


def release(shop: Workshop) -> Constellation:
    """The plan as a person would write it who expects no trouble."""
    plan = Constellation("release")
    home, path = str(shop.home), {"PYTHONPATH": str(shop.home)}
    plan.add(Task("generate", call=shop.generate, description="write the library"))
    plan.add(Task("find-typesetter", call=shop.find_typesetter, description="look for the PDF program"))
    plan.add(
        Task("lint", argv=[PYTHON, "-m", "compileall", "-q", "-f", str(shop.library)], needs=["compile"]), "generate"
    )
    plan.add(Task("audit", call=shop.audit, description="count docstrings"), "generate")
    plan.add(_test(shop, "test-angles", "tests.test_angles"), "generate")
    plan.add(_test(shop, "test-numbers", "tests.test_numbers"), "generate")
    plan.add(Task("fuzz", argv=[PYTHON, str(shop.tools / "fuzz.py"), "2.5"], env=path, needs=["test"]), "generate")
    plan.add(Task("measure", argv=[PYTHON, str(shop.tools / "measure.py"), "1.5"], env=path), "lint")
    pages = "meridian meridian.numbers meridian.angles"
    docs = f'cd "$HOME_OF_DOCS" && "{PYTHON}" -m pydoc -w {pages}'
    plan.add(Task("docs-html", shell=docs, env={**path, "HOME_OF_DOCS": f"{home}/docs"}), "generate")
    plan.add(
        Task("docs-pdf", shell="meridian-typesetter docs", description="typeset"), ["find-typesetter", "docs-html"]
    )
    plan.add(Task("proofread-pdf", shell="meridian-typesetter --proofread docs"), "docs-pdf")
    plan.add(Task("bundle-docs", call=shop.bundle_docs), ["docs-html", "proofread-pdf"])
    plan.add(Task("changelog", call=shop.changelog), ["generate", "audit"])
    pack = [PYTHON, "-m", "zipfile", "-c", str(shop.package), str(shop.library)]
    plan.add(Task("package", argv=pack, priority="high"), ["lint", "audit", "test-angles", "test-numbers"])
    smoke = "from meridian.numbers import median; print(median([1, 2, 3, 10]))"
    plan.add(Task("smoke", argv=[PYTHON, "-c", smoke], env={"PYTHONPATH": str(shop.package)}), "package")
    plan.add(_sign(shop, "sign"), "package")
    plan.add(_sign(shop, "verify"), "sign")
    plan.add(Task("publish", call=shop.publish), ["verify", "smoke", "fuzz", "measure", "bundle-docs", "changelog"])
    return plan


def _test(shop: Workshop, name: str, module: str) -> Task:
    return Task(name, argv=[PYTHON, "-m", "unittest", module], env={"PYTHONPATH": str(shop.home)}, needs=["test"])


def _sign(shop: Workshop, action: str) -> Task:
    argv = [PYTHON, str(shop.tools / "sign.py"), action, str(shop.package), str(shop.signature)]
    return Task(action, argv=argv, env=KEY, needs=["sign"])


class Maintainer:
    """The editor. Somebody who looks at every end, and takes a moment longer when there is something to decide."""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop

    async def edit(self, view: ConstellationView, events: Sequence[Event]) -> EditBatch | None:
        ended = {event.task_id: event for event in events if event.kind in ("task_completed", "task_failed")}
        await asyncio.sleep(0.25)
        if "test-numbers" in ended and ended["test-numbers"].kind == "task_failed":
            await asyncio.sleep(1.2)
            return self.repair()
        if "find-typesetter" in ended and ended["find-typesetter"].value["tool"] is None:
            await asyncio.sleep(0.6)
            return self.prune()
        return None

    def repair(self) -> EditBatch:
        """Patch what the test has found, test again, and let the package wait for that."""
        return EditBatch(
            (
                edits.AddTask(Task("patch", call=self.shop.patch, priority="critical")),
                edits.AddDependency("test-numbers", "patch", on="failure"),
                edits.AddTask(_test(self.shop, "retest", "tests.test_numbers")),
                edits.AddDependency("patch", "retest"),
                edits.AddDependency("retest", "package"),
                edits.RemoveDependency("test-numbers", "package"),
            ),
            reason="the median of an even number of values is wrong",
        )

    def prune(self) -> EditBatch:
        """No PDF: the documentation is bundled without it."""
        return EditBatch(
            (
                edits.RemoveDependency("proofread-pdf", "bundle-docs"),
                edits.RemoveTask("docs-pdf", dependents="remove"),
            ),
            reason="there is no program here that makes PDF",
        )


def reached(result: Result) -> bool:
    """The end that is expected: all is published, and of all tasks only the test that found the bug has failed."""
    failed = [task.id for task in result if task.status != "completed"]
    return (
        result.state == "partially_failed"
        and failed == ["test-numbers"]
        and "docs-pdf" not in result.plan
        and result["retest"].status == "completed"
        and "manifest.json" in result["publish"].value["files"]
    )


async def demonstrate(shop: Workshop, console: Console) -> Result:
    plan = release(shop)
    orchestrator = Orchestrator(devices(), editor=Maintainer(shop))
    recording = Recording(plan, orchestrator.events)
    async with watched(orchestrator, plan, console):
        result = await orchestrator.run(plan)
    recording.close()
    write_report(REPORT, result, recording)
    return result


def main() -> int:
    os.environ.setdefault("RELEASE_KEY", secrets.token_hex(16))
    console = Console()
    with tempfile.TemporaryDirectory(prefix="asterism-demo-") as home:
        result = asyncio.run(demonstrate(Workshop(Path(home)), console))
    console.print()
    for line in [*reasons(result, Secrets(task.task for task in result)), *lines(result)]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nReport: {REPORT.resolve()}", markup=False, highlight=False, soft_wrap=True)
    if not reached(result):
        console.print("This is not the end that was expected.")
        return 1
    console.print("As expected: the failed test is still in the record, and its repair was published.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
