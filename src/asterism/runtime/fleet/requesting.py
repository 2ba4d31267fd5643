"""HTTP requests of a device: every address is judged before it is asked, also where a redirect leads, and no answer is
larger than the device can bear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asterism.core.errors import AsterismError
from asterism.core.url_text import masked_url
from asterism.runtime import http
from asterism.runtime.fleet.policy import Policy
from asterism.runtime.http_client import http_client, httpx_ready

if TYPE_CHECKING:
    from httpx import Request

LARGEST = 64 << 20
"""How large an answer may be, in bytes."""

REDIRECTS = 20


async def request(terms: Mapping[str, Any], headers: Mapping[str, str], policy: Policy) -> Any:
    """Send a request and return the body of the answer: parsed if it says it is JSON, text otherwise. ``headers`` are
    ours and win over those in ``terms``. Raises RequestFailed for a status that was not expected, NoAnswer when
    there is none, and PolicyForbids."""
    httpx = await httpx_ready("HTTP requests need httpx on this device")
    mine = httpx.Headers(terms.get("headers"))
    policy.headers(mine)
    mine.update(headers)
    with http.asking(terms):
        async with await http_client(timeout=None) as client:  # the workflow's own limit rules
            asked: Request | None = client.build_request(
                terms.get("method", "GET"),
                terms["url"],
                headers=mine,
                params=terms.get("params"),
                json=terms.get("json"),
                content=terms.get("body"),
            )
            for hop in range(REDIRECTS + 1):
                assert asked is not None
                policy.url(asked.url, begun=hop > 0)
                answer = await client.send(asked, stream=True)
                try:
                    if answer.next_request is None:
                        return _value(answer, await _body(answer), terms.get("expect"))
                finally:
                    await answer.aclose()
                asked = answer.next_request
    raise AsterismError(f"{masked_url(terms['url'])} led from one address to the next, more than {REDIRECTS} times")


async def _body(answer: Any) -> bytes:
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > LARGEST:
            raise AsterismError(f"{masked_url(str(answer.request.url))} answered with more than {LARGEST:,} bytes")
    return bytes(body)


def _value(answer: Any, body: bytes, expected: Any) -> Any:
    try:
        text = body.decode(answer.charset_encoding or "utf-8", errors="replace")
    except LookupError:  # a name of no encoding
        text = body.decode(errors="replace")
    if answer.status_code not in expected if expected else not answer.is_success:
        raise http.RequestFailed(answer.status_code, str(answer.request.url), text, answer.request.method)
    return http.json_in(answer, body) if "json" in answer.headers.get("content-type", "") and body else text
