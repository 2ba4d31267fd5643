"""HTTP requests as the work of a run, against a server on the loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

from asterism.core.errors import AsterismError, NotJson, TooLarge
from asterism.core.json_values import SizeLimit
from asterism.core.run.work import Workflow
from asterism.execution.http_requests import NoAnswer, RequestFailed
from asterism.execution.task_inputs import MissingInput
from asterism.fleet.device.executor import LimitReached
from asterism.fleet.policy.device_policy import DevicePolicy, PolicyForbids, Rules
from asterism.fleet.settings import value_limit
from tests.fleet.device.device_scenes import Reports, a_run, check, execute, executors
from tests.process_scenes import soon_async


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        path, _, query = self.path.partition("?")
        if path == "/to":
            self.reply(302, "text/plain", "x" * 100, location=unquote(query))
        elif path == "/status":
            self.reply(int(query[:3]), "text/plain", f"status {query}")
        elif path == "/json":
            self.reply(200, "application/json", json.loads(f'"{query}"').replace("%5B", "[").replace("%5D", "]"))
        elif path == "/latin":
            self.reply(200, f"text/plain; charset={query}", "é".encode("latin-1"))
        elif path == "/hang":
            self.server.hanging.set()  # type: ignore[attr-defined]
            self.server.release.wait()  # type: ignore[attr-defined]
        else:
            reports = {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": body}
            self.reply(200, "application/json", json.dumps(reports))

    do_GET = do_POST = answer

    def reply(self, status: int, kind: str, body: str | bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else body.encode())

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.hanging, made.release, made.asked = threading.Event(), threading.Event(), []  # type: ignore[attr-defined]
        made.port = made.server_address[1]  # type: ignore[attr-defined]
        made.url = f"http://127.0.0.1:{made.port}"  # type: ignore[attr-defined]
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.release.set()  # type: ignore[attr-defined]
        made.shutdown()
        thread.join()


def request(url: str, **options: Any) -> Workflow:
    limit = options.pop("limit", None)
    return Workflow("work", http={"url": url, **options}, timeout=limit)


def only(*hosts: str) -> DevicePolicy:
    return DevicePolicy(Rules(hosts=hosts), "policy.yaml")


def test_a_request_has_headers_for_run_and_epoch(server: Any) -> None:
    value = execute(request(server.url, headers={"Asterism-run": "forged", "X-Mine": "yes"}))
    assert value["headers"]["Asterism-Run"] == "r1"
    assert value["headers"]["Asterism-Epoch"] == "3"
    assert value["headers"]["X-Mine"] == "yes"
    assert "forged" not in str(value)


def test_inputs_fill_the_url_and_the_rest_of_the_request(server: Any) -> None:
    flow = request(
        f"{server.url}/{{id}}",
        method="POST",
        json={"whole": {"from": "id"}, "part": {"from": "deep", "select": "result.n"}},
        params={"q": {"from": "id"}},
    )
    value = execute(flow, {"id": "a/b?c", "deep": {"n": 5}})
    assert value["method"] == "POST"
    assert value["path"].startswith("/a%2Fb%3Fc?q=")
    assert json.loads(value["body"]) == {"whole": "a/b?c", "part": 5}
    with pytest.raises(MissingInput, match="'deep'"):
        execute(flow, {"id": "x"})


def test_an_answer_is_json_if_it_says_so_and_text_otherwise(server: Any) -> None:
    assert execute(request(f"{server.url}/status?200")) == "status 200"
    assert execute(request(f"{server.url}/latin?latin-1")) == "é"
    for encoding in ("no-such-encoding", "zlib", "utf-8"):
        with pytest.raises(
            NotJson, match=r"the answer to GET .* is not valid UTF-8 \(byte 0xe9 at offset 0\): download"
        ):
            execute(request(f"{server.url}/latin?{encoding}"))
    with pytest.raises(NotJson, match=r"is not valid ascii \(byte 0xe9 at offset 0\)"):
        execute(request(f"{server.url}/latin?us-ascii"))
    assert execute(request(f"{server.url}/status?404", expect=[404])) == "status 404"
    with pytest.raises(RequestFailed, match="answered 404: status 404"):
        execute(request(f"{server.url}/status?404"))
    with pytest.raises(NotJson, match="JSON cannot hold"):
        execute(request(f"{server.url}/json?NaN"))
    with pytest.raises(AsterismError, match="answered with a body that is not JSON"):
        execute(request(f"{server.url}/json?nothing"))
    with pytest.raises(AsterismError, match="nested too deep"):
        execute(request(f"{server.url}/json?{'%5B' * 20_000}"))


def test_the_limit_of_a_result_is_that_of_an_answer(server: Any) -> None:
    async def limit() -> SizeLimit:
        return value_limit(50)

    def within(path: str) -> Any:
        work = Reports().work(request(f"{server.url}{path}"))._replace(value_limit=limit)
        return asyncio.run(executors().execute(work))

    assert within("/to?/status%3F200") == "status 200"
    with pytest.raises(
        TooLarge, match=r"the answer to GET http://.*/thing has \d+ bytes, and the limit is 50: .*fleet set"
    ):
        within("/thing")


def test_a_server_that_is_not_there_fails_the_work() -> None:
    with pytest.raises(NoAnswer, match=r"GET http://127\.0\.0\.1:1/ got no answer: ConnectError"):
        execute(request("http://127.0.0.1:1/"))


def test_a_request_that_hangs_is_stopped(server: Any) -> None:
    with pytest.raises(LimitReached):
        execute(request(f"{server.url}/hang", limit=0.2))

    async def main() -> None:
        server.hanging.clear()
        work = asyncio.create_task(executors().execute(Reports().work(request(f"{server.url}/hang"))))
        await soon_async(server.hanging.is_set)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(main())


def test_a_secret_is_masked_in_errors_and_logs_and_not_in_answers(
    server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cr3t value")
    inputs = {"token": {"secret": "MY_TOKEN"}}
    with caplog.at_level(logging.INFO):
        value = execute(request(f"{server.url}/{{token}}", headers={"X-Key": {"secret": "MY_TOKEN"}}), inputs)
        with pytest.raises(RequestFailed) as caught:
            execute(request(f"{server.url}/status?500&{{token}}"), inputs)
    assert value["headers"]["X-Key"] == "s3cr3t value"
    assert "s3cr3t" not in str(caught.value) + repr(vars(caught.value)) + caplog.text


# -- the policy --------------------------------------------------------------------------------------------------------


def test_a_host_that_is_not_listed_is_never_asked(server: Any) -> None:
    allowed = only("example.org", f"127.0.0.1:{server.port}")
    assert execute(request(server.url), policy=allowed)["path"] == "/"
    server.asked.clear()
    for url in (f"http://localhost:{server.port}/", f"http://127.1.1.1:{server.port}/", "http://127.0.0.1:1/"):
        assert "does not allow requests to" in (allowed.objection(a_run(request(url))) or "")
        with pytest.raises(PolicyForbids) as caught:
            execute(request(url), policy=allowed)
        assert not caught.value.begun
    with pytest.raises(PolicyForbids, match="a name or password in an address"):
        execute(request(f"http://x:y@127.0.0.1:{server.port}/"), policy=allowed)
    assert server.asked == []


def test_a_host_from_an_input_is_judged_when_filled_in(server: Any) -> None:
    allowed = only(f"127.0.0.1:{server.port}")
    flow = request(f"http://{{host}}:{server.port}/")
    assert allowed.objection(a_run(flow)) is None
    assert check(flow, {"host": "127.0.0.1"}, allowed) is None
    assert execute(flow, {"host": "127.0.0.1"}, allowed)["path"] == "/"
    server.asked.clear()
    for host in ("localhost", "evil.org", "127.0.0.1@evil.org", "evil.org/127.0.0.1", "evil.org#"):
        assert "does not allow requests to" in (check(flow, {"host": host}, allowed) or "")
        with pytest.raises(PolicyForbids):
            execute(flow, {"host": host}, allowed)
    assert server.asked == []


def test_a_redirect_to_a_host_that_is_not_listed_is_not_followed(server: Any) -> None:
    allowed = only(f"127.0.0.1:{server.port}")
    assert execute(request(f"{server.url}/to?{server.url}/status%3F200"), policy=allowed) == "status 200"
    server.asked.clear()
    with pytest.raises(PolicyForbids, match=f"requests to http://localhost:{server.port}") as caught:
        execute(request(f"{server.url}/to?http://localhost:{server.port}/secret"), policy=allowed)
    assert caught.value.begun
    assert server.asked == [f"/to?http://localhost:{server.port}/secret"]


def test_redirects_that_do_not_end_do(server: Any) -> None:
    with pytest.raises(AsterismError, match="more than 20 times"):
        execute(request(f"{server.url}/to?/to"))
    assert len(server.asked) == 21


def test_a_request_has_no_host_header_of_its_own(server: Any) -> None:
    allowed = only(f"127.0.0.1:{server.port}")
    for name in ("Host", "host", " HOST "):
        flow = request(server.url, headers={name: "internal.example.org"})
        assert "a 'Host' of its own" in (allowed.objection(a_run(flow)) or "")
        assert "a 'Host' of its own" in (check(flow, policy=allowed) or "")
        with pytest.raises(PolicyForbids):
            execute(flow, policy=allowed)
    assert server.asked == []


def test_a_device_without_httpx_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from asterism.fleet.device import executor

    monkeypatch.setattr(executor, "find_spec", lambda name: None)
    assert "need httpx on this device" in (executors().objection(a_run(request("http://x/"))) or "")
    assert executors().objection(a_run(Workflow("w", shell="true"))) is None
