"""A device as a process of its own: ``python -m bench.runs.device STORE NAME`` works until its input ends."""

import asyncio
import os
import sys

from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet


async def main(url: str, name: str) -> None:
    loop = asyncio.get_running_loop()
    async with await Fleet.open(url) as fleet:
        agent = DeviceAgent(fleet, name)

        def heard() -> None:
            if not os.read(0, 1000):
                loop.remove_reader(0)
                agent.drain()

        living = asyncio.create_task(agent.run())
        joined = asyncio.create_task(agent.joined.wait())
        await asyncio.wait([living, joined], return_when=asyncio.FIRST_COMPLETED)
        if joined.done():
            loop.add_reader(0, heard)
            print("joined", flush=True)
        joined.cancel()
        await living


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
