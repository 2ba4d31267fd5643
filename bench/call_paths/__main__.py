"""``python -m bench.call_paths`` prints how long each way through the code is.

``--tree WAY`` prints the calls of one way, indented; ``--json FILE`` writes the figures and every function."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.call_paths.ways import WAYS, Traced, trace


def table(found: list[Traced]) -> str:
    lines = ["| way | functions | files |", "| --- | ---: | ---: |"]
    lines += [f"| {one.way.meaning} | {len(one.functions)} | {len(one.files)} |" for one in found]
    return "\n".join(lines)


def document(found: list[Traced]) -> dict[str, object]:
    return {
        one.way.name: {
            "functions": len(one.functions),
            "files": len(one.files),
            "names": sorted(map(str, one.functions)),
        }
        for one in found
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.call_paths", description=__doc__)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"one of {', '.join(WAYS)}; all if none is named")
    parser.add_argument("--tree", choices=WAYS, metavar="WAY", help="print the calls of this way, indented")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and every function to this file")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.ways if name not in WAYS]
    if unknown:
        parser.error(f"no such way: {', '.join(unknown)}; the ways are {', '.join(WAYS)}")
    if given.tree is not None:
        print(trace(WAYS[given.tree]).tree)
        return 0
    found = [trace(WAYS[name]) for name in given.ways or WAYS]
    print(table(found))
    if given.json is not None:
        given.json.write_text(json.dumps(document(found), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
