"""HTTP requests of a device: judged by the device policy, and with a limit on the response.

The device policy judges every address before a request is sent to it, also the target of a redirect. If it has
patterns of names, it judges the addresses to which a name resolves, too, and the connection goes to one that was
judged: a name that is resolved twice may lead elsewhere the second time. No secret goes to an origin that the work did
not name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any

from asterism.base.secret_mask import Mask
from asterism.core.json_values import SizeLimit
from asterism.execution.http_requests import send_request
from asterism.fleet.policy.device_policy import DevicePolicy


async def request(
    http_request: Mapping[str, Any],
    headers: Mapping[str, str],
    policy: DevicePolicy,
    mask: Mask,
    limit: SizeLimit | None = None,
) -> Any:
    """Send a request and return the body of the response: parsed if it is JSON, text otherwise. ``headers`` replace
    those in ``http_request``. ``mask`` holds the secrets that no other origin gets, ``limit`` says how large the
    response may be. Raises RequestFailed for an unexpected status, NoAnswer if there is no response, TooLarge,
    AnswerRefused, PolicyForbids, UnsafeRedirect, and DeviceTrouble if this machine could not open a connection."""
    return await send_request(http_request, mask, limit, headers=headers, judge=PolicyJudge(policy))


class PolicyJudge:
    """Judges a request by a device policy."""

    def __init__(self, policy: DevicePolicy) -> None:
        self._policy, self._hop = policy, 0
        self.headers = policy.headers
        self.proxies = not policy.only_public  # a proxy would resolve names itself, so that no address could be judged

    def url(self, url: Any, hop: int) -> None:
        self._hop = hop
        self._policy.url(url, begun=hop > 0)

    def watch(self, client: Any) -> None:
        judge_connections(client, self._policy, lambda: self._hop > 0)


def judge_connections(client: Any, policy: DevicePolicy, begun: Callable[[], bool] = lambda: False) -> None:
    """Let the device policy judge the address of each connection of an httpx client, if it has to. httpx offers no way
    to replace what connects, so this reaches into it, and fails if it is not as expected: a request is then not sent. A
    proxy that the environment names resolves names itself."""
    if policy.judges_addresses:
        pool = client._transport._pool
        judged = _JudgedConnections(pool._network_backend, lambda *place: policy.address(*place, begun=begun()))
        pool._network_backend = judged


class _JudgedConnections:
    """A network backend of httpcore that resolves names itself, and connects only to addresses that were judged."""

    def __init__(self, inner: Any, judge: Callable[[str, int, str], None]) -> None:
        self._inner, self._judge = inner, judge

    async def connect_tcp(self, host: str, port: int, **options: Any) -> Any:
        import httpcore

        try:
            address_infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        addresses = list(dict.fromkeys(str(info[4][0]) for info in address_infos))
        for address in addresses:
            self._judge(host, port, address)
        for number, address in enumerate(addresses, 1):
            try:
                return await self._inner.connect_tcp(address, port, **options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if number == len(addresses):
                    raise
        raise httpcore.ConnectError(f"{host} has no address")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
