"""Writes what was measured to docs/benchmarks.md: tables, bars met or missed, the machine, the versions, the date."""

import datetime
import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from bench import cost, editing, latency, makespan, memory
from bench.measure import Sample

HEAD = """# Benchmarks

Written by `make bench`; every figure on this page was measured in one run, side by side. Times vary from machine to
machine and from hour to hour: read the ratios. Other versions of Python are on
[a page of their own](benchmarks-pythons.md), which also names those that were not tried: the free-threaded build of
3.14 is one.
"""


BUDGET = """
The budget of a task, in calls of functions (`cProfile`, functions of C too), counted once by hand on 2026-11-18. Before
is the commit `1203e9f3`. How many tasks share an `asyncio.Task` depends on a time of 10 ms, and the profiler slows the
run: without it more of them do.

| calls per task | independent (10,000) | chain (1,000) | layers 50 × 20 |
| --- | --- | --- | --- |
| all, before | 85.3 | 118.6 | 96.9 |
| all, now | 92.1 | 90.0 | 87.6 |
| `asyncio.Task`s, before | 1.00 | 1.00 | 1.00 |
| `asyncio.Task`s, now | 0.92 | 0.01 | 0.59 |
| callbacks of the event loop, before | 2.00 | 2.01 | 2.01 |
| callbacks of the event loop, now | 1.93 | 1.02 | 1.60 |

What a feature costs a plan that does not use it, per task, as read from the code and the profile:

| feature | cost |
| --- | --- |
| masks, traces, observers, deadlines, retries, approvals, several plans | one test of an attribute each, no call |
| logs | one context variable is set; the recorder is made at the first output |
| records of copies (`NodeRecords.mark`) | two calls that test an attribute |
| teardowns, `join: any`, scopes | one test of the counter `deciders`; one call (`timed`) |
| ticks of schedules | one call of a property |
| pause, cancellation, lock policies | three calls for each dispatch, which may start several tasks |
| taint | one test of the set of untrusted tasks |
| inherited priority | one comparison for each edge when the plan is built, none at an end |
| results of other tasks | nothing until the function asks for one |
| the lock, without an editor | one call that passes the end on |
"""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def met(value: float, bar: float) -> str:
    """Whether a value is at most the bar."""
    return "met" if value <= bar else "**missed**"


def reached(value: float, bar: float) -> str:
    """Whether a value is at least the bar."""
    return "met" if value >= bar else "**missed**"


def time_text(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.1f} µs"


def machine() -> str:
    today = datetime.datetime.now(datetime.UTC).date()
    cpu = platform.processor() or platform.machine()
    return table(
        ("what", "value"),
        (
            ("date", str(today)),
            ("machine", f"{cpu}, {os.cpu_count()} cores, {platform.system()}"),
            ("Python", platform.python_version()),
            ("asterism", version("asterism")),
        ),
    )


def per_task(rows: list[cost.Versus], grown: list[cost.Versus], built: Sample) -> str:
    text = f"""## What a task costs

Orchestrating tasks that do nothing (`await sleep(0)`), in processor time per task, beside a hand-written asyncio
executor without retries, timeouts, edits, story or events. The bar is {cost.BAR:g} times the bare executor.
Building the plan is not counted: it costs {time_text(built.cpu_per_task)} per task of the last shape, once.

"""
    text += table(
        ("plan", "bare", "asterism", "ratio", "bar"),
        (
            (
                v.shape,
                time_text(v.bare.cpu_per_task),
                time_text(v.ours.cpu_per_task),
                f"{v.ratio:.2f}",
                met(v.ratio, cost.BAR),
            )
            for v in rows
        ),
    )
    text += f"\nHow that ratio grows with the plan (bar: {cost.GROWTH:g} times from 1,000 to 100,000 tasks):\n\n"
    pairs = list(zip(grown[::2], grown[1::2], strict=True))
    return (
        text
        + table(
            ("plan", "ratio at 1,000", "ratio at 100,000", "growth", "bar"),
            (
                (
                    small.shape,
                    f"{small.ratio:.2f}",
                    f"{large.ratio:.2f}",
                    f"{large.ratio / small.ratio:.2f}",
                    met(large.ratio / small.ratio, cost.GROWTH),
                )
                for small, large in pairs
            ),
        )
        + BUDGET
    )


def against_peers(costs: list[cost.PeerCost]) -> str:
    ours = next(peer for peer in costs if peer.name == "asterism")
    text = """## Beside other engines

The same graphs of tasks that do nothing, each engine in a process of its own, in its fastest configuration;
wall time per task, with the multiple of Asterism's time in brackets. Only Asterism allows edits of a running plan.

"""
    shapes = list(cost.SMALL)
    rows = []
    for peer in costs:
        cells = [
            f"{time_text(peer.samples[shape].wall_per_task)} ({_factor(peer, ours, shape)})" if peer.samples else "–"
            for shape in shapes
        ]
        rows.append((peer.name, peer.version, *cells))
    sizes = [f"{shape} ({len(cost.SMALL[shape])})" for shape in shapes]
    return text + table(("engine", "version", *sizes), rows)


def _factor(peer: cost.PeerCost, ours: cost.PeerCost, shape: str) -> str:
    return f"{peer.samples[shape].wall_per_task / ours.samples[shape].wall_per_task:.1f}×"


def growth(rows: list[editing.Growth]) -> str:
    text = f"""## What editing costs

Processor time per task (per edit in the last row) in a layered plan; the bar is {editing.GROWTH:g} times from 1,000
to 100,000 tasks.

"""
    return text + table(
        ("what", "at 1,000", "at 100,000", "growth", "bar"),
        (
            (r.what, time_text(r.small), time_text(r.large), f"{r.ratio:.2f}", met(r.ratio, editing.GROWTH))
            for r in rows
        ),
    )


def latencies(rows: list[latency.Latencies]) -> str:
    text = """## How long each step takes

Five devices, an editor that changes a task in every cycle; the median (p50) and the 99th percentile (p99),
beside the figures that the origin of this design states.

"""
    head = ("step", "stated", *(f"p50 / p99 at {row.tasks:,}" for row in rows))
    body = [
        (
            step,
            claim,
            *(f"{time_text(row.steps[step].median)} / {time_text(row.steps[step].worst)}" for row in rows),
        )
        for step, claim in latency.CLAIMS.items()
    ]
    body.append(("throughput", latency.THROUGHPUT_CLAIM, *(f"{row.throughput:,.0f} tasks/s" for row in rows)))
    note = (
        "\nAll tasks of a layer become ready at once, so the p99 of the first two includes the time to start "
        "the others.\n"
    )
    return text + table(head, body) + note


def weight(size: float) -> str:
    return f"""## Memory

A pending independent task in a plan of {memory.SIZE:,}, the plan alone: **{size:,.0f} bytes** (bar {memory.BAR:,.0f}:
{met(size, memory.BAR)}).
"""


def policies(cells: list[makespan.Cell]) -> str:
    text = f"""## Makespan under editing

In virtual time, so these figures are exact and the same everywhere: the mean of {makespan.PLANS} random plans (8 layers
of 6 tasks of about 3.5 s, all revocable), every end reviewed by an editor that thinks for the given time. Makespan over
the lower bound (the longer of critical path and work over devices), up to the end of the last review.

![makespan](benchmarks.svg)

"""
    head = (
        "edits change",
        "edit takes",
        "devices",
        "wave by wave",
        *makespan.POLICIES,
        "bar",
        "cut of scoped / speculative",
    )
    rows = []
    for cell in cells:
        bar = makespan.BARS[cell.changes]
        rows.append(
            (
                cell.changes,
                f"{cell.latency:g} s",
                str(cell.devices),
                f"{cell.waves:.2f}",
                *(f"{cell.policies[policy]:.2f}" for policy in makespan.POLICIES),
                f"≤ {bar:g}: {met(cell.policies['speculative'], bar)}",
                f"{cell.cut('scoped'):.0%} / {cell.cut('speculative'):.0%}",
            )
        )
    worse = sum(cell.policies["scoped"] > cell.policies["global"] for cell in cells)
    return (
        text
        + table(head, rows)
        + "\nThe cut is the time saved against wave by wave, which is computed for plans without edits; the\n"
        + f"origin of this design claims {makespan.CLAIM:.0%}. "
        + f"`scoped` is worse than `global` in {worse} of {len(cells)} cells. Where editors think longer than\n"
        + "tasks take, only speculation is faster than wave by wave: a plan with a review of every end cannot be\n"
        + "faster than its editor.\n"
    )
