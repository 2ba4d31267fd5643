"""Pages of ``asterism top`` about one plan, task, run, device or series: details, why it does not run, its log."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from rich.text import Text

from asterism.api.local.series_handlers import series_changes, series_document
from asterism.api.system import LocalSystem
from asterism.base.status_colours import BOLD, DIM
from asterism.base.text import clean
from asterism.cli.fleet.fleet_views import device_lines
from asterism.cli.log_output import RunLine, RunLogReader
from asterism.cli.plan.plan_views import explanation_lines as task_explanation_lines
from asterism.cli.plan.plan_views import resume_command, review_lines, story_lines
from asterism.cli.plan.plan_views import status_lines as plan_status_lines
from asterism.cli.run.run_views import details_lines, explanation_lines
from asterism.cli.screen import wrapped
from asterism.cli.series.series_views import SeriesView, history_table, status_lines
from asterism.cli.top.top_listings import DEVICES, NOTICES, PLANS, RUNS, SERIES, TASKS, Subject
from asterism.durable.task_logs import task_runs
from asterism.fleet.fleet import Fleet, UnknownDevice
from asterism.report.log_text import log_text
from asterism.series.store_register import StoreRegister

MOST_CHANGES = 50
"""How many changes of a series its page shows."""


def has_log(subject: Subject) -> bool:
    return subject.kind in (PLANS, TASKS, RUNS)


async def page(fleet: Fleet, subject: Subject, width: int) -> list[Text]:
    """Everything about a subject, as lines for a terminal of this width."""
    if subject.kind == RUNS:
        return _clean(details_lines(await LocalSystem(fleet).show_run(subject.name), width))
    if subject.kind == TASKS:
        return await _task_page(fleet, subject, width)
    if subject.kind == DEVICES:
        return await _device_page(fleet, subject.name, width)
    if subject.kind == SERIES:
        return await _series_page(fleet, subject.name, width)
    if subject.kind == NOTICES:
        return await page(fleet, Subject(RUNS, subject.plan), width)
    return await why_page(fleet, subject, width)


async def why_page(fleet: Fleet, subject: Subject, width: int) -> list[Text]:
    """Why a run or task does not run, and the state of anything else."""
    if subject.kind == RUNS:
        return _clean(explanation_lines(await LocalSystem(fleet).explain_run(subject.name), width))
    if subject.kind == TASKS:
        why = await LocalSystem(fleet).explain_task(subject.plan, subject.name)
        return _clean(task_explanation_lines(why, width))
    if subject.kind == PLANS:
        plan, url = await LocalSystem(fleet).show_plan(subject.name, tasks=False), fleet.store.url
        sentences = plan_status_lines(plan, resume_command(url, subject.name))
        sentences += review_lines(plan, f" --store {shlex.quote(url)}")
        return _clean(line for sentence in sentences for line in wrapped(sentence, width))
    return await page(fleet, subject, width)


async def _task_page(fleet: Fleet, subject: Subject, width: int) -> list[Text]:
    story = story_lines((await LocalSystem(fleet).read_story(subject.plan, subject.name)).items)
    return [*await why_page(fleet, subject, width), Text(), Text("Story", BOLD), *_clean(story)]


async def _device_page(fleet: Fleet, name: str, width: int) -> list[Text]:
    try:
        return _clean(device_lines(await LocalSystem(fleet).show_device(name), width))
    except UnknownDevice:
        return [Text(clean(f"The store knows no device {name!r} any more."))]


async def _series_page(fleet: Fleet, name: str, width: int) -> list[Text]:
    register = StoreRegister(fleet.store, owned=False)
    view = SeriesView.of(series_document(name, (await register.read(name)).text, register.clock()))
    changes = await series_changes(register, name, MOST_CHANGES)
    return _clean([*status_lines(view, register.clock()), Text(), *history_table(changes, width)])


def _clean(told: Iterable[Text]) -> list[Text]:
    found = []
    for line in told:
        line.plain = clean(line.plain)  # text from outside may contain line breaks and control characters
        found.append(line)
    return found


class LogFeed:
    """The log of a run, a task or a plan, from where it was read the last time."""

    def __init__(self, fleet: Fleet, subject: Subject) -> None:
        self._fleet, self._subject = fleet, subject
        self._readers: dict[str, RunLogReader] = {}
        self._attempt: tuple[str, int] | None = None

    async def read(self) -> list[Text]:
        """The lines that are new, in the order of time."""
        found = [line for reader in await self._all_readers() for line in await reader.read()]
        found.sort(key=lambda one: one.line.at)
        return [text for one in found for text in self._texts(one)]

    async def _all_readers(self) -> Sequence[RunLogReader]:
        kind, name, plan = self._subject
        if kind == RUNS:
            run = await self._fleet.run(name)
            self._readers.setdefault(name, RunLogReader(self._fleet, run)).run = run
        else:
            runs = await task_runs(self._fleet.store, name if kind == PLANS else plan, None if kind == PLANS else name)
            for one in runs:
                known = self._readers.setdefault(one.run.id, RunLogReader(self._fleet, one.run, one.task, one.before))
                known.run = one.run
        return list(self._readers.values())

    def _texts(self, one: RunLine) -> list[Text]:
        if self._subject.kind == PLANS:
            return [Text(clean(f"{one.task} | "), DIM).append_text(log_text(one.line))]
        before, self._attempt = self._attempt, (one.run, one.attempt)
        heading = [Text(f"-- attempt {one.attempt} --", DIM)] if before not in (None, self._attempt) else []
        return [*heading, log_text(one.line)]
