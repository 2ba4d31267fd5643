"""An orchestrator that stands by for a constellation, as a process of its own:
``python -m tests.laboratory.chaos.boss STORE CONSTELLATION HOST``."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.fleet.fleet import Fleet


async def main(store: str, name: str, host: str) -> None:
    async with await Fleet.open(store, by=host) as fleet:
        await DurableOrchestrator(fleet, host=host, heartbeat=0.5, takeover_after=2.0, max_open_runs=50).standby(name)


if __name__ == "__main__":
    level = os.environ.get("CHAOS_LOG", "ERROR")
    logging.basicConfig(level=level, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    asyncio.run(main(*sys.argv[1:]))
