"""A device of a gateway as a process of its own; its arguments are URL NAME SLOTS CODE."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from asterism.core.errors import AsterismError
from asterism.fleet.device.agent import DeviceAgent
from asterism.gateway.gateway_transport import enrolled_access


async def main(url: str, name: str, slots: int, code: str) -> None:
    while True:
        try:
            access = await enrolled_access(url, name, code)
            agent = DeviceAgent(access, name, slots=slots, heartbeat=0.5, heartbeat_timeout=4.0, grace=0.2)
            await agent.run()
            return
        except AsterismError as error:  # started again, as a service would be
            logging.getLogger("chaos").info("%s: %s", name, error)
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    level = os.environ.get("CHAOS_LOG", "ERROR")
    logging.basicConfig(level=level, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
