"""Pages of ``asterism top`` about one plan, task, run, device or series: details, why it does not run, its log."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from rich.text import Text

from asterism.api import documents
from asterism.api.client_errors import NotFound
from asterism.api.system import System
from asterism.base.status_colours import BOLD, DIM
from asterism.base.text import clean
from asterism.cli.fleet.fleet_views import device_lines
from asterism.cli.log_output import RunLine, run_line
from asterism.cli.plan.plan_views import explanation_lines as task_explanation_lines
from asterism.cli.plan.plan_views import resume_command, review_lines, story_lines
from asterism.cli.plan.plan_views import status_lines as plan_status_lines
from asterism.cli.run.run_views import details_lines, explanation_lines
from asterism.cli.screen import wrapped
from asterism.cli.series.series_views import SeriesView, history_table, status_lines
from asterism.cli.top.top_listings import DEVICES, NOTICES, PLANS, RUNS, SERIES, TASKS, Subject
from asterism.fleet.fleet import UnknownDevice
from asterism.report.log_text import log_text

MOST_CHANGES = 50
"""How many changes of a series its page shows."""


def has_log(subject: Subject) -> bool:
    return subject.kind in (PLANS, TASKS, RUNS)


async def page(system: System, subject: Subject, width: int) -> list[Text]:
    """Everything about a subject, as lines for a terminal of this width."""
    if subject.kind == RUNS:
        return _clean(details_lines(await system.show_run(subject.name), width))
    if subject.kind == TASKS:
        return await _task_page(system, subject, width)
    if subject.kind == DEVICES:
        return await _device_page(system, subject.name, width)
    if subject.kind == SERIES:
        return await _series_page(system, subject.name, width)
    if subject.kind == NOTICES:
        return await page(system, Subject(RUNS, subject.plan), width)
    return await why_page(system, subject, width)


async def why_page(system: System, subject: Subject, width: int) -> list[Text]:
    """Why a run or task does not run, and the state of anything else."""
    if subject.kind == RUNS:
        return _clean(explanation_lines(await system.explain_run(subject.name), width))
    if subject.kind == TASKS:
        why = await system.explain_task(subject.plan, subject.name)
        return _clean(task_explanation_lines(why, width))
    if subject.kind == PLANS:
        plan, url = await system.show_plan(subject.name, tasks=False), system.url
        sentences = plan_status_lines(plan, resume_command(url, subject.name))
        sentences += review_lines(plan, f" --store {shlex.quote(url)}")
        return _clean(line for sentence in sentences for line in wrapped(sentence, width))
    return await page(system, subject, width)


async def _task_page(system: System, subject: Subject, width: int) -> list[Text]:
    story = story_lines((await system.read_story(subject.plan, subject.name)).items)
    return [*await why_page(system, subject, width), Text(), Text("Story", BOLD), *_clean(story)]


async def _device_page(system: System, name: str, width: int) -> list[Text]:
    try:
        return _clean(device_lines(await system.show_device(name), width))
    except (UnknownDevice, NotFound):
        return [Text(clean(f"The store knows no device {name!r} any more."))]


async def _series_page(system: System, name: str, width: int) -> list[Text]:
    series = await system.show_series(name)
    changes = (await system.list_series_changes(name, MOST_CHANGES)).items
    return _clean([*status_lines(SeriesView.of(series), series.now), Text(), *history_table(changes, width)])


def _clean(told: Iterable[Text]) -> list[Text]:
    lines = []
    for line in told:
        line.plain = clean(line.plain)  # text from outside may contain line breaks and control characters
        lines.append(line)
    return lines


class LogFeed:
    """The log of a run, a task or a plan, from where it was read the last time."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._position: str | None = None
        self._attempt: tuple[str, int] | None = None

    async def read(self, system: System) -> list[Text]:
        """The lines that are new, in the order of time."""
        kind, name, plan = self._subject
        lines: list[RunLine] = []
        more = True
        while more:
            page: documents.RunLog | documents.PlanLog
            if kind == RUNS:
                page = await system.read_run_logs(name, self._position)
                lines += [run_line(page.run, None, entry) for entry in page.items]
                more = bool(page.items)
            else:
                where, task = (name, None) if kind == PLANS else (plan, name)
                page = await system.read_plan_logs(where, task, self._position)
                lines += [run_line(entry.run, entry.task, entry) for entry in page.items]
                more = page.more
            self._position = page.next
        lines.sort(key=lambda line: line.line.at)
        return [text for line in lines for text in self._texts(line)]

    def _texts(self, line: RunLine) -> list[Text]:
        if self._subject.kind == PLANS:
            return [Text(clean(f"{line.task} | "), DIM).append_text(log_text(line.line))]
        before, self._attempt = self._attempt, (line.run, line.attempt)
        heading = [Text(f"-- attempt {line.attempt} --", DIM)] if before not in (None, self._attempt) else []
        return [*heading, log_text(line.line)]
