"""The report of a plan: one HTML page that needs neither a network nor other files."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from string import Template
from typing import TypeVar

from asterism.base.durations import format_duration
from asterism.base.text import markup, plural
from asterism.core.attempt_log import STDOUT
from asterism.report.picture import Graph, Picture
from asterism.report.report_data import EditRow, OutputRow, Report, StoryLine, TaskRow
from asterism.report.svg import beside, svg
from asterism.report.timeline import timeline


def report(data: Report) -> str:
    """The whole page. Any text is safe in it: all data is escaped, and only the page's own script may run.

    Large plans are shown in part, and the page says so.
    """
    script = beside("report.js")
    # Should escaping ever fail, the browser still runs nothing but this one script and loads nothing at all.
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    sections = [failures(data), graph(data), time(data), tasks(data), edits(data), output(data), stories(data)]
    sections.append(figures(data))
    return Template(beside("report.html")).substitute(
        policy=policy,
        title=markup(data.title),
        styles=beside("colours.css") + beside("report.css"),
        header=_header(data),
        sections="".join(sections),
        script=script,
    )


def _header(data: Report) -> str:
    took = format_duration(data.ended_at - data.started_at)
    links = "".join(
        f'<a href="#{name.lower()}">{name}</a>'
        for name in ("Graph", "Timeline", "Tasks", "Edits", "Output", "Stories", "Figures")
    )
    counts = Counter(row.status for row in data.tasks)
    counted = ", ".join(f"{number:,} {markup(status)}" for status, number in counts.items())
    devices = ", ".join(
        markup(name) for name in list(dict.fromkeys(bar.device for bar in data.executions))[:MOST_DEVICES]
    )
    at = datetime.fromtimestamp(data.started_at, UTC)
    began = f"{at.day} {at:%B %Y, %H:%M:%S} UTC"
    facts = [f"Began {began}", counted, f"on {devices}" if devices else ""]
    return (
        f'<header><p class="kind">Report of a plan</p><h1>{markup(data.title)}</h1>'
        f'<p class="end">{pill(data.state)} after {took}</p><p class="end">{" · ".join(filter(None, facts))}</p>'
        f'<nav aria-label="Sections">{links}</nav></header>'
    )


MOST_DRAWN = 300
MOST_FAILURES = 20
MOST_DEVICES = 8
MOST_ROWS = 5_000
Row = TypeVar("Row")
COLUMNS = ("Task", "Status", "Device", "Attempts", "Waited", "Started", "Duration", "Reason", "Result")


def pill(word: str) -> str:
    """A status or outcome in its colour."""
    return f'<span class="pill is-{markup(word)}">{markup(word.replace("_", " "))}</span>'


def failures(data: Report) -> str:
    """What failed and why, and what never ran; nothing if every task completed."""
    failed = [row for row in data.tasks if row.status == "failed"]
    never = [row for row in data.tasks if row.status == "cancelled"]
    if not failed and not never:
        return ""
    story_of = {task: place for place, (task, _) in enumerate(data.stories[:MOST_ROWS])}
    items = "".join(_failure(row, story_of.get(row.id)) for row in failed[:MOST_FAILURES])
    more = len(failed) - MOST_FAILURES
    rest = f'<p class="remark">The list of tasks has {plural(more, "more failed task")}.</p>' if more > 0 else ""
    names = ", ".join(markup(row.id) for row in never[:MOST_FAILURES])
    if len(never) > MOST_FAILURES:
        names += f" and {len(never) - MOST_FAILURES:,} more"
    cancelled = f'<p class="remark">{plural(len(never), "task")} cancelled: {names}.</p>' if never else ""
    return _section("Failures", f'<ol class="edits">{items}</ol>{rest}{cancelled}')


def _failure(row: TaskRow, story: int | None) -> str:
    name = markup(row.id) if story is None else f'<a href="#story-{story}">{markup(row.id)}</a>'
    took = "" if row.start is None or row.end is None else f" after {format_duration(row.end - row.start)}"
    where = f" on {markup(row.device)}" if row.device else ""
    attempts = f", in {plural(row.attempts, 'attempt')}" if row.attempts > 1 else ""
    return (
        f'<li class="is-failed"><p class="head"><b>{name}</b><span>failed{where}{took}{attempts}</span></p>'
        f'<p class="reason">{markup(row.reason)}</p></li>'
    )


def figures(data: Report) -> str:
    """Each figure with its name, for those who compare schedules."""
    if not data.figures:
        return _section("Figures", '<p class="none">There are no figures.</p>')
    named = [(markup(name), markup(value)) for name, value in data.figures]
    cards = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in named)
    return _section("Figures", f'<dl class="figures">{cards}</dl>')


def graph(data: Report) -> str:
    """The plan as it was at the end."""
    if not data.picture.tasks:
        return _section("Graph", '<p class="none">The plan has no tasks.</p>')
    picture = _first_tasks(data.picture)
    remark = ""
    if len(picture.tasks) < len(data.picture.tasks):
        remark = (
            f'<p class="remark">The graph shows the first {len(picture.tasks):,} of'
            f" {plural(len(data.picture.tasks), 'task')}, in the order of their dependencies."
            " The lists below have the others.</p>"
        )
    return _section("Graph", f'{remark}<div class="sheet graph" {_scroller("Graph")}>{svg(picture)}</div>')


def _first_tasks(picture: Picture) -> Picture:
    if len(picture.tasks) <= MOST_DRAWN:
        return picture
    drawn_tasks = [picture.tasks[task] for task in Graph.of(picture).order[:MOST_DRAWN]]
    drawn = {drawn_task.id for drawn_task in drawn_tasks}
    lines = tuple(line for line in picture.edges if line.source in drawn and line.target in drawn)
    return Picture(picture.title, tuple(drawn_tasks), lines)


def time(data: Report) -> str:
    """The timeline of executions, edit cycles and holds."""
    if not (data.executions or data.cycles or data.holds):
        return _section("Timeline", '<p class="none">Nothing was executed.</p>')
    executions, remark = _first(data.executions, "execution")
    drawn = replace(data, executions=executions, cycles=data.cycles[:MOST_ROWS], holds=data.holds[:MOST_ROWS])
    sheet = f'<div class="sheet" {_scroller("Timeline")}>{timeline(drawn)}</div>'
    return _section("Timeline", f"{remark}{sheet}{_timeline_legend(drawn)}")


def _timeline_legend(data: Report) -> str:
    outcomes = dict.fromkeys(markup(execution.outcome) for execution in data.executions)
    entries = [f'<li class="is-{outcome}"><i></i>{outcome}</li>' for outcome in outcomes]
    if any(execution.provisional for execution in data.executions):
        entries.append('<li class="provisional"><i></i>started provisionally</li>')
    answers = dict.fromkeys(markup(cycle.outcome) for cycle in data.cycles)
    entries += [f'<li class="cycle is-{answer}"><i></i>edit cycle: {answer}</li>' for answer in answers]
    if data.holds:
        entries.append('<li class="hold"><i></i>held for an edit</li>')
    return f'<ul class="legend">{"".join(entries)}</ul>'


def tasks(data: Report) -> str:
    """One row for each task."""
    if not data.tasks:
        return _section("Tasks", '<p class="none">The plan has no tasks.</p>')
    shown, remark = _first(data.tasks, "task")
    story_of = {task: place for place, (task, _) in enumerate(data.stories[:MOST_ROWS])}
    fleet = any(row.waited is not None for row in data.tasks)
    names = [name for name in COLUMNS if fleet or name != "Waited"]
    heads = "".join(f'<th scope="col"><button type="button">{name}</button></th>' for name in names)
    rows = "".join(_task_row(row, data.started_at, story_of.get(row.id), fleet) for row in shown)
    return _section(
        "Tasks",
        '<p class="filter"><label>Find a task'
        ' <input type="search" autocomplete="off" spellcheck="false"></label></p>'
        f'{remark}<div class="sheet" {_scroller("Tasks")}>'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>",
    )


def _task_row(row: TaskRow, since: float, story: int | None, fleet: bool) -> str:
    """``fleet``: tasks wait for devices of a fleet."""
    name = markup(row.id)
    link = name if story is None else f'<a href="#story-{story}">{name}</a>'
    started = "" if row.start is None else f"{row.start - since:.6f}"
    took = None if row.start is None or row.end is None else row.end - row.start
    cells = [
        f'<th scope="row">{link}</th><td>{pill(row.status)}</td><td>{markup(row.device)}</td>',
        f'<td class="number">{row.attempts}</td>',
        *([_seconds_cell(row.waited)] if fleet else []),
        f'<td class="number" data-sort="{started}">{_at(row.start, since)}</td>',
        _seconds_cell(took),
        f'<td class="long">{markup(row.reason)}</td><td class="long">{_code(row.value)}</td>',
    ]
    return f'<tr data-name="{name}">{"".join(cells)}</tr>'


def _seconds_cell(seconds: float | None) -> str:
    return f'<td class="number" data-sort="{"" if seconds is None else f"{seconds:.6f}"}">{_at(seconds, 0.0)}</td>'


def _at(at: float | None, since: float) -> str:
    return "" if at is None else format_duration(at - since)


def _code(text: str) -> str:
    return f"<code>{markup(text)}</code>" if text else ""


def edits(data: Report) -> str:
    """What the editors answered, in the order of the answers."""
    if not data.edits:
        return _section("Edits", '<p class="none">The plan was not edited.</p>')
    shown, remark = _first(data.edits, "edit")
    answers = "".join(_edit(row, data.started_at) for row in shown)
    return _section("Edits", f'{remark}<ol class="edits">{answers}</ol>')


def _edit(row: EditRow, since: float) -> str:
    version = "" if row.version is None else f'<span class="version">version {row.version}</span>'
    reason = f'<p class="reason">{markup(row.reason)}</p>' if row.reason else ""
    return (
        f'<li class="is-{markup(row.outcome)}"><p class="head">{pill(row.outcome)}{version}'
        f"<span>{markup(row.author)}</span><time>{format_duration(row.at - since)}</time></p>{reason}"
        f"{_list('operations', row.operations)}{_list('violations', row.violations)}</li>"
    )


def _list(kind: str, lines: Sequence[str]) -> str:
    return f'<ul class="{kind}">{"".join(f"<li>{markup(line)}</li>" for line in lines)}</ul>' if lines else ""


def output(data: Report) -> str:
    """What the tasks printed; that of failed tasks is open at first."""
    if not data.output:
        return _section("Output", '<p class="none">No task printed anything.</p>')
    shown, remark = _first(data.output, "attempt")
    if data.output_left_out:
        remark += f'<p class="remark">The output of {plural(data.output_left_out, "attempt")} is left out.</p>'
    status_of = {row.id: row.status for row in data.tasks}
    items = "".join(_printed(row, status_of.get(row.task, "")) for row in shown)
    return _section("Output", f'{remark}<div class="stories">{items}</div>')


def _printed(row: OutputRow, status: str) -> str:
    name = markup(row.task)
    left_out = f"<i>… {plural(row.left_out, 'earlier line')} …</i>\n" if row.left_out else ""
    lines = "\n".join(
        markup(text) if stream == STDOUT else f'<span class="{markup(stream)}">{markup(text)}</span>'
        for stream, text in row.lines
    )
    attempt = f"attempt {row.attempt}, " if row.attempt > 1 else ""
    return (
        f'<details data-name="{name}"{" open" if status == "failed" else ""}>'
        f"<summary><b>{name}</b>{pill(status) if status else ''}"
        f"<small>{attempt}{plural(len(row.lines), 'line')}</small></summary><pre>{left_out}{lines}</pre></details>"
    )


def stories(data: Report) -> str:
    """The story of each task, with reasons; collapsed at first."""
    if not data.stories:
        return _section("Stories", '<p class="none">There are no stories.</p>')
    shown, remark = _first(data.stories, "story")
    status_of = {row.id: row.status for row in data.tasks}
    items = "".join(
        _story(place, task, status_of.get(task, ""), story, data.started_at)
        for place, (task, story) in enumerate(shown)
    )
    return _section("Stories", f'{remark}<div class="stories">{items}</div>')


def _story(place: int, task: str, status: str, story: Sequence[StoryLine], since: float) -> str:
    name = markup(task)
    steps = "".join(
        f"<li><time>{format_duration(line.at - since)}</time><p>{markup(line.what)}"
        f"{f'<span>{markup(line.why)}</span>' if line.why else ''}</p>"
        f"{_traceback(line.traceback) if line.traceback else ''}</li>"
        for line in story
    )
    return (
        f'<details id="story-{place}" data-name="{name}">'
        f"<summary><b>{name}</b>{pill(status) if status else ''}"
        f"<small>{plural(len(story), 'step')}</small></summary><ol>{steps}</ol></details>"
    )


def _traceback(text: str) -> str:
    return "<pre>" + "\n".join(map(markup, text.splitlines())) + "</pre>"


def _section(name: str, content: str) -> str:
    return f'<section id="{name.lower()}" aria-labelledby="{name.lower()}-name">' + (
        f'<h2 id="{name.lower()}-name">{name}</h2>{content}</section>'
    )


def _scroller(name: str) -> str:
    """Attributes that let a keyboard scroll a wide piece sideways."""
    return f'tabindex="0" role="region" aria-label="{name}, scrolls sideways"'


def _first(rows: tuple[Row, ...], noun: str) -> tuple[tuple[Row, ...], str]:
    """As many rows as a page can bear, and a remark when that is not all of them."""
    if len(rows) <= MOST_ROWS:
        return rows, ""
    total = plural(len(rows), noun)
    return rows[:MOST_ROWS], f'<p class="remark">Shown are the first {MOST_ROWS:,} of {total}.</p>'
