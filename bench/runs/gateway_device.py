"""A device as a process of its own, on a store or through a gateway, until its input ends:
``python -m bench.runs.gateway_device PLACE NAME SLOTS [CODE]``."""

import asyncio
import os
import sys

from asterism.base.startup import tune_gc
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.gateway.gateway_transport import enrolled_access
from bench import loop


async def main(place: str, name: str, slots: str, code: str = "") -> None:
    tune_gc()
    if place.startswith("http"):
        access = await enrolled_access(place, name, code)
        await work(DeviceAgent(access, name, slots=int(slots)))
        await access.transport.close()
    else:
        async with await Fleet.open(place) as fleet:
            await work(DeviceAgent(fleet, name, slots=int(slots)))


async def work(agent: DeviceAgent) -> None:
    running = asyncio.get_running_loop()

    def heard() -> None:
        if not os.read(0, 1000):
            running.remove_reader(0)
            agent.drain()

    living = asyncio.create_task(agent.run())
    joined = asyncio.create_task(agent.joined.wait())
    await asyncio.wait([living, joined], return_when=asyncio.FIRST_COMPLETED)
    if joined.done():
        running.add_reader(0, heard)
        print("joined", flush=True)
    joined.cancel()
    await living


if __name__ == "__main__":
    with loop.runner() as runner:
        runner.run(main(*sys.argv[1:]))
