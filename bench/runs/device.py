"""A device as a process of its own: ``python -m bench.runs.device STORE NAME`` works until its input ends."""

import asyncio
import sys

from asterism.runtime.fleet.agent import DeviceAgent
from asterism.runtime.fleet.fleet import Fleet


async def main(url: str, name: str) -> None:
    loop = asyncio.get_running_loop()
    async with await Fleet.open(url) as fleet:
        agent = DeviceAgent(fleet, name)
        living = asyncio.create_task(agent.run())
        joined = asyncio.create_task(agent.joined.wait())
        await asyncio.wait([living, joined], return_when=asyncio.FIRST_COMPLETED)
        if joined.done():
            print("joined", flush=True)
            loop.run_in_executor(None, sys.stdin.read).add_done_callback(lambda _: agent.drain())
        joined.cancel()
        await living


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
