"""A worker as a process of its own: ``python -m bench.runs.load.worker QUEUE URL NAME FILE`` works until its input
ends."""

import asyncio
import os
import sys
from pathlib import Path

from bench import loop
from bench.runs.load import load, record_in


async def main(queue: str, url: str, name: str) -> None:
    stop = asyncio.Event()

    def heard() -> None:
        if not os.read(0, 1000):
            asyncio.get_running_loop().remove_reader(0)
            stop.set()

    asyncio.get_running_loop().add_reader(0, heard)
    await load(queue).serve(url, name, stop)


if __name__ == "__main__":
    *words, file = sys.argv[1:]
    record_in(Path(file))
    with loop.runner() as runner:
        runner.run(main(*words))
