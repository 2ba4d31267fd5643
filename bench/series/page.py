"""Writes what was measured of series to docs/benchmarks-series.md."""

from asterism.series.compare_and_swap import MAX_PAUSE_FACTOR, RETRY_PAUSE
from bench.page import met, table, time_text
from bench.series import calls, contending

HEAD = """# Benchmarks of series

Written by `make bench ARGS=series`; every figure on this page was measured in one run, side by side. Times vary from
machine to machine and from hour to hour: read the ratios.
"""


def rate(value: float) -> str:
    return f"{value:,.0f}/s" if value >= 20 else f"{value:.1f}/s"


def claims(found: list[contending.Measured]) -> str:
    number = found[0].contenders
    text = f"""## Claims at the same moment

*Alone* is one client that claims one issue after the other on one connection, without other clients. The other columns
are {number} processes that claim different issues of one series at the same moment (tasks of one loop, where the
register is memory): the time until the last answer, the claims per second, and the number of tries of each client.
They try until they are claimed or queued (`--tries 0`): exactly one is claimed, and all others are
queued, or there would be no figure here. A late try is followed by a pause of {RETRY_PAUSE[0]:g} to
{RETRY_PAUSE[1]:g} s, whose upper end doubles with every try, up to
{RETRY_PAUSE[1] * MAX_PAUSE_FACTOR:g} s: most of the time is spent waiting.

"""
    text += table(
        ("register", "alone", "last answer", "claims", "tries per claim"),
        (
            (
                one.name,
                rate(one.alone),
                time_text(one.last),
                rate(one.rate),
                f"{one.tries / one.contenders:.1f}",
            )
            for one in found
        ),
    )
    text += """
GitHub is a local server here, over HTTP on this machine: the response time of the real GitHub is not included.

The same with `--tries 5`, after which a client reports contention (exit code 76):

"""
    text += table(
        ("register", "claimed or queued", "contended", "last answer"),
        ((one.name, str(number - one.told), str(one.told), time_text(one.told_last)) for one in found),
    )
    on_git = [one for one in found if "file" in one.name]
    bars = [
        (f"{number} on `file://` within {contending.BAR:g} s", time_text(one.last), met(one.last, contending.BAR))
        for one in on_git
    ]
    return text + ("\n" + table(("bar", "found", ""), bars) if bars else "")


def requests(found: list[calls.Calls]) -> str:
    text = """## Requests of a sync

One `asterism series sync` by a new process, on a repository with one series: the number of requests it makes,
and how many of them count against the limit, as the local GitHub of the tests counts them. With `--cache`, as in
`asterism series serve`, it sends conditional requests (`If-None-Match`); an unchanged resource is answered with 304 and
does not count.

"""
    return text + table(
        ("cycle", "requests", "counted", "with `--cache`", "counted"),
        (
            (one.kind, str(one.requests), str(one.counted), str(one.cached_requests), str(one.cached_counted))
            for one in found
        ),
    )
