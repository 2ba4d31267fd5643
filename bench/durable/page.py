"""Writes what was measured of durable constellations to docs/benchmarks-durable.md: tables, ratios, bars met or
missed."""

from asterism.durable import compaction
from bench.durable import resume, speed, waiting, work
from bench.page import reached, table, time_text
from bench.runs.page import rate

HEAD = """# Benchmarks of durable constellations

Written by `make bench ARGS=durable`; every figure on this page was measured in one run, side by side. Times vary from
machine to machine and from hour to hour: read the ratios. All tasks do nothing, so the figures show the overhead only.
"""


def beside_others(comparison: speed.Comparison) -> str:
    text = f"""## Durable tasks per second

The same graphs on SQLite files on the same disk (Restate: in its own server), each engine in a process of its own, in
its own recommended way of durable steps: tasks that wait for nothing (*wide*), one after the other (*chain*), and
layers of {work.WIDTH} in which each task waits for three of the layer before (*layered*). Slow engines get fewer tasks;
the time per task counts. The best of {_rounds(comparison)} alternating rounds. In brackets: how many times as fast
Asterism is. A figure is listed only if each task left a record in the database of its engine (APScheduler: a row
until it began).

"""
    head = ["engine", "version"]
    for shape in speed.SHAPES:
        head += [shape, "tasks"]
    text += table(head, (_row(name, comparison) for name in comparison.speeds)) + "\n"
    text += table(("bar", "found", ""), _bars(comparison)) + "\n"
    for peer in comparison.speeds.values():
        text += f"- {peer.name}: {peer.settings}\n"
    if comparison.missing:
        text += f"- not installed, and so left out: {', '.join(comparison.missing)}\n"
    return text


def _rounds(comparison: speed.Comparison) -> int:
    return max(len(samples) for peer in comparison.speeds.values() for samples in peer.samples.values())


def _row(name: str, comparison: speed.Comparison) -> list[str]:
    peer = comparison.speeds[name]
    cells = [peer.name, peer.version]
    for shape in speed.SHAPES:
        factor = "" if name == "asterism" else f" ({_factor(comparison, name, shape):.1f}×)"
        cells += [rate(peer.rate(shape)) + factor, f"{peer.tasks(shape):,}"]
    return cells


def _factor(comparison: speed.Comparison, name: str, shape: str) -> float:
    """How many times as quick we are."""
    return comparison.speeds["asterism"].rate(shape) / comparison.speeds[name].rate(shape)


def _bars(comparison: speed.Comparison) -> list[tuple[str, str, str]]:
    rows = []
    for name, bars in speed.BARS.items():
        if name not in comparison.speeds:
            continue
        for shape, bar in bars.items():
            factor = _factor(comparison, name, shape)
            what = f"{shape}: at least {bar:g} times {comparison.speeds[name].name}"
            rows.append((what, f"{factor:.2f}×", reached(factor, bar)))
    if comparison.others:
        for shape in speed.SHAPES:
            next_one = max(comparison.others, key=lambda name: comparison.speeds[name].rate(shape))
            factor = _factor(comparison, next_one, shape)
            words = f"{factor:.1f} times {comparison.speeds[next_one].name}, the next"
            rows.append((f"{shape}: ahead of every other durable engine", words, reached(factor, 1.0)))
    return rows


def taken_up(resumed: resume.Resumed) -> str:
    before, after, short = resumed.weight, resumed.compaction.weight, resumed.compaction
    due = max(compaction.LONG_JOURNAL, compaction.STEPS_PER_TASK * resumed.tasks)
    text = f"""## Recovery after a crash

A layered plan of {resumed.tasks:,} tasks whose process was killed (`SIGKILL`) when half of them had ended. Its journal
says that {resumed.done:,} have: a snapshot of the initial plan, and {resumed.steps:,} steps since. No task
that had ended was executed again.

"""
    text += table(
        ("what", "takes"),
        (
            ("reading the plan", time_text(resumed.read)),
            ("from the call until this process owns the plan and continues it", time_text(resumed.owned)),
            ("from the call until the first task begins", time_text(resumed.begun)),
            ("from the call until the rest is done", time_text(resumed.rest)),
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
                _bytes(before.snapshot, resumed.tasks),
                _bytes(after.snapshot, resumed.tasks),
            ),
            ("steps, per completed task", _bytes(before.steps, resumed.done), _bytes(after.steps, resumed.done)),
            ("the whole file, with the runs, per task of the plan", _bytes(before.file, resumed.tasks), ""),
            ("reading it", time_text(resumed.read), time_text(short.read)),
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


def waits(found: waiting.Measured) -> str:
    text = f"""## Tasks that wait

A plan of {found.tasks:,} tasks, each of which waits for an event of its own. All of them waited for
{found.seconds:.0f} s, and the process that runs the plan used **{found.processor:.2%}** of one processor meanwhile.
Then the events were sent, one commit each; after {time_text(found.continued)} every task had gone on with the data of
its event.

"""
    met = "met" if found.processor <= waiting.BAR else "**missed**"
    return text + table(("bar", "found", ""), [(f"at most {waiting.BAR:.0%}", f"{found.processor:.2%}", met)])


def _bytes(size: int, by: int) -> str:
    return f"{size / by:,.0f} bytes"
