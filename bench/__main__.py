"""``python -m bench`` measures everything and writes docs/benchmarks.md; ``python -m bench cost`` prints one part."""

import sys
from collections.abc import Callable
from pathlib import Path

from bench import cost, editing, latency, makespan, memory, page, plot

DOCS = Path(__file__).parents[1] / "docs"


def _makespan() -> str:
    cells = makespan.cells()
    plot.draw(cells, DOCS / "benchmarks.svg")
    return page.policies(cells)


PARTS: dict[str, Callable[[], str]] = {
    "cost": lambda: page.per_task(cost.against_bare(), cost.growth(), cost.building()),
    "peers": lambda: page.against_peers(list(cost.peers())),
    "editing": lambda: page.growth(editing.growth()),
    "latency": lambda: page.latencies([latency.measure(10), latency.measure(10_000)]),
    "memory": lambda: page.weight(memory.bytes_per_task()),
    "makespan": _makespan,
}


def main(chosen: list[str]) -> int:
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; the parts are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    sections = []
    for name in chosen or PARTS:
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        sections.append(PARTS[name]())
        print(sections[-1], flush=True)
    if not chosen:
        (DOCS / "benchmarks.md").write_text("\n".join([page.HEAD, page.machine(), *sections]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
