"""HTTP request tasks, against a server on the loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Task
from asterism.base.text import masked_url
from asterism.core.errors import AsterismError, NotJson
from asterism.execution.http_requests import NoAnswer, RequestFailed
from asterism.report.result_summary import result_json
from tests.orchestrator.orchestrator_scenes import after, deadline, independent
from tests.process_scenes import PATIENCE


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def answer(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length).decode()
        path = self.path.partition("?")[0]
        if path.startswith("/status/"):
            self.reply(int(path.rpartition("/")[2]), "text/plain", f"status {path.rpartition('/')[2]}")
        elif path == "/text":
            self.reply(200, "text/plain", '{"looks": "like json"}')
        elif path == "/broken":
            self.reply(200, "application/json", "{no json")
        elif path == "/image":
            self.reply(200, "image/png", b"\x89PNG")
        elif path == "/empty":
            self.reply(204, "application/json", "")
        elif path == "/moved":
            self.send_response(302)
            self.send_header("location", "/text")
            self.end_headers()
        elif path == "/hang":
            self.server.hanging.set()  # type: ignore[attr-defined]
            self.server.release.wait(PATIENCE)  # type: ignore[attr-defined]
        else:
            told = {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": body}
            self.reply(200, "application/json", json.dumps(told))

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def reply(self, status: int, kind: str, body: str | bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else body.encode())

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.hanging, made.release = threading.Event(), threading.Event()  # type: ignore[attr-defined]
        made.url = f"http://127.0.0.1:{made.server_address[1]}"  # type: ignore[attr-defined]
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.release.set()  # type: ignore[attr-defined]
        made.shutdown()
        thread.join()


def execute(plan: Constellation) -> Any:
    async def main() -> Any:
        return await deadline(Orchestrator([LocalDevice("device")]).run(plan))

    return asyncio.run(main())


def fetch(http: dict[str, Any], **options: Any) -> Any:
    result = execute(independent(Task("a", http=http, **options)))
    if result["a"].error is not None:
        raise result["a"].error
    return result["a"].value


def test_a_json_response_is_parsed(server: Any) -> None:
    value = fetch({"url": f"{server.url}/thing"})
    assert (value["method"], value["path"]) == ("GET", "/thing")


def test_an_answer_that_does_not_say_so_is_text(server: Any) -> None:
    assert fetch({"url": f"{server.url}/text"}) == '{"looks": "like json"}'


def test_an_answer_that_is_not_text_fails_and_is_not_changed(server: Any) -> None:
    with pytest.raises(NotJson) as caught:
        fetch({"url": f"{server.url}/image"})
    assert str(caught.value) == (
        f"the answer to GET {server.url}/image is not valid UTF-8 (byte 0x89 at offset 0): download it to a file with "
        "a command, such as curl"
    )


def test_an_empty_answer_is_empty_text_and_redirects_are_followed(server: Any) -> None:
    assert fetch({"url": f"{server.url}/empty"}) == ""
    assert fetch({"url": f"{server.url}/moved"}) == '{"looks": "like json"}'


def test_a_request_has_a_method_headers_parameters_and_a_body(server: Any) -> None:
    value = fetch(
        {
            "method": "POST",
            "url": f"{server.url}/thing",
            "headers": {"X-Mine": "yes"},
            "params": {"q": "a b", "n": 2},
            "json": {"list": [1, 2]},
        }
    )
    assert value["method"] == "POST"
    assert value["path"] in ("/thing?q=a%20b&n=2", "/thing?q=a+b&n=2")
    assert value["headers"]["X-Mine"] == "yes"
    assert json.loads(value["body"]) == {"list": [1, 2]}
    assert fetch({"method": "PUT", "url": f"{server.url}/thing", "body": "plain"})["body"] == "plain"


def test_upstream_results_fill_the_url_quoted_and_the_rest_of_the_request(server: Any) -> None:
    plan = Constellation()
    plan.add(Task("up", call=after(0, {"id": "a/b c?d", "n": 3})))
    plan.add(
        Task(
            "a",
            http={
                "method": "POST",
                "url": server.url + "/item/{id}",
                "json": {"deep": [{"n": {"from": "up", "select": "result.n"}}]},
            },
            inputs={"id": {"from": "up", "select": "result.id"}},
        ),
        after="up",
    )
    value = execute(plan)["a"].value
    assert value["path"] == "/item/a%2Fb%20c%3Fd"
    assert json.loads(value["body"]) == {"deep": [{"n": 3}]}


def test_an_unexpected_status_fails_the_task_with_the_status(server: Any) -> None:
    with pytest.raises(RequestFailed) as caught:
        fetch({"url": f"{server.url}/status/503"})
    assert str(caught.value) == f"GET {server.url}/status/503 answered 503: status 503"
    assert (caught.value.status, caught.value.body) == (503, "status 503")


def test_the_statuses_that_count_as_success_can_be_set(server: Any) -> None:
    assert fetch({"url": f"{server.url}/status/404", "expect": [200, 404]}) == "status 404"
    with pytest.raises(RequestFailed):
        fetch({"url": f"{server.url}/text", "expect": [404]})


def test_an_answer_that_lies_about_being_json_fails_the_task(server: Any) -> None:
    with pytest.raises(AsterismError, match=f"GET {server.url}/broken answered with a body that is not JSON"):
        fetch({"url": f"{server.url}/broken"})


def test_a_server_that_is_not_there_fails_the_task() -> None:
    result = execute(independent(Task("a", http={"url": "http://127.0.0.1:1/"})))
    assert result["a"].status == "failed"


@pytest.mark.parametrize("url", ["http://ann:hunter2@127.0.0.1:1/x?token=hunter2", "htp://ann:hunter2@there/x"])
def test_a_request_without_an_answer_names_the_url_without_password(url: str) -> None:
    with pytest.raises(NoAnswer) as caught:
        fetch({"url": url, "method": "PUT"})
    assert str(caught.value).startswith(f"PUT {masked_url(url)} got no answer: ")
    assert "hunter2" not in str(caught.value)
    assert "/x" in str(caught.value)


@pytest.mark.parametrize("http", [{}, {"method": "GET"}], ids=str)
def test_a_request_without_a_url_fails_with_a_helpful_message(http: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"url") as caught:
        fetch(http)
    assert type(caught.value) is not KeyError


async def test_a_request_is_given_up_when_the_plan_is_cancelled(server: Any) -> None:
    orchestrator = Orchestrator([LocalDevice("device")])
    plan = independent(Task("a", http={"url": f"{server.url}/hang"}), id="p")
    running = asyncio.create_task(orchestrator.run(plan))
    await asyncio.get_running_loop().run_in_executor(None, server.hanging.wait, PATIENCE)
    await deadline(orchestrator.cancel("p"))
    assert (await deadline(running)).state == "cancelled"


def test_a_request_is_given_up_when_its_time_is_over(server: Any) -> None:
    with pytest.raises(TimeoutError):
        fetch({"url": f"{server.url}/hang"}, timeout=0.1)


PLACES = ["headers", "params", "url", "json"]
SECRETS = ["plain-s3cr3t", "with/special chars&more"]


def forms(secret: str) -> set[str]:
    """How a secret may look: as it is, or as a part of a URL."""
    return {secret, quote(secret, safe=""), quote(secret), quote_plus(secret)}


def request_with(server: Any, place: str, secret: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Send a secret in one place of two requests, one of which is answered and one refused."""
    monkeypatch.setenv("MY_TOKEN", secret)
    reference = {"secret": "MY_TOKEN"}
    inputs: dict[str, Any] = {}
    http: dict[str, Any] = {"method": "POST"}
    if place == "url":
        inputs, suffix = {"token": reference}, "?token={token}"
    else:
        http[place], suffix = {"Token": reference}, ""
    plan = independent(
        Task("echo", http={**http, "url": f"{server.url}/echo{suffix}"}, inputs=inputs),
        Task("fail", http={**http, "url": f"{server.url}/status/500{suffix}"}, inputs=inputs),
    )
    return execute(plan)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("place", PLACES)
def test_a_secret_reaches_the_server_and_never_the_error_the_story_or_the_json(
    server: Any, monkeypatch: pytest.MonkeyPatch, place: str, secret: str
) -> None:
    result = request_with(server, place, secret, monkeypatch)
    assert result["echo"].status == "completed"
    error = result["fail"].error
    assert isinstance(error, RequestFailed)
    shown = repr(result_json(result)) + str(error) + repr(vars(error)) + "\n".join(map(str, result.story()))
    assert "[secret]" in shown
    assert not [form for form in forms(secret) if form in shown]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("place", PLACES)
def test_a_secret_in_a_request_is_never_logged(
    server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str, secret: str
) -> None:
    with caplog.at_level(logging.DEBUG):
        request_with(server, place, secret, monkeypatch)
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert not [form for form in forms(secret) if form in logged]
