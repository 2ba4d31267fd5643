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


def claims(places: list[contending.Measured]) -> str:
    number = places[0].contenders
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
                place.name,
                rate(place.alone),
                time_text(place.last),
                rate(place.rate),
                f"{place.tries / place.contenders:.1f}",
            )
            for place in places
        ),
    )
    text += """
GitHub is a local server here, over HTTP on this machine: the response time of the real GitHub is not included.

The same with `--tries 5`, after which a client reports contention (exit code 76):

"""
    text += table(
        ("register", "claimed or queued", "contended", "last answer"),
        ((place.name, str(number - place.told), str(place.told), time_text(place.told_last)) for place in places),
    )
    on_git = [place for place in places if "file" in place.name]
    bars = [
        (f"{number} on `file://` within {contending.BAR:g} s", time_text(place.last), met(place.last, contending.BAR))
        for place in on_git
    ]
    return text + ("\n" + table(("bar", "found", ""), bars) if bars else "")


def requests(kinds: list[calls.Calls]) -> str:
    text = """## Requests of a sync

One `asterism series sync` by a new process, on a repository with one series: the number of requests it makes,
and how many of them count against the limit, as the local GitHub of the tests counts them. With `--cache`, as in
`asterism series serve`, it sends conditional requests (`If-None-Match`); an unchanged resource is answered with 304 and
does not count.

"""
    return text + table(
        ("cycle", "requests", "counted", "with `--cache`", "counted"),
        (
            (kind.kind, str(kind.requests), str(kind.counted), str(kind.cached_requests), str(kind.cached_counted))
            for kind in kinds
        ),
    )
