"""The HTTP of the gateway: one route for all operations, ``POST /gateway/v1/OPERATION``.

Devices are authenticated before their body is read. Every refusal is a problem document; its ``kind`` is a word for
the device. What a device shows is checked first, and only a wrong code, key or signature has to wait if its address
sent many: behind a proxy all devices have one address, and none may be locked out by the failures of others. An access
token that does not count any more is answered at once, so that the device asks for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from asterism.base.clock import beside, stopped
from asterism.base.error_log import RecurringError
from asterism.base.http_limits import (
    PROXY,
    Bodies,
    RecentEvents,
    RequestRefused,
    address_of,
    bearer_token,
    place_of,
    read_body,
)
from asterism.base.strict_json import NotStrictJson, parse_strict
from asterism.core.run.session import plain_device_name
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.device_policy import DevicePolicy
from asterism.gateway.gateway import Gateway
from asterism.gateway.gateway_messages import BYTES_SENT, LARGEST_MESSAGE, PREFIX, GatewayRefusal
from asterism.server.problems import problem, problem_of
from asterism.server.request_guard import RequestsUnderWay
from asterism.store.store_errors import StoreError

log = logging.getLogger("asterism.server")

STRANGERS = ("enrol", "challenge", "token")
"""The operations of devices that have no access token yet."""

MAX_STRANGER_BODY = 4000
MAX_BODY = 4 * LARGEST_MESSAGE
"""The largest message without and with an access token, in bytes; values that are stored apart have their own limit."""

MAX_FAILURES, FAILURE_WINDOW = 20, 60.0
"""The most wrong credentials of one address within so many seconds."""

REQUESTS_AT_ONCE = 64
"""How many requests of one device may be answered at once: behind a proxy its connections do not limit them."""

MONITOR_RETRY = 5.0
"""Seconds between two tries to monitor the fleet, while another server on this machine does."""


class GatewayRoutes:
    """The routes of a gateway. Its gateway is opened with the first message."""

    def __init__(
        self, fleet: Fleet, bodies: Bodies, *, shared: bool = False, requests_at_once: int = REQUESTS_AT_ONCE
    ) -> None:
        self._fleet, self._bodies, self._shared = fleet, bodies, shared
        self._gateway: Gateway | None = None
        self._opening = asyncio.Lock()
        self._beside: list[asyncio.Task[None]] = []
        self._failures = RecentEvents(time.monotonic, MAX_FAILURES, FAILURE_WINDOW)
        self._under_way = RequestsUnderWay(requests_at_once)
        self.routes = [Route(f"{PREFIX}/{{operation}}", self._respond, methods=["POST"])]

    async def gateway(self) -> Gateway:
        if self._gateway is None:
            async with self._opening:
                if self._gateway is None:
                    gateway = await Gateway.open(self._fleet)
                    self._beside.append(asyncio.create_task(gateway.look_for_work()))
                    self._gateway = gateway
        return self._gateway

    def stop_waiting(self) -> None:
        """Answer the devices that wait for work: the server stops."""
        if self._gateway is not None:
            self._gateway.stop_waiting()

    async def close(self) -> None:
        await stopped(*self._beside)
        if self._gateway is not None:
            await self._gateway.close()

    async def _respond(self, request: Request) -> Response:
        operation = request.path_params["operation"]
        try:
            return await self._answer(request, operation)
        except GatewayRefusal as refusal:
            if refusal.status == 401 and refusal.kind == "invalid":
                address = address_of(request)
                try:
                    self._failures.check(address, f"too many wrong credentials from {address}")
                except RequestRefused as error:
                    return problem_of(error, f"gateway {operation}")
                self._failures.add(address)
            return problem(refusal.status, str(refusal), f"gateway-{refusal.kind}", kind=refusal.kind)
        except NotStrictJson as error:
            return problem(400, f"the message is not JSON: {error}", "gateway-invalid", kind="invalid")
        except ClientDisconnect:
            return Response(status_code=499)
        except (RequestRefused, StoreError) as error:
            return problem_of(error, f"gateway {operation}")
        except Exception as error:
            return problem_of(error, f"gateway {operation}")

    async def _answer(self, request: Request, operation: str) -> Response:
        gateway = await self.gateway()
        token = bearer_token(request)
        client, most = address_of(request), MAX_STRANGER_BODY
        with contextlib.ExitStack() as counted:
            if operation not in STRANGERS:
                client = await self._admit(gateway, request, token)
                counted.enter_context(self._under_way.counted(client, client))
                most = (await self._fleet.settings()).most if operation == "blob" else MAX_BODY
            body = await read_body(request, self._bodies, client=client, most=most, each=most)
            message = body if operation in BYTES_SENT else parse_strict(body)
            answer = await gateway.answer(operation, token, message)
        if isinstance(answer, bytes):
            return Response(answer, media_type="application/octet-stream")
        return Response(json.dumps(answer, separators=(",", ":")), media_type="application/json")

    async def _admit(self, gateway: Gateway, request: Request, token: str) -> str:
        """Give the connection to the device of a credential, before its body is read. Returns its name."""
        identity = await gateway.identify(token)
        client = f"device {identity.owner.device}"
        place = place_of(request)
        if place is not None:
            place.admit(PROXY if self._shared else client)
        return client


@contextlib.asynccontextmanager
async def monitor_beside(fleet: Fleet, policy: DevicePolicy) -> AsyncIterator[None]:
    """Monitor the fleet while the block runs, since devices of a gateway cannot: the server stands for election as a
    device without slots does. While another server on this machine does so, this one waits for its end. ``policy``
    judges the command and the address that get notices."""
    async with beside(_monitor(fleet, policy)):
        yield


def server_name() -> str:
    """The name of the servers of this machine as devices."""
    return plain_device_name(f"server-{socket.gethostname()}")


async def _monitor(fleet: Fleet, policy: DevicePolicy) -> None:
    trouble = RecurringError(log, "this server does not monitor the fleet", "", fleet.clock.time)
    while True:
        try:
            await DeviceAgent(fleet, server_name(), slots=0, policy=policy).run()
            return  # a person drained it
        except Exception as error:
            trouble.occurred(error)
        await fleet.clock.sleep(MONITOR_RETRY)
