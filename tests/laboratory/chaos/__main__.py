"""``python -m tests.laboratory.chaos --engine sqlite --runs 5000 --seconds 60``"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.laboratory.chaos.fire import Fire, problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.laboratory.chaos")
    parser.add_argument("--engine", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.engine == "sqlite":
            return _play(f"sqlite:///{folder}/fleet.db", Path(folder), options)
        from tests.store.postgres_server import running_server

        with running_server() as url:
            return _play(url, Path(folder), options)


def _play(store: str, folder: Path, options: argparse.Namespace) -> int:
    fire = Fire(store, folder, options.runs, options.seconds, options.seed)
    began = time.monotonic()
    made, runs = asyncio.run(fire.play())
    wrong = problems(fire, made, runs)
    epochs = sum(run.epoch for run in runs)
    late = sum(1 for run in runs for assignment in run.previous if assignment.reason == "timeout")
    print(
        f"{options.engine}: {len(runs):,} runs in {time.monotonic() - began:.0f} s, {fire.killed} kills, "
        f"{fire.stopped} freezes, {epochs:,} grants ({late:,} of them lost); {len(wrong)} promises broken"
    )
    for line in wrong[:20]:
        print(f"  {line}")
    for log in sorted(folder.glob("*.log")):
        text = log.read_text()
        if "Traceback" in text:
            print(f"--- {log.name}\n{text[-3000:]}")
            return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
