"""The report of a plan: one HTML page that needs neither a network nor other files."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from statistics import median
from string import Template
from typing import TypeVar

from asterism.base.durations import format_duration
from asterism.base.text import markup, plural
from asterism.core.attempt_log import STDOUT
from asterism.core.record import replace
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
    sections = {name: content for name, make in SECTIONS.items() if (content := make(data))}
    return Template(beside("report.html")).substitute(
        policy=policy,
        title=markup(data.title),
        styles=beside("colours.css") + beside("report.css"),
        header=_header(data, sections),
        sections="".join(_section(name, content) for name, content in sections.items()),
        script=script,
    )


def _header(data: Report, names: Iterable[str]) -> str:
    took = format_duration(data.ended_at - data.started_at)
    links = "".join(f'<a href="#{_anchor(name)}">{name}</a>' for name in names)
    counts = Counter(row.status for row in data.tasks)
    counted = ", ".join(f"{number:,} {markup(status)}" for status, number in counts.items())
    devices = ", ".join(
        markup(name) for name in list(dict.fromkeys(bar.device for bar in data.executions))[:MOST_DEVICES]
    )
    facts = [f"Began {_date(data.started_at)}", counted, f"on {devices}" if devices else ""]
    facts.append(f"from {markup(data.file)}" if data.file else "")
    return (
        f'<header><p class="kind">Report of a plan</p><h1>{markup(data.title)}</h1>'
        f'<p class="end">{pill(data.state)} after {took}{_compared(data)}</p>'
        f'<p class="end">{" · ".join(filter(None, facts))}</p>'
        f'<nav aria-label="Sections">{links}</nav></header>'
    )


def _compared(data: Report) -> str:
    """How the duration compares with that of earlier plans of the file, if this one and they completed."""
    times = [run.took for run in data.earlier if run.state in COMPLETED and run.took is not None]
    if not times or data.state not in COMPLETED:
        return ""
    usual = median(times)
    more = data.ended_at - data.started_at - usual
    than = f"{format_duration(abs(more))} {'longer' if more > 0 else 'shorter'} than"
    if abs(more) < ABOUT_THE_SAME * usual:
        than = "about as long as"
    what = "the earlier run" if len(times) == 1 else f"the median of {len(times)} earlier runs"
    return f", {than} {what} that completed ({format_duration(usual)})"


def _date(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    return f"{at.day} {at:%B %Y, %H:%M:%S} UTC"


COMPLETED = ("completed", "repaired")
ABOUT_THE_SAME = 0.05
"""A difference of durations below this share of the usual one is not named."""
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
    return f'<ol class="edits">{items}</ol>{rest}{cancelled}'


def _failure(row: TaskRow, story: int | None) -> str:
    name = markup(row.id) if story is None else f'<a href="#story-{story}">{markup(row.id)}</a>'
    took = "" if row.start is None or row.end is None else f" after {format_duration(row.end - row.start)}"
    where = f" on {markup(row.device)}" if row.device else ""
    attempts = f", in {plural(row.attempts, 'attempt')}" if row.attempts > 1 else ""
    return (
        f'<li class="is-failed"><p class="head"><b>{name}</b><span>failed{where}{took}{attempts}</span></p>'
        f'<p class="reason">{markup(row.reason)}</p></li>'
    )


def parameters(data: Report) -> str:
    """The parameters that the plan was started with."""
    rows = "".join(f"<div><dt>{markup(name)}</dt><dd>{markup(value)}</dd></div>" for name, value in data.params)
    return f'<dl class="params">{rows}</dl>' if rows else ""


def earlier_runs(data: Report) -> str:
    """The last plans of the same file, the newest first."""
    rows = "".join(
        f'<tr><th scope="row">{markup(run.name)}</th><td data-label="State">{pill(run.state)}</td>'
        f'<td data-label="Began">{"" if run.started_at is None else _date(run.started_at)}</td>'
        f'<td data-label="Duration" class="number">{_at(run.took, 0.0)}</td></tr>'
        for run in data.earlier
    )
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("Plan", "State", "Began", "Duration"))
    sheet = f'<div class="sheet" {_scroller("Earlier runs")}>'
    return f"{sheet}<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>" if rows else ""


def figures(data: Report) -> str:
    """Each figure with its name, for those who compare schedules."""
    if not data.figures:
        return '<p class="none">There are no figures.</p>'
    named = [(markup(name), markup(value)) for name, value in data.figures]
    cards = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in named)
    return f'<dl class="figures">{cards}</dl>'


def graph(data: Report) -> str:
    """The plan as it was at the end."""
    if not data.picture.tasks:
        return '<p class="none">The plan has no tasks.</p>'
    picture = _first_tasks(data.picture)
    remark = ""
    if len(picture.tasks) < len(data.picture.tasks):
        remark = (
            f'<p class="remark">The graph shows the first {len(picture.tasks):,} of'
            f" {plural(len(data.picture.tasks), 'task')}, in the order of their dependencies."
            " The lists below have the others.</p>"
        )
    return f'{remark}<div class="sheet graph" {_scroller("Graph")}>{svg(picture)}</div>'


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
        return '<p class="none">Nothing was executed.</p>'
    executions, remark = _first(data.executions, "execution")
    drawn = replace(data, executions=executions, cycles=data.cycles[:MOST_ROWS], holds=data.holds[:MOST_ROWS])
    sheet = f'<div class="sheet" {_scroller("Timeline")}>{timeline(drawn)}</div>'
    return f"{remark}{sheet}{_timeline_legend(drawn)}"


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
        return '<p class="none">The plan has no tasks.</p>'
    shown, remark = _first(data.tasks, "task")
    story_of = {task: place for place, (task, _) in enumerate(data.stories[:MOST_ROWS])}
    fleet = any(row.waited is not None for row in data.tasks)
    names = [name for name in COLUMNS if fleet or name != "Waited"]
    heads = "".join(f'<th scope="col"><button type="button">{name}</button></th>' for name in names)
    rows = "".join(_task_row(row, data.started_at, story_of.get(row.id), fleet) for row in shown)
    return (
        '<p class="filter"><label>Find a task'
        ' <input type="search" autocomplete="off" spellcheck="false"></label></p>'
        f'{remark}<div class="sheet" {_scroller("Tasks")}>'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _task_row(row: TaskRow, since: float, story: int | None, fleet: bool) -> str:
    """``fleet``: tasks wait for devices of a fleet."""
    name = markup(row.id)
    link = name if story is None else f'<a href="#story-{story}">{name}</a>'
    started = "" if row.start is None else f"{row.start - since:.6f}"
    took = None if row.start is None or row.end is None else row.end - row.start
    cells = [
        f'<th scope="row">{link}</th>',
        f'<td data-label="Status">{pill(row.status)}</td><td data-label="Device">{markup(row.device)}</td>',
        f'<td data-label="Attempts" class="number">{row.attempts}</td>',
        *([_seconds_cell("Waited", row.waited)] if fleet else []),
        f'<td data-label="Started" class="number" data-sort="{started}">{_at(row.start, since)}</td>',
        _seconds_cell("Duration", took),
        f'<td data-label="Reason" class="long">{markup(row.reason)}</td>',
        f'<td data-label="Result" class="long">{_code(row.value)}</td>',
    ]
    return f'<tr data-name="{name}">{"".join(cells)}</tr>'


def _seconds_cell(name: str, seconds: float | None) -> str:
    key = "" if seconds is None else f"{seconds:.6f}"
    return f'<td data-label="{name}" class="number" data-sort="{key}">{_at(seconds, 0.0)}</td>'


def _at(at: float | None, since: float) -> str:
    return "" if at is None else format_duration(at - since)


def _code(text: str) -> str:
    return f"<code>{markup(text)}</code>" if text else ""


def edits(data: Report) -> str:
    """What the editors answered, in the order of the answers."""
    if not data.edits:
        return '<p class="none">The plan was not edited.</p>'
    shown, remark = _first(data.edits, "edit")
    answers = "".join(_edit(row, data.started_at) for row in shown)
    return f'{remark}<ol class="edits">{answers}</ol>'


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
        return '<p class="none">No task printed anything.</p>'
    shown, remark = _first(data.output, "attempt")
    if data.output_left_out:
        remark += f'<p class="remark">The output of {plural(data.output_left_out, "attempt")} is left out.</p>'
    status_of = {row.id: row.status for row in data.tasks}
    items = "".join(_printed(row, status_of.get(row.task, "")) for row in shown)
    return f'{remark}<div class="stories">{items}</div>'


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
        return '<p class="none">There are no stories.</p>'
    shown, remark = _first(data.stories, "story")
    status_of = {row.id: row.status for row in data.tasks}
    items = "".join(
        _story(place, task, status_of.get(task, ""), story, data.started_at)
        for place, (task, story) in enumerate(shown)
    )
    return f'{remark}<div class="stories">{items}</div>'


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


SECTIONS: dict[str, Callable[[Report], str]] = {
    "Failures": failures,
    "Parameters": parameters,
    "Earlier runs": earlier_runs,
    "Graph": graph,
    "Timeline": time,
    "Tasks": tasks,
    "Edits": edits,
    "Output": output,
    "Stories": stories,
    "Figures": figures,
}
"""In the order in which a person asks: what failed and why, with what, how it was before; figures for experts last. A
section without content is left out."""


def _section(name: str, content: str) -> str:
    anchor = _anchor(name)
    return (
        f'<section id="{anchor}" aria-labelledby="{anchor}-name"><h2 id="{anchor}-name">{name}</h2>{content}</section>'
    )


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _scroller(name: str) -> str:
    """Attributes that let a keyboard scroll a wide piece sideways."""
    return f'tabindex="0" role="region" aria-label="{name}, scrolls sideways"'


def _first(rows: tuple[Row, ...], noun: str) -> tuple[tuple[Row, ...], str]:
    """As many rows as a page can bear, and a remark when that is not all of them."""
    if len(rows) <= MOST_ROWS:
        return rows, ""
    total = plural(len(rows), noun)
    return rows[:MOST_ROWS], f'<p class="remark">Shown are the first {MOST_ROWS:,} of {total}.</p>'
