"""No secret is sent to another origin after a redirect: two servers on the loopback, and one redirects to the other."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Task
from asterism.base.secret_mask import Mask
from asterism.core.run.run import Run
from asterism.core.run.work import Work
from asterism.fleet.coordinator import Notifier
from asterism.fleet.device.executor import DeviceExecutor, RunWork
from asterism.fleet.policy.device_policy import DevicePolicy
from asterism.fleet.settings import Settings
from tests.process_scenes import PATIENCE

VALUE = "s3cr3t-välue/1"


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: str


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append(Request(self.command, self.path, headers, body))  # type: ignore[attr-defined]
        status, _, location = self.path[1:].partition("/to/")
        if location:
            self.send_response(int(status))
            self.send_header("location", location)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_GET = do_POST = do_PUT = do_HEAD = answer

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.asked = []  # type: ignore[attr-defined]
        made.url = f"http://127.0.0.1:{made.server_address[1]}"  # type: ignore[attr-defined]
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def home() -> Iterator[Any]:
    with serving() as made:
        yield made


@pytest.fixture
def away() -> Iterator[Any]:
    with serving() as made:
        yield made


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_VALUE", VALUE)


Send = Callable[[dict[str, Any]], str | None]


def as_task(request: dict[str, Any]) -> str | None:
    """The error of a request task, if it failed."""
    plan = Constellation("p")
    plan.add(Task("a", http=request, inputs={"given": {"secret": "MY_VALUE"}}))
    node = asyncio.run(Orchestrator([LocalDevice("here")]).run(plan))["a"]
    return None if node.error is None else str(node.error)


def as_run(request: dict[str, Any]) -> str | None:
    """The same as the work of a run."""
    terms = Work(http=request)
    inputs = {"given": {"secret": "MY_VALUE"}}
    work = RunWork(Run("r1", "w", 1, 0.0, "test", terms, epoch=3), inputs, lambda _: None, lambda _: None)

    async def main() -> str | None:
        executors = DeviceExecutor(DevicePolicy.open(), device="kitchen", session="s1")
        try:
            async with asyncio.timeout(PATIENCE):
                await executors.execute(work)
        except Exception as error:
            return str(error)
        finally:
            executors.close()
        return None

    return asyncio.run(main())


both = pytest.mark.parametrize("send", [as_task, as_run])
SECRET = {"secret": "MY_VALUE"}
HEADERS = {"X-Key": SECRET, "X-Plain": "kept", "Cookie": "a=b", "Authorization": "Basic eDp5"}


def ascii_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_VALUE", "s3cr3t-value/1")  # headers are ASCII


@both
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_headers_that_bear_a_secret_stay_at_home(
    send: Send, home: Any, away: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ascii_only(monkeypatch)
    assert send({"url": f"{home.url}/{status}/to/{away.url}/there", "headers": HEADERS}) is None
    assert home.asked[0].headers["x-key"] == "s3cr3t-value/1"
    [seen] = away.asked
    assert seen.headers["x-plain"] == "kept"
    assert not {"x-key", "cookie", "authorization"} & seen.headers.keys()
    assert "s3cr3t" not in str(seen)


@both
def test_headers_do_not_come_back_with_a_second_redirect(
    send: Send, home: Any, away: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ascii_only(monkeypatch)
    back = f"{away.url}/307/to/{away.url}/307/to/{away.url}/end"
    assert send({"url": f"{home.url}/307/to/{back}", "headers": HEADERS}) is None
    assert [request.headers.get("x-key") for request in away.asked] == [None] * 3


@both
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_same_origin_is_told_everything(
    send: Send, home: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ascii_only(monkeypatch)
    request = {"method": "PUT", "url": f"{home.url}/{status}/to//there", "headers": HEADERS, "json": {"k": SECRET}}
    assert send(request) is None
    first, second = home.asked
    assert second.headers["x-key"] == "s3cr3t-value/1"
    assert second.body == ("" if status in (302, 303) else first.body)


@both
@pytest.mark.parametrize("hops", [0, 1])
@pytest.mark.parametrize("content", [{"json": {"k": [SECRET]}}, {"body": SECRET}])
@pytest.mark.parametrize("status", [307, 308])
def test_a_body_that_bears_a_secret_is_not_sent_elsewhere(
    send: Send, home: Any, away: Any, status: int, content: dict[str, Any], hops: int
) -> None:
    url = f"{home.url}/{status}/to/" * (hops + 1) + f"{away.url}/there"
    error = send({"method": "POST", "url": url, **content}) or ""
    assert f"redirects ({status}) to another origin, {away.url}, and the body of the request contains a secret" in error
    assert VALUE not in error
    assert away.asked == []


@both
def test_a_body_without_a_secret_goes_where_it_is_sent(send: Send, home: Any, away: Any) -> None:
    assert send({"method": "POST", "url": f"{home.url}/307/to/{away.url}/there", "json": {"k": 1}}) is None
    assert json.loads(away.asked[0].body) == {"k": 1}


@both
@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_post_that_becomes_a_get_has_no_body_to_lose(send: Send, home: Any, away: Any, status: int) -> None:
    url = f"{home.url}/{status}/to/{away.url}/there"
    assert send({"method": "POST", "url": url, "json": {"k": SECRET}}) is None
    assert (away.asked[0].method, away.asked[0].body) == ("GET", "")


@both
def test_a_short_secret_is_kept_back_as_well(send: Send, home: Any, away: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that is too short to be masked in text is still not sent to another origin."""
    monkeypatch.setenv("MY_VALUE", "a7")
    assert send({"url": f"{home.url}/307/to/{away.url}/there", "headers": {"X-Key": SECRET}}) is None
    assert "x-key" not in away.asked[0].headers
    posted = {"method": "POST", "url": f"{home.url}/307/to/{away.url}/there", "json": {"k": SECRET}}
    assert "contains a secret" in (send(posted) or "")


@both
def test_another_scheme_or_host_is_another_origin(send: Send, home: Any, away: Any) -> None:
    port = away.url.rpartition(":")[2]
    posted = {"method": "POST", "url": f"{home.url}/307/to/http://localhost:{port}/x", "json": {"k": SECRET}}
    assert f"another origin, http://localhost:{port}" in (send(posted) or "")
    upgraded = {
        "method": "POST",
        "url": f"{home.url}/307/to/{home.url.replace('http', 'https')}/x",
        "json": {"k": SECRET},
    }
    assert "another origin, https://127.0.0.1" in (send(upgraded) or "")


def test_a_notice_that_bears_a_secret_of_the_device_stays(
    home: Any, away: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DEVICE_TOKEN", VALUE)
    notifier = Notifier(None, DevicePolicy.open())  # type: ignore[arg-type] # it is not asked
    settings = Settings(notify_url=f"{home.url}/307/to/{away.url}/there")
    assert asyncio.run(notifier._deliver(settings, {"message": VALUE})) is False
    assert "another origin" in caplog.text
    assert away.asked == []
    assert asyncio.run(notifier._deliver(settings, {"message": "fine"})) is True
    assert json.loads(away.asked[0].body) == {"message": "fine"}


@both
def test_without_the_safeguard_a_header_follows(
    send: Send, home: Any, away: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ascii_only(monkeypatch)
    monkeypatch.setattr(Mask, "contains_secret", lambda self, text: False)
    assert send({"url": f"{home.url}/307/to/{away.url}/there", "headers": HEADERS}) is None
    assert away.asked[0].headers["x-key"] == "s3cr3t-value/1"
