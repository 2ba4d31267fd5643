"""Writes what was measured of runs to docs/benchmarks-runs.md: tables, bars met or missed, ratios."""

from collections.abc import Sequence

from bench.page import met, reached, table, time_text
from bench.runs import creation, latency, queues, scale, sqlite

HEAD = """# Benchmarks of runs

Written by `make bench ARGS=runs`; every figure on this page was measured in one run, side by side. Times vary from
machine to machine and from hour to hour: read the ratios. All jobs do nothing, so the figures show the overhead only.
"""


def rate(value: float) -> str:
    return f"{value:,.0f}/s"


def one_process(speed: sqlite.Measured) -> str:
    text = f"""## SQLite, one process

Runs that are created, claimed, executed (a coroutine, in the same process) and completed, through the whole public API,
beside the bare `sqlite3` module with a file on the same disk: write-ahead log and `synchronous=FULL`, so
everything that is counted is on the disk. A run costs **{speed.writes:g} writes**: it is created, assigned, claimed and
begun in one, and completed in the other.

"""
    limits = (
        ("a row of three columns, compared and swapped, a commit each", rate(speed.raw_commits)),
        (f"the same, {sqlite.PER_COMMIT} to a commit", rate(speed.raw_rows)),
        (f"the records of runs, encoded beforehand, {sqlite.PER_COMMIT} to a commit", rate(speed.raw_records)),
    )
    text += table(("the limits of the file", "rows"), limits) + "\n"
    many = f"{sqlite.IN_FLIGHT:,} in flight"
    rows = (
        (
            "one after the other",
            rate(speed.alone),
            f"{speed.alone_share:.1%} of the raw commits",
            f"≥ {sqlite.BAR_ALONE:.0%}: {reached(speed.alone_share, sqlite.BAR_ALONE)}",
        ),
        ("", rate(speed.alone), f"{speed.alone_share * speed.writes:.1%}, writes of raw commits", ""),
        (many, rate(speed.in_flight), "", f"≥ {sqlite.BAR_RUNS:,.0f}/s: {reached(speed.in_flight, sqlite.BAR_RUNS)}"),
        (
            "",
            rate(speed.in_flight),
            f"{speed.runs_share:.1%}, runs of raw rows",
            f"≥ {sqlite.BAR_ROWS:.0%}: {reached(speed.runs_share, sqlite.BAR_ROWS)}",
        ),
        (
            "",
            rate(speed.in_flight),
            f"{speed.rows_share:.1%}, writes of raw rows",
            f"≥ {sqlite.BAR_ROWS:.0%}: {reached(speed.rows_share, sqlite.BAR_ROWS)}",
        ),
        ("", rate(speed.in_flight), f"{speed.records_share:.1%}, writes of raw records", ""),
    )
    text += table(("runs", "per second", "share", "bar"), rows)
    many = f"≥ {sqlite.BAR_CREATED:,.0f}/s: {reached(speed.created, sqlite.BAR_CREATED)}"
    return text + (
        f"\n`create_many`, {sqlite.IN_FLIGHT:,} runs in a commit, without a device: {rate(speed.created)}, or "
        f"{rate(speed.created_cpu)} by the processor time of the process. Bar: {many}.\n"
    )


def beside_queues(comparison: queues.Comparison) -> str:
    text = f"""## PostgreSQL, {queues.WORKERS} workers

Jobs taken and finished per second, beside other queues on the same server (PostgreSQL {comparison.server}, nothing
acknowledged is ever lost), each in a process of its own, all workers of one queue in one process. First all jobs are
put into the queue (*created*), then the workers start: *worked* is from there until the last job is recorded as done.
*Whole* is the sum of both. The processor time is that of the workers. In brackets: how many times as fast
Asterism is, on one store.

"""
    for batch in sorted({result.batch for result in comparison.results}):
        results = comparison.of(batch)
        ours = next((result for result in results if result.name == "asterism"), None)
        rows = [_queue(result, ours) for result in results]
        others = [result for result in results if not result.name.startswith("asterism")]
        verdict = ""
        if ours is not None and others:
            ratio = min(ours.worked / other.worked for other in others)
            verdict = f"\nAhead of all of them: {reached(ratio, 1.0)}, {ratio:.1f} times as fast as the next.\n"
            created = min(ours.created / other.created for other in others)
            whole = min(ours.whole / other.whole for other in others)
            verdict += (
                f"Created at least as quickly: {reached(created, 1.0)}, {created:.1f} times as fast as the next. "
            )
            verdict += f"Ahead as a whole: {reached(whole, 1.0)}, {whole:.1f} times as fast.\n"
        head = ("queue", "version", "jobs", "worked", "created", "whole", "processor time per job")
        text += f"**Batches of {batch}**\n\n" + table(head, rows) + verdict + "\n"
    for name, settings in {result.name: result.settings for result in comparison.results}.items():
        text += f"- {name}: {settings}\n"
    pushed = comparison.pushed
    text += (
        f"- pushed instead of pulled: one more fleet creates {pushed.jobs:,} runs and assigns each to a device in the "
        f"same\n  write, at {rate(pushed.created)}, while the devices claim and do them; from the first creation to "
        f"the last end\n  that is {rate(pushed.worked)}\n"
    )
    if comparison.missing:
        text += f"- not installed: {', '.join(comparison.missing)}\n"
    return text


def _queue(result: queues.Result, ours: queues.Result | None) -> tuple[str, ...]:
    factor = "" if ours is None or ours is result else f" ({ours.worked / result.worked:.1f}×)"
    return (
        result.name,
        result.version,
        f"{result.jobs:,}",
        rate(result.worked) + factor,
        rate(result.created),
        rate(result.whole),
        time_text(result.cpu),
    )


def creations(engines: Sequence[creation.Creation]) -> str:
    text = f"""## Creation on PostgreSQL

{engines[0].jobs:,} jobs put into a queue, a thousand in a commit, while nobody works. Processor time is that of the
creating process and of the server together, for each job, in the best round.

"""
    rows = [(engine.name, f"{len(engine.seconds)}", rate(engine.rate), time_text(engine.cost)) for engine in engines]
    text += table(("queue", "rounds", "created", "processor time per job"), rows)
    if len(engines) == 2:
        ours, other = engines
        speed, cost = ours.rate / other.rate, ours.cost / other.cost
        verdict = f"{reached(speed, 1.0)}, {speed:.2f} times as fast, with {cost:.2f} times the processor time"
        text += f"\nAt least as quick: {verdict}.\n"
    return text


def latencies(rows: Sequence[latency.Latency]) -> str:
    text = """## From creation to the beginning of the work

One run at a time, for an idle device in another process on the same machine: from the call that creates it until that
call returns (the run is durable and assigned), until the device begins its work, and until its creator receives its
end; and from the work, which takes no time, until its creator receives its end. The median (p50) and the 99th
percentile (p99). The bar for the last p50 is 10 ms.

"""
    return text + table(
        ("store", "samples", "created p50 / p99", "begun p50 / p99", "end known p50 / p99", "work to waiter p50 / p99"),
        ((row.store, str(row.samples), *map(_spread, (row.created, row.begun, row.known, row.told))) for row in rows),
    )


def _spread(spread: latency.Spread) -> str:
    return f"{time_text(spread.median)} / {time_text(spread.worst)}"


def large_fleets(costs: Sequence[scale.Cost]) -> str:
    first, last = costs[0], costs[-1]
    text = f"""## Large fleets

In PostgreSQL; each device has {scale.UNDER_WAY} active runs, and one run in five waits. Growth is the growth of the
cost divided by that of the fleet: 1 is linear, and the bar is {scale.TOLERANCE:g}. The pass that reassigns work finds
{last.lost} runs of dead devices, the one that assigns work {last.given} runs that wait while all have room.

"""
    head = ("what", *(f"{cost.devices:,} devices, {cost.runs:,} runs" for cost in costs), "growth", "bar")
    rows = []
    for name, what in scale.WHAT.items():
        grown = scale.growth(costs, what)
        verdict = met(grown, scale.TOLERANCE)
        rows.append((name, *(time_text(what(cost)) for cost in costs), f"{grown:.2f}", verdict))
    beats = [f"{cost.devices / cost.beats:,.0f}" for cost in (first, last)]
    return text + table(head, rows) + f"\nThat is {' and '.join(beats)} heartbeats per second.\n"
