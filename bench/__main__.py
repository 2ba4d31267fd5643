"""``python -m bench`` measures everything about plans and writes docs/benchmarks.md, ``python -m bench runs`` does the
same for runs and docs/benchmarks-runs.md, ``python -m bench durable`` for durable constellations and
docs/benchmarks-durable.md, ``python -m bench series`` for series and docs/benchmarks-series.md, ``python -m bench
page`` for the page of the server and docs/benchmarks-page.md, ``python -m bench server`` for its API and
docs/benchmarks-server.md, ``python -m bench models`` for models that edit plans and docs/benchmarks-models.md, ``python
-m bench agents`` for agents and docs/benchmarks-agents.md, ``python -m bench files`` for files and
docs/benchmarks-files.md, ``python -m bench pipelines`` for pipelines and docs/benchmarks-pipelines.md, ``python -m
bench pythons`` for several Pythons and docs/benchmarks-pythons.md; ``python -m bench cost`` prints one part."""

import sys
from collections.abc import Callable
from pathlib import Path

from bench import (
    cli_start,
    cost,
    editing,
    files,
    http_api,
    latency,
    makespan,
    memory,
    models,
    page,
    plot,
    priorities,
    pythons,
    web_page,
)
from bench.durable import page as durable_page
from bench.durable import resume, speed, waiting
from bench.pipelines import beside_prefect
from bench.runs import creation, full_store, gateway, half_load, idle_devices, lists, queues, scale, sqlite, workloads
from bench.runs import latency as runs_latency
from bench.runs import page as runs_page
from bench.series import calls, contending
from bench.series import page as series_page
from bench.time_limit import LIMIT as TIME_LIMIT
from bench.time_limit import time_limit

DOCS = Path(__file__).parents[1] / "docs"


def _makespan() -> str:
    cells = makespan.cells()
    plot.draw(cells, DOCS / "benchmarks.svg")
    return page.policies(cells)


PLANS: dict[str, Callable[[], str]] = {
    "cost": lambda: page.per_task(cost.against_bare(), cost.growth(), cost.building()),
    "peers": lambda: page.against_peers(list(cost.peers())),
    "editing": lambda: page.growth(editing.growth()),
    "latency": lambda: page.latencies([latency.measure(10), latency.measure(10_000)]),
    "memory": lambda: page.weight(memory.bytes_per_task()),
    "makespan": _makespan,
    "priorities": lambda: priorities.page(priorities.inversion()),
}
RUNS: dict[str, Callable[[], str]] = {
    "runs-sqlite": lambda: runs_page.one_process(sqlite.measure()),
    "runs-queues": lambda: runs_page.beside_queues(queues.compare()),
    "runs-workloads": lambda: workloads.page(workloads.compare()),
    "runs-creation": lambda: runs_page.creations(creation.compare()),
    "runs-half-load": lambda: half_load.page(half_load.compare()),
    "runs-latency": lambda: runs_page.latencies(runs_latency.both()),
    "runs-gateway": lambda: gateway.page(gateway.measure()),
    "runs-idle": lambda: idle_devices.page(idle_devices.measure()),
    "cli-start": lambda: cli_start.page(cli_start.measure()),
    "runs-scale": lambda: runs_page.large_fleets(scale.measure()),
    "runs-lists": lambda: lists.page(lists.measure()),
    "runs-size": lambda: full_store.page(full_store.measure()),
}
DURABLE: dict[str, Callable[[], str]] = {
    "durable-speed": lambda: durable_page.beside_others(speed.compare()),
    "durable-resume": lambda: durable_page.taken_up(resume.measure()),
    "durable-waiting": lambda: durable_page.waits(waiting.measure()),
}
SERIES: dict[str, Callable[[], str]] = {
    "series-claims": lambda: series_page.claims(contending.measure()),
    "series-calls": lambda: series_page.requests(calls.measure()),
}
WEB_PAGE: dict[str, Callable[[], str]] = {
    "page-browser": lambda: web_page.browser_text(web_page.watch()),
}
SERVER: dict[str, Callable[[], str]] = {
    "server-plan": http_api.plan_section,
    "server-streams": http_api.streams,
    "server-edits": http_api.edits_per_second,
    "server-memory": http_api.memory,
}
MODELS: dict[str, Callable[[], str]] = {
    "model-prompts": lambda: models.prompts_text(models.prompt_tokens()),
    "model-calls": lambda: models.calls_text(models.calls_by_filter()),
    "model-makespan": lambda: models.makespan_text(models.makespans(models.TIMELINE), models.makespans(models.RELEASE)),
}
AGENTS_HEAD = """# Benchmarks: agents

Written by `python -m bench agents`; every figure on this page was measured in one run, side by side. Times vary from
machine to machine and from hour to hour: read the ratios.
"""


def _mcp_edits() -> str:
    from bench import mcp_edits  # the SDK takes long to import

    return mcp_edits.page(mcp_edits.measure())


AGENTS: dict[str, Callable[[], str]] = {"mcp-edits": _mcp_edits}
PIPELINES: dict[str, Callable[[], str]] = {"pipelines-prefect": lambda: beside_prefect.page(beside_prefect.measure())}
PYTHONS: dict[str, Callable[[], str]] = {"pythons-beside": lambda: pythons.page(pythons.measure())}
FILES: dict[str, Callable[[], str]] = {"files-upload": lambda: files.page(files.measure())}
PARTS = PLANS | RUNS | DURABLE | SERIES | WEB_PAGE | SERVER | MODELS | AGENTS | FILES | PIPELINES | PYTHONS
PAGES = {
    "plans": (PLANS, page.HEAD, "benchmarks.md"),
    "runs": (RUNS, runs_page.HEAD, "benchmarks-runs.md"),
    "durable": (DURABLE, durable_page.HEAD, "benchmarks-durable.md"),
    "series": (SERIES, series_page.HEAD, "benchmarks-series.md"),
    "page": (WEB_PAGE, web_page.HEAD, "benchmarks-page.md"),
    "server": (SERVER, http_api.HEAD, "benchmarks-server.md"),
    "models": (MODELS, models.HEAD, "benchmarks-models.md"),
    "agents": (AGENTS, AGENTS_HEAD, "benchmarks-agents.md"),
    "files": (FILES, files.HEAD, "benchmarks-files.md"),
    "pipelines": (PIPELINES, beside_prefect.HEAD, "benchmarks-pipelines.md"),
    "pythons": (PYTHONS, pythons.HEAD, "benchmarks-pythons.md"),
}


def main(chosen: list[str]) -> int:
    unknown = [name for name in chosen if name not in PARTS and name not in PAGES]
    if unknown:
        known = ", ".join([*PARTS, *PAGES])
        print(f"no such part: {', '.join(unknown)}; the parts are {known}", file=sys.stderr)
        return 2
    for name in chosen or ["plans"]:
        if name in PAGES:
            parts, head, file = PAGES[name]
            (DOCS / file).write_text("\n".join([head, page.machine(), *map(_measured, parts)]))
        else:
            _measured(name)
    return 0


def _measured(name: str) -> str:
    """The section of a part. A part that took too long, or that did not do what it was to do, raises: there is no
    page then."""
    print(f"measuring: {name}", file=sys.stderr, flush=True)
    with time_limit(name, pythons.LIMIT if name in PYTHONS | FILES | PIPELINES else TIME_LIMIT):
        section = PARTS[name]()
    print(section, flush=True)
    return section


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
