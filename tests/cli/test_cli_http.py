"""HTTP tasks, against a server on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cli.cli_scenes import asterism, write


class Handler(BaseHTTPRequestHandler):
    """Answers with what it was asked, as JSON; ``/gone`` with 410."""

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length", 0))
        told = {
            "method": self.command,
            "path": self.path,
            "token": self.headers.get("authorization"),
            "body": self.rfile.read(length).decode(),
        }
        body = json.dumps(told).encode()
        self.send_response(410 if self.path == "/gone" else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_requests_with_inputs_secrets_and_expectations(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_TOKEN", "hunter2")
    path = write(
        tmp_path,
        f"""\
tasks:
  name: {{shell: echo a/b}}
  get:
    http: {{url: "{address}/{{name}}", params: {{q: 1}}}}
    inputs: {{name: {{from: name}}}}
    after: name
  post:
    http:
      method: POST
      url: {address}/post
      headers: {{Authorization: {{secret: WEB_TOKEN}}}}
      json: {{name: {{from: name}}, list: [1, null]}}
      expect: [200]
    after: name
  text: {{http: {{method: POST, url: "{address}/text", body: hello}}}}
  gone: {{http: {{url: "{address}/gone"}}}}
  gone-is-fine: {{http: {{url: "{address}/gone", expect: [404, 410]}}}}
  seen:
    shell: 'echo "$path"'
    inputs: {{path: {{from: get, select: result.path}}}}
    after: {{get: {{when: "result.method == 'GET'"}}}}
""",
    )
    result = asterism("run", "--json", path)
    tasks = json.loads(result.stdout)["tasks"]
    assert tasks["get"]["value"]["path"] == "/a%2Fb?q=1"
    assert tasks["seen"]["value"] == "/a%2Fb?q=1"
    assert tasks["post"]["value"]["method"] == "POST"
    assert json.loads(tasks["post"]["value"]["body"]) == {"name": "a/b", "list": [1, None]}
    assert tasks["post"]["value"]["token"] == "[secret]"
    assert tasks["text"]["value"]["body"] == "hello"
    assert tasks["gone-is-fine"]["status"] == "completed"
    assert tasks["gone"]["status"] == "failed"
    assert "answered 410" in tasks["gone"]["reason"]
    assert "hunter2" not in result.output
    assert result.exit_code == 2


def test_a_server_that_is_not_there_fails_its_task(address: str, tmp_path: Path) -> None:
    path = write(tmp_path, "tasks:\n  a: {http: {url: 'http://127.0.0.1:1/'}}\n")
    result = asterism("run", path)
    assert result.exit_code == 1
    assert "a failed" in result.stdout
