"""A device, or with 0 slots a monitor, as a process of its own; its arguments are STORE NAME SLOTS."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from asterism.core.errors import AsterismError
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet


async def main(store: str, name: str, slots: int) -> None:
    async with await Fleet.open(store, by=name) as fleet:
        agent = DeviceAgent(
            fleet, name, slots=slots, heartbeat=0.5, heartbeat_timeout=4.0, grace=0.2, monitor_every=0.5, lease=3.0
        )
        await agent.run()


if __name__ == "__main__":
    level = os.environ.get("CHAOS_LOG", "ERROR")
    logging.basicConfig(level=level, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    try:
        asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    except AsterismError as error:
        sys.exit(f"{sys.argv[2]}: {error}")
