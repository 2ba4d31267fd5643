"""A server as a process of its own, until its input ends: ``python -m bench.runs.gateway_server STORE``."""

import asyncio
import os
import sys

from asterism.base.http_limits import raise_descriptor_limit
from asterism.base.listen_address import ListenAddress
from asterism.base.startup import tune_gc
from asterism.fleet.fleet import Fleet
from asterism.server.http_service import http_service
from bench import loop


async def main(store: str) -> None:
    tune_gc()
    raise_descriptor_limit()
    ended, running = asyncio.Event(), asyncio.get_running_loop()
    address = ListenAddress("127.0.0.1", 0)
    async with await Fleet.open(store, by="server") as fleet, http_service(fleet, address) as service:
        print(service.url, flush=True)

        def heard() -> None:
            if not os.read(0, 1000):
                running.remove_reader(0)
                ended.set()

        running.add_reader(0, heard)
        await ended.wait()


if __name__ == "__main__":
    with loop.runner() as runner:
        runner.run(main(sys.argv[1]))
