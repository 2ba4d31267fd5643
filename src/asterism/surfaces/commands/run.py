"""``asterism run``: run a plan, watch it, and say how it ended."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from asterism.core.lock import POLICIES
from asterism.core.selection import STRATEGIES
from asterism.runtime import calls
from asterism.runtime.devices import LocalDevice
from asterism.runtime.orchestrator import Orchestrator
from asterism.runtime.result import Result
from asterism.surfaces.commands.planfiles import Unusable, import_from_beside, plan_argument, usable
from asterism.surfaces.interrupts import run_until_interrupted
from asterism.surfaces.live import watched
from asterism.surfaces.planfile import PlanFile
from asterism.surfaces.recording import Recording
from asterism.surfaces.reporting import write_report
from asterism.surfaces.results import result_json
from asterism.surfaces.screen import Screen, forget_output
from asterism.surfaces.secrets import Secrets
from asterism.surfaces.summary import lines, reasons


@dataclass(frozen=True, slots=True)
class Wishes:
    """How the run is to be shown and kept."""

    report: str | None
    as_json: bool
    plain: bool


@click.command()
@plan_argument
@click.option("--policy", type=click.Choice(POLICIES), help="What is held while an editor thinks.")
@click.option("--editor", metavar="MODULE:FUNCTION", help="A Python function that edits the plan while it runs.")
@click.option("--concurrency", type=click.IntRange(min=1), help="How many tasks run at once in all.")
@click.option("--strategy", type=click.Choice(list(STRATEGIES)), default="score", help="How a device is chosen.")
@click.option(
    "--no-device-timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a task that no device can take waits for one.",
)
@click.option("--report", metavar="FILE.html", help="Write a report of the run as a web page.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; all else goes to standard error.")
@click.option("--plain", is_flag=True, help="A line for each event instead of the live view.")
def run(
    plan: str, policy: str | None, editor: str | None, report: str | None, as_json: bool, plain: bool, **terms: Any
) -> int:
    """Run a plan file to its end.

    Exits with 0 if it completed, 1 if it failed, 2 if it failed in part, 130 if it was cancelled, 64 if it could not be
    run at all. Ctrl-C cancels: what runs is asked to stop. A second Ctrl-C stops waiting for it."""
    import_from_beside(plan)
    found = usable(plan)
    terms |= {"policy": policy or found.policy or "scoped", "editor": _editor(editor)}
    with _quiet_log():
        return asyncio.run(_run(found, terms, Wishes(report, as_json, plain)))


@contextmanager
def _quiet_log() -> Iterator[None]:
    """What goes wrong is told as an event; a warning in the log would tell it again."""
    log = logging.getLogger("asterism")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _editor(path: str | None) -> Any:
    if path is None:
        return None
    if ":" not in path:
        raise click.UsageError(f"--editor is package.module:function, not {path!r}.")
    try:
        return calls.load(path)
    except (Exception, SystemExit) as error:  # importing runs foreign code, which may raise anything
        raise Unusable(f"The editor {path!r} cannot be imported: {type(error).__name__}: {error}.") from None


async def _run(found: PlanFile, terms: dict[str, Any], wishes: Wishes) -> int:
    plan = found.constellation
    devices = [LocalDevice(line.id, line.slots, line.can, json_results=True) for line in found.devices]
    rank = any(node.task.estimate is not None for node in plan.nodes.values())
    orchestrator = Orchestrator(devices, rank=rank, **terms)
    recording = Recording(plan, orchestrator.events)
    screen = Screen(stderr=wishes.as_json)
    async with watched(orchestrator, plan, screen, plain=wishes.plain):
        result = await run_until_interrupted(orchestrator, plan)
    recording.close()
    _tell(result, recording, wishes, screen)
    return result.exit_code


def _tell(result: Result, recording: Recording, wishes: Wishes, screen: Screen) -> None:
    secrets = Secrets(node.task for node in result.plan.nodes.values())
    screen.say()
    for reason in reasons(result, secrets):
        screen.say(reason)
    for figure in lines(result):
        screen.say(figure)
    if wishes.report is not None:
        try:
            write_report(wishes.report, result, recording)
        except OSError as error:
            raise Unusable(f"The report {wishes.report} cannot be written: {error.strerror}.") from None
        screen.say(f"Report: {wishes.report}")
    if wishes.as_json:
        try:
            click.echo(json.dumps(result_json(result), ensure_ascii=False))
        except BrokenPipeError:
            forget_output(sys.stdout)
