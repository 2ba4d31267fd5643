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

from asterism.base.https_session import http_client, load_httpx
from asterism.base.secret_mask import Mask
from asterism.core.errors import DeviceTrouble
from asterism.core.json_values import SizeLimit
from asterism.execution import http_requests
from asterism.execution.processes import EXHAUSTED
from asterism.fleet.policy.device_policy import DevicePolicy


async def request(
    terms: Mapping[str, Any],
    headers: Mapping[str, str],
    policy: DevicePolicy,
    mask: Mask,
    limit: SizeLimit | None = None,
) -> Any:
    """Send a request and return the body of the response: parsed if it is JSON, text otherwise. ``headers`` replace
    those in ``terms``. ``mask`` holds the secrets that no other origin gets, ``limit`` says how large the response may
    be. Raises RequestFailed for an unexpected status, NoAnswer if there is no response, TooLarge, AnswerRefused,
    PolicyForbids, UnsafeRedirect, and DeviceTrouble if this machine could not open a connection."""
    httpx = await load_httpx("HTTP requests need httpx on this device")
    mine = httpx.Headers(terms.get("headers"))
    policy.headers(mine)
    mine.update(headers)
    try:
        with http_requests.request_errors(terms):
            return await _answered(terms, mine, policy, mask, limit)
    except (http_requests.NoAnswer, OSError) as error:
        out_of = _exhausted(error)
        if out_of is None:
            raise
        raise DeviceTrouble(f"the request could not be sent: {out_of.strerror}") from error


async def _answered(
    terms: Mapping[str, Any], headers: Any, policy: DevicePolicy, mask: Mask, limit: SizeLimit | None
) -> Any:
    # the limit of the workflow applies; a proxy would resolve names itself, so that no address could be judged
    async with await http_client(timeout=None, trust_env=not policy.only_public) as client:
        hops = 0

        def judge(url: Any, hop: int) -> None:
            nonlocal hops
            hops = hop
            policy.url(url, begun=hop > 0)

        judge_connections(client, policy, lambda: hops > 0)
        return await http_requests.exchange(client, terms, headers, mask, limit, judge)


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

    async def connect_tcp(self, host: str, port: int, **terms: Any) -> Any:
        import httpcore

        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        for address in addresses:
            self._judge(host, port, address)
        for number, address in enumerate(addresses, 1):
            try:
                return await self._inner.connect_tcp(address, port, **terms)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if number == len(addresses):
                    raise
        raise httpcore.ConnectError(f"{host} has no address")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _exhausted(error: BaseException | None) -> OSError | None:
    """The error of the operating system behind an error of httpx, if this machine has run out of a resource."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            return error
        error = error.__cause__ or error.__context__
    return None
