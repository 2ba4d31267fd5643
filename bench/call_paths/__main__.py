"""``python -m bench.call_paths`` prints how many functions and files of Asterism each way through the code passes,
beside the figures of an earlier commit (``baseline.json``).

``--tree WAY`` prints the calls of one way, indented; ``--json FILE`` writes the figures and every function.

What counts as a function is in ``tracer.py``, where each way begins and ends in ``ways.py``. The figures are the same
every time, but for those of the last steps in SQLite: its writer commits in the thread of the event loop or in its own,
whichever is free, which is a matter of three functions.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.call_paths.ways import WAYS, Traced, trace
from bench.time_limit import time_limit

DESCRIPTION = "Print how many functions and files of Asterism each way through the code passes."
BASELINE = Path(__file__).with_name("baseline.json")


def table(traces: list[Traced]) -> str:
    """Markdown, with the figures of the baseline first."""
    baseline = json.loads(BASELINE.read_text(encoding="utf-8"))
    lines = [
        f"| way | functions at {baseline['commit']} | files | functions now | files | functions saved |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for path in traces:
        before, now = baseline["ways"][path.way.name], len(path.functions)
        saved = f"{1 - now / before['functions']:.0%}"
        lines.append(
            f"| {path.way.meaning} | {before['functions']} | {before['files']} | {now} | {len(path.files)} | {saved} |"
        )
    return "\n".join(lines)


def document(traces: list[Traced]) -> dict[str, object]:
    return {
        path.way.name: {
            "functions": len(path.functions),
            "files": len(path.files),
            "names": sorted(map(str, path.functions)),
        }
        for path in traces
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.call_paths", description=DESCRIPTION)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"one of {', '.join(WAYS)}; all if none is named")
    parser.add_argument("--tree", choices=WAYS, metavar="WAY", help="print the calls of this way, indented")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and every function to this file")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.ways if name not in WAYS]
    if unknown:
        parser.error(f"no such way: {', '.join(unknown)}; the ways are {', '.join(WAYS)}")
    if options.tree is not None:
        with time_limit(options.tree):
            print(trace(WAYS[options.tree]).tree)
        return 0
    with time_limit(parser.prog):
        ways = [trace(WAYS[name]) for name in options.ways or WAYS]
    print(table(ways))
    if options.json is not None:
        options.json.write_text(json.dumps(document(ways), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
