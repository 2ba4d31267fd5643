"""The release of ``asterism demo``: a plan on three devices, and the editor that repairs and shortens it.

The tasks are real: files are written, compiled, tested, packed and signed in a temporary directory (see ``workshop``).
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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from asterism import (
    AsterismError,
    Constellation,
    ConstellationView,
    EditBatch,
    Event,
    LocalDevice,
    Orchestrator,
    Priority,
    Result,
    Task,
    TaskEvent,
    edits,
)
from asterism.base.startup import install_hint
from asterism.cli import Screen, run_until_interrupted, watched
from asterism.cli.demo.workshop import Workshop
from asterism.cli.editor_options import MODEL_VARIABLE
from asterism.core.plan.status import ConstellationState
from asterism.report import Recording, failure_reasons, summary_lines, write_report

KEY = "RELEASE_KEY"
"""The variable with the key of the signer."""


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

    def add(name: str, description: str, after: Any = None, **options: Any) -> None:
        plan.add(Task(name, description=description, **options), after)

    add("generate", "write the library", call=shop.generate)
    add("find-typesetter", "look for the PDF program", call=shop.find_typesetter)
    add("lint", "compile all", "generate", argv=python("-m", "compileall", "-q", "-f", library), needs=["compile"])
    add("audit", "count docstrings", "generate", call=shop.audit)
    plan.add(checked_by(shop, "test-angles", "checks.test_angles"), "generate")
    plan.add(checked_by(shop, "test-numbers", "checks.test_numbers"), "generate")
    fuzz, measure = str(shop.tools / "fuzz.py"), str(shop.tools / "measure.py")
    add("fuzz", "try random angles", "generate", argv=python(fuzz, "3.0"), env=path, needs=["test"])
    add("measure", "how fast is it", "lint", argv=python(measure, "1.5"), env=path)
    docs = f'cd "$DOCS" && "{sys.executable}" -P -m pydoc -w meridian meridian.numbers meridian.angles'
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


def python(*words: str) -> tuple[str, ...]:
    """A command of Python. ``-P``: it imports nothing from the folder that it is started in, which is the user's."""
    return (sys.executable, "-P", *words)


def checked_by(shop: Workshop, name: str, module: str) -> Task:
    argv = python("-m", "unittest", module)
    return Task(
        name, argv=argv, env={"PYTHONPATH": str(shop.home)}, needs=frozenset({"test"}), description=f"run {module}"
    )


def seal(shop: Workshop, action: str, description: str) -> Task:
    """A task for the signer. The key comes from the environment and appears in no report."""
    argv = python(str(shop.tools / "sign.py"), action, str(shop.package), str(shop.signature))
    return Task(action, argv=argv, env={KEY: {"secret": KEY}}, needs=frozenset({"sign"}), description=description)


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
            edits.AddTask(
                Task("patch", call=self.shop.patch, priority=Priority.CRITICAL, description="mend the median")
            ),
            edits.AddDependency("test-numbers", "patch", on="failure", handled=True),
            edits.AddTask(checked_by(self.shop, "retest", "checks.test_numbers")),
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


def model_editor(shop: Workshop, model: str) -> Any:
    """A language model as the editor. It knows the commands that it may need, and decides itself."""
    from asterism.models import ModelEditor

    mend = python(str(shop.tools / "mend.py"), str(shop.library / "numbers.py"))
    test = python("-m", "unittest", "checks.test_numbers")
    goal = (
        f"Release the library. If a test finds a bug in numbers.py, the command {[*mend]} repairs it; then test again "
        f"with {[*test]}, env PYTHONPATH={shop.home}, needs test, and let the "
        "package wait for that test. If no typesetter is found, release without the PDF. Let a repair depend on the "
        "failure that it repairs, with handled: true."
    )
    return ModelEditor(model, goal=goal, ask=["failure", "tasks=find-typesetter"], budget="20calls 200ktokens")


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


async def demonstrate(shop: Workshop, editor: Any, screen: Screen, report: str, plain: bool) -> Result:
    plan = release(shop)
    orchestrator = Orchestrator(devices(), editor=editor)
    recording = Recording(plan, orchestrator.events)
    async with watched(orchestrator, plan, screen, plain=plain):
        result = await run_until_interrupted(orchestrator, plan)
    recording.close()
    write_report(report, result, recording)
    return result


def run_demo(report: str, *, plain: bool) -> int:
    """Run the release and print what came of it. Returns the exit code of the command."""
    os.environ.setdefault(KEY, secrets.token_hex(16))
    model, screen = os.environ.get(MODEL_VARIABLE, ""), Screen()
    try:
        with tempfile.TemporaryDirectory(prefix="asterism-demo-") as home:
            shop = Workshop(Path(home))
            editor = model_editor(shop, model) if model else Maintainer(shop)
            result = asyncio.run(demonstrate(shop, editor, screen, report, plain))
    except AsterismError as error:  # the model cannot be used
        say_all(screen, (f"{error}.", *how_to()))
        return 1
    screen.say()
    say_all(screen, (*failure_reasons(result), *summary_lines(result), "", f"Report: {Path(report).resolve()}"))
    if result.state is ConstellationState.CANCELLED:
        return result.exit_code
    if model and result["publish"].status != "completed":
        screen.say(f"{model} has not repaired the release, so it was not published.")
        return 1
    if not model and not reached(result):
        screen.say("The result is not as expected.")
        return 1
    screen.say("As expected: the failed test stays in the record, and its repair was published.")
    if not model:
        say_all(screen, how_to())
    return 0


def say_all(screen: Screen, lines: Iterable[str | Text]) -> None:
    for line in lines:
        screen.say(line)


def how_to() -> tuple[str, ...]:
    return (
        f"To let a language model edit, {install_hint('model')}",
        f"  OPENAI_API_KEY=… {MODEL_VARIABLE}=openai:gpt-5 asterism demo",
        "Other models, local ones too: docs/how-to/models.md in the source of Asterism",
    )
