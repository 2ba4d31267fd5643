"""Hooks: signed posts to a server that send events, in three forms of signatures, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import httpx
import pytest

from asterism import AsyncClient
from asterism.api.credentials import Credentials
from asterism.base import http_limits
from asterism.base.private_file import UnusableSecret
from asterism.cli.fleet import server_process
from asterism.cli.fleet.serve_commands import opened_hooks
from asterism.cli.fleet.server_process import ServerPolicy
from asterism.cli.series.series_sync_commands import WebhookSettings
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.durable.plan_submissions import submit_plan
from asterism.fleet import event_hook
from asterism.fleet.event_hook import WINDOW, EventHook, InvalidHook
from asterism.fleet.fleet import Fleet
from asterism.fleet.sent_events import LARGEST_DATA, latest_events, remove_events
from asterism.server.event_hook_routes import EventHookRoutes
from asterism.server.http_service import http_service
from asterism.store.memory import MemoryStore
from asterism.store.sqlite import SqliteStore
from tests.server.test_one_server import LOOPBACK, Announced, client_of

SECRET = b"a secret of some length"
NOW = 1_763_500_000
HOOKS = (EventHook("shop", "payment/{order}", SECRET), EventHook("any", "push", SECRET))
BODY = b'{"id": "evt_1", "order": 17}'

Signing = Callable[..., dict[str, str]]
Headers = Mapping[str, str | bytes]


def digest(content: bytes, secret: bytes = SECRET) -> bytes:
    return hmac.new(secret, content, hashlib.sha256).digest()


def standard(body: bytes = BODY, at: object = NOW, name: str = "msg_1", secret: bytes = SECRET) -> dict[str, str]:
    signature = base64.b64encode(digest(f"{name}.{at}.".encode() + body, secret)).decode()
    return {"webhook-id": name, "webhook-timestamp": str(at), "webhook-signature": f"v1a,x v1,AAAA v1,{signature}"}


def stripe(body: bytes = BODY, at: object = NOW) -> dict[str, str]:
    return {"stripe-signature": f"t={at},v1={digest(f'{at}.'.encode() + body).hex()},v0=00"}


def github(body: bytes = BODY, delivery: str = "1") -> dict[str, str]:
    return {"x-hub-signature-256": f"sha256={digest(body).hex()}", "x-github-delivery": delivery}


class HookScene:
    """A server with hooks, and a client of it. ``now`` is the time of the store."""

    def __init__(self, fleet: Fleet, client: httpx.AsyncClient, clock: list[float]) -> None:
        self.fleet, self.client, self.clock = fleet, client, clock

    async def posted(
        self, headers: Mapping[str, str | bytes], body: bytes = BODY, hook: str = "shop"
    ) -> tuple[int, Any]:
        """The status and what is said: the sentence of a refusal, else whether the event was sent before."""
        answer = await self.client.post(f"/hooks/{hook}", content=body, headers=httpx.Headers(dict(headers)))
        document = answer.json()
        return answer.status_code, document["detail"] if answer.is_error else document["again"]

    async def names(self) -> list[str]:
        return [event.name for event in await latest_events(self.fleet.store, None, 10)]


@asynccontextmanager
async def hook_scene(*hooks: EventHook) -> AsyncIterator[HookScene]:
    clock = [float(NOW)]
    fleet = Fleet(MemoryStore(lambda: clock[0]), by="server")

    def more(state: Any) -> Any:
        return EventHookRoutes(state, hooks or HOOKS).routes

    async with fleet, http_service(fleet, LOOPBACK, more=more) as service, client_of(service.url) as client:
        yield HookScene(fleet, client, clock)


@pytest.mark.parametrize(
    ("sign", "key"),
    [(standard, "msg_1"), (stripe, "evt_1"), (github, hashlib.sha256(BODY).hexdigest())],
)
async def test_a_signed_delivery_is_one_event_however_often_it_comes(sign: Signing, key: str) -> None:
    async with hook_scene() as scene:
        assert await scene.posted(sign()) == (202, False)
        assert await scene.posted(sign()) == (200, True)
        [event] = await latest_events(scene.fleet.store, None, 10)
    assert (event.name, event.key, event.by) == ("payment/17", f"shop/{key}", "hook shop")
    assert event.data == {"id": "evt_1", "order": 17}


async def test_a_sender_that_signs_again_sends_the_same_event() -> None:
    """What repeats a delivery signs it with a new time; GitHub names it anew."""
    async with hook_scene() as scene:
        for first, again in ((standard(), standard(at=NOW + 9)), (stripe(), stripe(at=NOW + 9))):
            status, _ = await scene.posted(first)
            assert (status, await scene.posted(again)) == (202, (200, True))
        assert (await scene.posted(github()))[0] == 202
        assert await scene.posted(github(delivery="2")) == (200, True)
        assert await scene.names() == ["payment/17"] * 3


async def test_hooks_with_the_same_event_know_only_their_own_deliveries() -> None:
    async with hook_scene(EventHook("a", "push", SECRET), EventHook("b", "push", SECRET)) as scene:
        assert await scene.posted(standard(), hook="a") == (202, False)
        assert await scene.posted(standard(), hook="b") == (202, False)


WRONG = (401, "the signature is wrong")
LATE = (401, "the time of the delivery is missing, or more than 5 minutes from that of this server")


REFUSED: list[tuple[dict[str, str], bytes, tuple[int, str]]] = [
    ({}, BODY, (401, "the signature is missing")),
    (standard(secret=b"another secret of a sender"), BODY, WRONG),
    (standard(b'{"order": 1}'), BODY, WRONG),
    (standard() | {"webhook-id": "msg_2"}, BODY, WRONG),
    (standard() | {"webhook-timestamp": str(NOW + 1)}, BODY, WRONG),
    (standard() | {"webhook-signature": ""}, BODY, WRONG),
    (standard() | {"webhook-signature": "v1,\xe9"}, BODY, WRONG),
    (standard(name="a.b"), BODY, (401, "the header webhook-id has 1 to 200 letters, digits, - and _")),
    (stripe(b'{"order": 1}'), BODY, WRONG),
    ({"stripe-signature": f"t={NOW + 1},{stripe()['stripe-signature'].partition(',')[2]}"}, BODY, WRONG),
    ({"stripe-signature": "v1"}, BODY, WRONG),
    (github(b'{"order": 1}'), BODY, WRONG),
    ({"x-hub-signature-256": digest(BODY).hex()}, BODY, WRONG),
    (standard(at=NOW - WINDOW - 1), BODY, LATE),
    (standard(at=int(NOW - WINDOW - 1)), BODY, LATE),
    (standard(at=int(NOW + WINDOW + 1)), BODY, LATE),
    (standard(at="now"), BODY, LATE),
    (standard(at=""), BODY, LATE),
    (stripe(at=int(NOW - WINDOW - 1)), BODY, LATE),
    (standard(b"order=17"), b"order=17", (400, "the body is not JSON: invalid character (byte 0)")),
    (standard(b""), b"", (400, "the body is not JSON: Input data was truncated")),
    (standard(b"[17]"), b"[17]", (400, "the body is not a JSON object")),
    (
        standard(b'{"id": 1}'),
        b'{"id": 1}',
        (400, "the body has no order, which the event 'payment/{order}' names"),
    ),
    (
        standard(b'{"order": "a\\n"}'),
        b'{"order": "a\\n"}',
        (400, "the name of an event has 1 to 200 printable characters, and no space at its ends"),
    ),
    (stripe(b'{"order": 17}'), b'{"order": 17}', (400, "the body has no id, as every event of Stripe has")),
]


async def test_what_is_not_right_sends_nothing_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async with hook_scene() as scene:
        for headers, body, answer in REFUSED:
            sent = {name: value.encode("latin-1") for name, value in headers.items()}
            assert await scene.posted(sent, body) == answer
        assert await scene.names() == []
    assert caplog.messages.count("refused a delivery with a wrong signature") == 1  # nobody fills the log


async def test_only_hooks_that_exist_and_bodies_of_the_size_of_an_event_are_read() -> None:
    large = json.dumps({"order": 17, "text": "x" * LARGEST_DATA}).encode()
    grown = json.dumps({"order": 17, "text": "ü" * (LARGEST_DATA // 3)}, ensure_ascii=False).encode()
    async with hook_scene() as scene:
        assert await scene.posted(standard(), hook="other") == (404, "there is no hook of this name")
        assert await scene.posted(standard(large), large) == (413, "the body is too large: the limit is 65,536 bytes")
        status, why = await scene.posted(standard(grown), grown)
        assert (status, "an event has 65,536 at most" in why) == (413, True)
        assert (await scene.client.get("/hooks/shop")).status_code == 405
        assert await scene.names() == []
    async with http_service(Fleet(MemoryStore(), by="server"), LOOPBACK) as service, client_of(service.url) as client:
        assert (await client.post("/hooks/shop", content=BODY, headers=standard())).status_code == 404


# -- safeguards --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "ablation"])
@pytest.mark.parametrize("sign", [standard, stripe])
async def test_a_replay_is_no_second_event_also_when_the_first_is_no_longer_kept(
    sign: Signing, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr(event_hook, "WINDOW", float("inf"))
    async with hook_scene() as scene:
        assert await scene.posted(sign()) == (202, False)
        scene.clock[0] += WINDOW
        assert await scene.posted(sign()) == (200, True)  # within the window its key is known
        scene.clock[0] += 1
        await remove_events(scene.fleet.store, scene.clock[0])
        assert (await scene.posted(sign()) == LATE) is guarded
        assert await scene.names() == ([] if guarded else ["payment/17"])


@pytest.mark.parametrize("sign", [standard, stripe, github])
async def test_signatures_are_compared_in_constant_time(sign: Signing, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[tuple[int, bool]]()

    def compare(expected: bytes, given: bytes) -> bool:
        compared.append((len(expected), same(expected, given)))
        return compared[-1][1]

    same = hmac.compare_digest
    monkeypatch.setattr(http_limits.hmac, "compare_digest", compare)
    assert HOOKS[0].signed(sign(), BODY).is_right
    assert not HOOKS[0].signed(sign(), b"{}").is_right
    assert [right for _, right in compared].count(True) == 1
    assert {size for size, _ in compared} <= {44, 64}  # the whole signature, as base64 or in hex


def test_many_signatures_of_a_stranger_cost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = list[bytes]()
    compute = hmac.digest
    monkeypatch.setattr(http_limits.hmac, "digest", lambda *words: (computed.append(words[1]), compute(*words))[1])
    header = {**standard(), "webhook-signature": "v1,AAAA " * 1000}
    assert not HOOKS[0].signed(header, BODY).is_right
    assert len(computed) == 1


async def test_a_signature_of_one_form_sends_nothing_in_another() -> None:
    """Somebody who has seen a delivery could otherwise send it as one without a time, or with another id."""
    body = b'{"id": "evt_1", "order": 17, "price": "1.5"}'
    contents = {"standard": b"msg_1.%d." % NOW + body, "stripe": b"%d." % NOW + body, "github": body}
    async with hook_scene() as scene:
        for form, content in contents.items():
            signed = digest(content)
            at, _, rest = content.partition(b".")
            name, then, last = content.split(b".", 2) if content.count(b".") > 1 else (at, b"", rest)
            hidden = base64.b64encode(signed).decode()
            names = {"webhook-id": name, "webhook-timestamp": then, "webhook-signature": f"v1,{hidden}"}
            forged: dict[str, tuple[Headers, bytes]] = {
                "github": ({"x-hub-signature-256": f"sha256={signed.hex()}"}, content),
                "stripe": ({"stripe-signature": b"t=%b,v1=%b" % (at, signed.hex().encode())}, rest),
                "standard": (names, last),
            }
            for other, (headers, part) in forged.items():
                assert ((await scene.posted(headers, part))[0] < 300) is (other == form), (form, other)
        assert len(await scene.names()) == 3


@pytest.mark.parametrize(
    ("name", "event", "why"),
    [
        ("Shop", "a", "up to 40 small letters"),
        ("../shop", "a", "up to 40 small letters"),
        ("shop", "{event}", "lets a sender choose the whole name"),
        ("shop", "pay/{", "is not a valid template"),
        ("shop", "", "1 to 200 printable characters"),
    ],
)
def test_a_hook_says_what_may_be_sent(name: str, event: str, why: str) -> None:
    with pytest.raises(InvalidHook, match=why):
        EventHook(name, event, SECRET)


def test_a_secret_of_standard_webhooks_is_base64() -> None:
    key = b"0123456789abcdef0123456789abcdef"
    hook = EventHook("shop", "a", b"whsec_" + base64.b64encode(key))
    assert hook.signed(standard(secret=key), BODY).is_right
    odd = EventHook("shop", "a", b"whsec_not base64!")
    assert odd.signed(standard(secret=odd.secret), BODY).is_right
    assert "whsec" not in repr(hook)


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_secret_is_taken_out_of_the_environment_or_from_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTERISM_HOOK_SHOP_EU", SECRET.decode())
    [hook] = opened_hooks(("shop-eu=payment/{order}",), None)
    assert hook == EventHook("shop-eu", "payment/{order}", SECRET)
    assert "ASTERISM_HOOK_SHOP_EU" not in os.environ  # or the commands of tasks would inherit it
    with pytest.raises(click.UsageError, match=r"at least 16 characters: set \$ASTERISM_HOOK_SHOP_EU"):
        opened_hooks(("shop-eu=payment/{order}",), None)
    with pytest.raises(click.UsageError, match="write it to "):
        opened_hooks(("shop=a",), tmp_path)
    file = tmp_path / "shop"
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o600)
    assert opened_hooks(("shop=a=b",), tmp_path) == [EventHook("shop", "a=b", SECRET)]
    file.chmod(0o640)
    with pytest.raises(UnusableSecret, match="other users can read"):
        opened_hooks(("shop=a",), tmp_path)


def test_commands_of_tasks_do_not_inherit_the_secret_of_the_series_webhook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WEBHOOK_SECRET", SECRET.decode())
    assert WebhookSettings.of({"secret_file": None, "every": 600.0}).secret == SECRET
    assert "GITHUB_WEBHOOK_SECRET" not in os.environ


def test_options_that_make_no_hook_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTERISM_HOOK_A", SECRET.decode())
    for given, why in ((("a",), "'a' is not a hook"), (("a=b", "a=c"), "two hooks 'a'")):
        with pytest.raises(click.UsageError, match=why):
            opened_hooks(given, None)
    with pytest.raises(click.UsageError, match="give --event-hook"):
        opened_hooks((), tmp_path)
    assert opened_hooks((), None) == []


async def test_a_post_to_the_server_continues_a_plan_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Fleet(await SqliteStore.open(tmp_path / "shop.db"), by="server") as fleet:
        plan = Constellation("order")
        plan.add(Task("paid", wait_for={"event": "payment/17"}))
        await submit_plan(fleet, plan)
        before, announced = asyncio.all_tasks(), Announced(monkeypatch)
        serving = asyncio.create_task(
            server_process.serve_until_signal(
                fleet, LOOPBACK, [], local=0, policy=ServerPolicy.find(None), hooks=HOOKS, as_json=False
            )
        )
        hooks = (await announced.addresses)["hooks"]
        async with client_of(hooks) as client:
            at = int(fleet.store.clock())
            answer = await client.post("shop", content=BODY, headers=standard(at=at))
            assert (answer.status_code, answer.json()["name"]) == (202, "payment/17")
        token = (await Credentials(fleet.store).create("ci", ["observe"], by="test")).token
        url = hooks.removesuffix("/hooks/")
        async with AsyncClient(url, token, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) as api:
            assert (await api.wait_plan("order")).state == "completed"
        signal.raise_signal(signal.SIGTERM)
        assert await serving == 0
        assert asyncio.all_tasks() <= before
