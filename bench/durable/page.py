"""Writes what was measured of durable constellations to docs/benchmarks-durable.md: tables, ratios, bars met or
missed."""

from asterism.durable import compaction
from bench.durable import resume, speed, work
from bench.page import met, reached, table, time_text
from bench.runs.page import rate

HEAD = """# Benchmarks of durable constellations

Written by `make bench ARGS=durable`; every figure on this page was measured in one run, side by side. Times vary from
machine to machine and from hour to hour: read the ratios. All tasks do nothing, so the figures show the overhead only.
"""


def beside_others(found: speed.Comparison) -> str:
    text = f"""## Durable tasks per second

The same graphs on SQLite files on the same disk, each engine in a process of its own, in its own recommended way of
durable steps: tasks that wait for nothing (*wide*), one after the other (*chain*), and layers of {work.WIDTH} in which
each task waits for three of the layer before (*layered*). Slow engines get fewer tasks; the time per task
counts. The best of {_rounds(found)} alternating rounds. In brackets: how many times as fast Asterism is. A figure
is listed only if each task left a record in the database of its engine.

"""
    head = ["engine", "version"]
    for shape in speed.SHAPES:
        head += [shape, "tasks"]
    text += table(head, (_row(name, found) for name in found.speeds)) + "\n"
    text += table(("bar", "found", ""), _bars(found)) + "\n"
    for one in found.speeds.values():
        text += f"- {one.name}: {one.settings}\n"
    if found.missing:
        text += f"- not installed, and so left out: {', '.join(found.missing)}\n"
    return text


def _rounds(found: speed.Comparison) -> int:
    return max(len(samples) for one in found.speeds.values() for samples in one.samples.values())


def _row(name: str, found: speed.Comparison) -> list[str]:
    one = found.speeds[name]
    cells = [one.name, one.version]
    for shape in speed.SHAPES:
        factor = "" if name == "asterism" else f" ({_factor(found, name, shape):.1f}×)"
        cells += [rate(one.rate(shape)) + factor, f"{one.tasks(shape):,}"]
    return cells


def _factor(found: speed.Comparison, name: str, shape: str) -> float:
    """How many times as quick we are."""
    return found.speeds["asterism"].rate(shape) / found.speeds[name].rate(shape)


def _bars(found: speed.Comparison) -> list[tuple[str, str, str]]:
    rows = []
    for name in ("dbos", "dbos_sync"):
        if name not in found.speeds:
            continue
        for shape in speed.SHAPES:
            factor = _factor(found, name, shape)
            what = f"{shape}: at least {speed.BAR_DBOS:g} times {found.speeds[name].name}"
            rows.append((what, f"{factor:.1f}×", reached(factor, speed.BAR_DBOS)))
    if found.others:
        for shape in speed.SHAPES:
            next_one = max(found.others, key=lambda name: found.speeds[name].rate(shape))
            factor = _factor(found, next_one, shape)
            words = f"{factor:.1f} times {found.speeds[next_one].name}, the next"
            rows.append((f"{shape}: ahead of every other durable engine", words, reached(factor, 1.0)))
    if "raw" in found.speeds:
        slower = 1 / _factor(found, "raw", "chain")
        what = f"chain: raw commits at most {speed.BAR_RAW:g} times as quick"
        rows.append((what, f"{slower:.2f}×", met(slower, speed.BAR_RAW)))
    wide = found.speeds["asterism"].rate("wide")
    rows.append((f"wide: at least {rate(speed.BAR_WIDE)}", rate(wide), reached(wide, speed.BAR_WIDE)))
    return rows


def taken_up(found: resume.Resumed) -> str:
    before, after, short = found.weight, found.compaction.weight, found.compaction
    due = max(compaction.LONG_JOURNAL, compaction.STEPS_PER_TASK * found.tasks)
    text = f"""## Recovery after a crash

A layered plan of {found.tasks:,} tasks whose process was killed (`SIGKILL`) when half of them had ended. Its journal
says that {found.done:,} have: a snapshot of the initial plan, and {found.steps:,} steps since. No task
that had ended was executed again.

"""
    text += table(
        ("what", "takes"),
        (
            ("reading the plan", time_text(found.read)),
            ("from the call until this process owns the plan and continues it", time_text(found.owned)),
            ("from the call until the first task begins", time_text(found.begun)),
            ("from the call until the rest is done", time_text(found.rest)),
        ),
    )
    text += """
The size of the journal in the database, before and after compaction:

"""
    text += table(
        ("journal", "before", "after compaction"),
        (
            ("records", f"{before.records:,}", f"{after.records:,}"),
            (
                "snapshot, per task of the plan",
                _bytes(before.snapshot, found.tasks),
                _bytes(after.snapshot, found.tasks),
            ),
            ("steps, per completed task", _bytes(before.steps, found.done), _bytes(after.steps, found.done)),
            ("the whole file, with the runs, per task of the plan", _bytes(before.file, found.tasks), ""),
            ("reading it", time_text(found.read), time_text(short.read)),
        ),
    )
    return (
        text
        + f"""
Compaction takes **{time_text(short.whole)}**. The plan continues during it: the longest step of the event loop
is **{time_text(short.still)}**. Compaction is due after {due:,} steps since
the last snapshot ({compaction.STEPS_PER_TASK} for each task), so that is {time_text(short.whole / due)} for a step.
"""
    )


def _bytes(size: int, by: int) -> str:
    return f"{size / by:,.0f} bytes"
