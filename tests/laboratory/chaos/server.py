"""A server as a process of its own; its arguments are STORE FILE, and it writes its port to the file."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from asterism.base.listen_address import ListenAddress
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.server.http_service import http_service


async def main(store: str, place: Path) -> None:
    async with (
        await Fleet.open(store, by="server") as fleet,
        http_service(fleet, ListenAddress("127.0.0.1", 0)) as http,
    ):
        new = place.with_suffix(f".{os.getpid()}")
        new.write_text(http.url.rpartition(":")[2])
        new.replace(place)
        await DeviceAgent(
            fleet, "server", slots=0, heartbeat=0.5, heartbeat_timeout=4.0, monitor_every=0.5, lease=3.0, replace=True
        ).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
