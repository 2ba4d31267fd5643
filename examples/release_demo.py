"""The demonstration of ``make demo``: a release on three devices, which an editor repairs and shortens as it runs.

The tasks are real: files are written, compiled, tested, packed and signed in a temporary directory (see workshop.py).
One of the tests fails. The editor reads the failure, adds a patch and another test, and makes the package wait for
these instead. It also removes the PDF from the plan, since the program that creates it is not installed. All other
tasks continue meanwhile.

The editor is a function, unless ``$ASTERISM_MODEL`` names a language model: then the model is the editor.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workshop import Workshop

from asterism import (
    AsterismError,
    Constellation,
    ConstellationView,
    EditBatch,
    Event,
    LocalDevice,
    Orchestrator,
    Result,
    Task,
    TaskEvent,
    edits,
)
from asterism.cli import Screen, run_until_interrupted, watched
from asterism.report import Recording, failure_reasons, summary_lines, write_report

REPORT = Path("asterism-report.html")
MODEL = os.environ.get("ASTERISM_MODEL", "")
HOW_TO = (
    "To let a language model edit:",
    "  .venv/bin/python -m pip install '.[model]'",
    "  OPENAI_API_KEY=… ASTERISM_MODEL=openai:gpt-5 make demo",
    "Other models, local ones too: docs/how-to/models.md",
)


def devices() -> list[LocalDevice]:
    return [
        LocalDevice("laptop", slots=2, can=["test"]),
        LocalDevice("builder", slots=2, can=["compile", "test"]),
        LocalDevice("signer", slots=1, can=["sign"]),
    ]


def release(shop: Workshop) -> Constellation:
    """The plan as first written, without any repair."""
    plan = Constellation("release")
    library, path = str(shop.library), {"PYTHONPATH": str(shop.home)}

    def python(*words: str) -> tuple[str, ...]:
        return (sys.executable, *words)

    def add(name: str, description: str, after: Any = None, **options: Any) -> None:
        plan.add(Task(name, description=description, **options), after)

    add("generate", "write the library", call=shop.generate)
    add("find-typesetter", "look for the PDF program", call=shop.find_typesetter)
    add("lint", "compile all", "generate", argv=python("-m", "compileall", "-q", "-f", library), needs=["compile"])
    add("audit", "count docstrings", "generate", call=shop.audit)
    plan.add(test(shop, "test-angles", "checks.test_angles"), "generate")
    plan.add(test(shop, "test-numbers", "checks.test_numbers"), "generate")
    fuzz, measure = str(shop.tools / "fuzz.py"), str(shop.tools / "measure.py")
    add("fuzz", "try random angles", "generate", argv=python(fuzz, "3.0"), env=path, needs=["test"])
    add("measure", "how fast is it", "lint", argv=python(measure, "1.5"), env=path)
    docs = f'cd "$DOCS" && "{sys.executable}" -m pydoc -w meridian meridian.numbers meridian.angles'
    add("docs-html", "pages with pydoc", "generate", shell=docs, env={**path, "DOCS": str(shop.home / "docs")})
    add("docs-pdf", "typeset the pages", ["find-typesetter", "docs-html"], shell="meridian-typesetter docs")
    add("proofread-pdf", "look it through", "docs-pdf", shell="meridian-typesetter --proofread docs")
    add("bundle-docs", "pack the pages", ["docs-html", "proofread-pdf"], call=shop.bundle_docs)
    add("changelog", "tell what is new", ["generate", "audit"], call=shop.changelog)
    checked = ["lint", "audit", "test-angles", "test-numbers"]
    pack = python("-m", "zipfile", "-c", str(shop.package), library)
    add("package", "make the archive", checked, argv=pack, priority="high")
    smoke = "from meridian.numbers import median; print(median([1, 2, 3, 10]))"
    add("smoke", "import the archive", "package", argv=python("-c", smoke), env={"PYTHONPATH": str(shop.package)})
    plan.add(seal(shop, "sign", "seal the archive"), "package")
    plan.add(seal(shop, "verify", "check the seal"), "sign")
    ready = ["verify", "smoke", "fuzz", "measure", "bundle-docs", "changelog"]
    add("publish", "put all on the shelf", ready, call=shop.publish)
    return plan


def test(shop: Workshop, name: str, module: str) -> Task:
    argv = (sys.executable, "-m", "unittest", module)
    return Task(name, argv=argv, env={"PYTHONPATH": str(shop.home)}, needs=["test"], description=f"run {module}")


def seal(shop: Workshop, action: str, description: str) -> Task:
    """A task for the signer. The key comes from the environment and appears in no report."""
    argv = (sys.executable, str(shop.tools / "sign.py"), action, str(shop.package), str(shop.signature))
    key = {"RELEASE_KEY": {"secret": "RELEASE_KEY"}}
    return Task(action, argv=argv, env=key, needs=["sign"], description=description)


class Maintainer:
    """The editor: reviews every end, and takes longer if there is something to decide."""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop

    async def edit(self, view: ConstellationView, events: Sequence[Event]) -> EditBatch | None:
        ended = {event.task_id: event for event in events if isinstance(event, TaskEvent)}
        await asyncio.sleep(0.3)
        changes: list[edits.Edit] = []
        reasons: list[str] = []
        if "test-numbers" in ended and ended["test-numbers"].error is not None:
            await asyncio.sleep(1.5)
            changes += self.repair()
            reasons.append("the median of an even number of values is wrong")
        if "find-typesetter" in ended and ended["find-typesetter"].value["tool"] is None:
            await asyncio.sleep(0.6)
            changes += self.prune()
            reasons.append("there is no program here that makes PDF")
        return EditBatch(tuple(changes), reason="; ".join(reasons)) if changes else None

    def repair(self) -> list[edits.Edit]:
        """Patch the bug, which handles the failure; test again, and let the package wait for that test."""
        return [
            edits.AddTask(Task("patch", call=self.shop.patch, priority="critical", description="mend the median")),
            edits.AddDependency("test-numbers", "patch", on="failure", handled=True),
            edits.AddTask(test(self.shop, "retest", "checks.test_numbers")),
            edits.AddDependency("patch", "retest"),
            edits.AddDependency("retest", "package"),
            edits.RemoveDependency("test-numbers", "package"),
        ]

    def prune(self) -> list[edits.Edit]:
        """No PDF: the documentation is bundled without it."""
        return [
            edits.RemoveDependency("proofread-pdf", "bundle-docs"),
            edits.RemoveTask("docs-pdf", dependents="remove"),
        ]


def model_editor(shop: Workshop) -> Any:
    """A language model as the editor. It knows the commands that it may need, and decides itself."""
    from asterism.models import ModelEditor

    python, numbers = sys.executable, shop.library / "numbers.py"
    goal = (
        "Release the library. If a test finds a bug in numbers.py, the command "
        f"{[python, str(shop.tools / 'mend.py'), str(numbers)]} repairs it; then test again with "
        f"{[python, '-m', 'unittest', 'checks.test_numbers']}, env PYTHONPATH={shop.home}, needs test, and let the "
        "package wait for that test. If no typesetter is found, release without the PDF. Let a repair depend on the "
        "failure that it repairs, with handled: true."
    )
    return ModelEditor(MODEL, goal=goal, ask=["failure", "tasks=find-typesetter"], budget="20calls 200ktokens")


def reached(result: Result) -> bool:
    """Whether the result is as expected: everything is published, and the only failure, of the test that found the
    bug, is repaired."""
    failed = [task.id for task in result if task.status != "completed"]
    return (
        result.repaired
        and failed == ["test-numbers"]
        and "docs-pdf" not in result.plan
        and result["retest"].status == "completed"
        and "manifest.json" in result["publish"].value["files"]
    )


async def demonstrate(shop: Workshop, screen: Screen) -> Result:
    plan = release(shop)
    orchestrator = Orchestrator(devices(), editor=model_editor(shop) if MODEL else Maintainer(shop))
    recording = Recording(plan, orchestrator.events)
    async with watched(orchestrator, plan, screen):
        result = await run_until_interrupted(orchestrator, plan)
    recording.close()
    write_report(REPORT, result, recording)
    return result


def say_all(screen: Screen, lines: Sequence[str]) -> None:
    for line in lines:
        screen.say(line)


def main() -> int:
    os.environ.setdefault("RELEASE_KEY", secrets.token_hex(16))
    screen = Screen()
    try:
        with tempfile.TemporaryDirectory(prefix="asterism-demo-") as home:
            result = asyncio.run(demonstrate(Workshop(Path(home)), screen))
    except AsterismError as error:  # the model cannot be used
        say_all(screen, (f"{error}.", *HOW_TO))
        return 1
    screen.say()
    say_all(screen, (*failure_reasons(result), *summary_lines(result), "", f"Report: {REPORT.resolve()}"))
    if MODEL and result["publish"].status != "completed":
        screen.say(f"{MODEL} has not repaired the release, so it was not published.")
        return 1
    if not MODEL and not reached(result):
        screen.say("The result is not as expected.")
        return 1
    screen.say("As expected: the failed test stays in the record, and its repair was published.")
    if not MODEL:
        say_all(screen, HOW_TO)
    return 0


if __name__ == "__main__":
    sys.exit(main())
