"""The webhook endpoint: only a signed and new delivery requests a sync."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import json
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from click.testing import Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from asterism.base.http_limits import signed_as_github
from asterism.base.listen_address import CannotServe, parse_listen_address
from asterism.core.series.machine import Series
from asterism.series.github.discovery import SeriesMatcher
from asterism.series.github.sync import SyncWorker
from asterism.series.github.sync_report import SeriesReport, SyncReport
from asterism.series.github.webhook import SeenDeliveries, affected_series
from asterism.series.register import RegisterUnavailable
from asterism.testing.virtual_time import run as virtually
from tests.cli.cli_scenes import asterism
from tests.cli.local_github import GitHubServer, scenes
from tests.forked_commands import ForkedCommand
from tests.process_scenes import PATIENCE

pytestmark = pytest.mark.virtual_time

SECRET = "a secret of some length"


def signature(body: bytes, secret: str = SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def payload(action: str = "closed", **more: Any) -> dict[str, Any]:
    issue = {"number": 1, "title": "RFC-093-01: part 1", "state": "closed", "labels": []}
    return {
        "action": action,
        "issue": issue,
        "repository": {"full_name": "Acme/Rocket"},
        "nonce": str(uuid.uuid4()),
        **more,
    }


# -- what is delivered -------------------------------------------------------------------------------------------------


def test_a_signature_is_right_for_one_body_and_one_secret():
    body = b'{"a": 1}'
    assert signed_as_github(SECRET.encode(), body, signature(body))
    for wrong in (
        "",
        "sha256=",
        signature(body)[:-1],
        signature(b"{}"),
        signature(body, "another secret"),
        "sha1=é",
    ):
        assert not signed_as_github(SECRET.encode(), body, wrong)


def test_a_delivery_is_new_once_by_its_id_and_by_its_body():
    memory = SeenDeliveries(limit=2)
    assert memory.add("1", b"a")
    assert not memory.add("1", b"b")  # the same id
    assert not memory.add("2", b"a")  # the same body under another id, which is not signed
    for number in range(5):
        memory.add(f"more {number}", f"{number}".encode())
    assert memory.add("1", b"a")  # what is remembered is bounded


def concern(event: str, form: dict[str, Any], matcher: SeriesMatcher | None = None) -> frozenset[str] | None:
    return affected_series(event, json.dumps(form).encode(), "acme/rocket", matcher or SeriesMatcher()).series


def test_an_event_concerns_the_series_of_its_issue():
    assert concern("issues", payload()) == {"RFC-093"}
    assert concern("issues", payload("edited", changes={"title": {"from": "OPS-7-1: before"}})) == {"RFC-093", "OPS-7"}
    assert concern("issues", payload("unlabeled", label={"name": "series:house/1"})) == {"RFC-093", "house"}
    assert concern("issues", payload("unlabeled", label={"name": "bot"}), SeriesMatcher(required="bot")) == {"RFC-093"}
    assert concern("issues", payload("edited"), SeriesMatcher(required="bot")) == frozenset()
    assert concern("issues", {**payload(), "issue": {"number": 9, "title": "a question"}}) == frozenset()
    assert concern("issues", {**payload(), "repository": {"full_name": "acme/other"}}) == frozenset()
    assert concern("pull_request", payload("closed")) is None
    assert concern("pull_request", payload("labeled")) == frozenset()
    assert concern("star", payload()) == frozenset()


@pytest.mark.parametrize("name", ["series:OPS-1", "Series:OPS-1"])
def test_an_issue_that_a_label_moves_concerns_the_series_it_left_too(name):
    """In the payload the issue has the label already, in whatever case."""
    issue = {"number": 1, "title": "RFC-093-01: part 1", "labels": [{"name": "bug"}, {"name": "series:OPS-1"}]}
    assert concern("issues", payload("labeled", issue=issue, label={"name": name})) == {"OPS-1", "RFC-093"}
    again = {**issue, "labels": [{"name": "series:OPS-2"}, {"name": "series:OPS-1"}]}
    assert concern("issues", payload("labeled", issue=again, label={"name": "series:OPS-2"})) == {"OPS-2", "OPS-1"}


@pytest.mark.parametrize("action", ["labeled", "unlabeled", "closed"])
@pytest.mark.parametrize("labels", [5, "abc", {"name": "series:OPS-1"}, True])
def test_labels_that_are_no_list_are_refused(action, labels):
    issue = {"number": 1, "title": "RFC-093-01: part 1", "labels": labels}
    body = json.dumps(payload(action, issue=issue, label={"name": "bug"})).encode()
    with pytest.raises(ValueError, match="the labels of the issue are not a list"):
        affected_series("issues", body, "acme/rocket", SeriesMatcher())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"repository": {"full_name": "acme/rocket"}}', b"\xff"])
def test_a_body_that_is_not_githubs_is_refused(body):
    with pytest.raises(ValueError):  # noqa: PT011 - json's own errors are of this kind, and there are several
        affected_series("issues", body, "acme/rocket", SeriesMatcher())


@pytest.mark.parametrize("text", ["", "8080", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ":8080"])
def test_what_is_no_address_cannot_be_listened_on(text):
    with pytest.raises(CannotServe, match="not a valid address"):
        parse_listen_address(text, None, None, False)


def test_more_than_this_machine_takes_tls():
    for here in ("127.0.0.1:0", "[::1]:0", "localhost:8080"):
        assert parse_listen_address(here, None, None, False).is_loopback
    with pytest.raises(CannotServe, match="--tls-cert"):
        parse_listen_address("0.0.0.0:8080", None, None, False)
    with pytest.raises(CannotServe, match="certificate and its key"):
        parse_listen_address("0.0.0.0:8080", "cert.pem", None, False)
    assert not parse_listen_address("0.0.0.0:8080", "cert.pem", "key.pem", False).is_loopback
    assert parse_listen_address("0.0.0.0:8080", None, None, True).behind_proxy


class Noting:
    """A service that notes what is requested, and fails as often as a test wants."""

    def __init__(self, fails: int = 0) -> None:
        self.asked: list[frozenset[str] | None] = []
        self.fails = fails

    async def sync(self, only: frozenset[str] | None = None) -> Any:
        self.asked.append(only)
        if len(self.asked) <= self.fails:
            raise RegisterUnavailable("away")
        return SimpleNamespace(series=[])


async def asked_every_five_minutes(service: Noting, times: int = 20) -> None:
    worker = SyncWorker(cast(Any, service), 600.0)
    working = asyncio.create_task(worker.run())
    await asyncio.sleep(1)
    for _ in range(times):
        await asyncio.sleep(300)
        worker.request(frozenset({"RFC-1"}))
    await asyncio.sleep(1)
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working


def test_everything_is_synced_every_ten_minutes_however_many_events_there_are():
    service = Noting()
    virtually(asked_every_five_minutes(service))
    assert service.asked.count(None) == 11  # at the beginning, and every ten minutes for a hundred
    assert service.asked.count(frozenset({"RFC-1"})) >= 10


def test_everything_that_failed_is_tried_again_before_ten_minutes_are_over():
    service = Noting(fails=3)
    virtually(asked_every_five_minutes(service, times=1))
    assert service.asked == [None, None, None, None, frozenset({"RFC-1"})]


class Troubled:
    """A service in which one series fails with each sync. It notes what it is asked for, and when."""

    def __init__(self, name: str, status: str) -> None:
        self.name, self.status = name, status
        self.asked: list[tuple[float, frozenset[str] | None]] = []

    async def sync(self, only: frozenset[str] | None = None) -> Any:
        self.asked.append((asyncio.get_running_loop().time(), only))
        names = ["OPS-7", "RFC-093"] if only is None else sorted(only)
        reports = [SeriesReport(name, Series(name)) for name in names]
        for series_report in reports:
            if series_report.name == self.name:
                series_report.status, series_report.problem = self.status, f"{self.name} is in trouble"
        return SyncReport("github:acme/rocket", "enforce", reports, {})

    def times(self, name: str) -> list[float]:
        return [at for at, only in self.asked if only is None or name in only]


@pytest.mark.parametrize("status", ["contended", "unavailable", "no view"])
async def test_one_series_in_trouble_is_tried_again_and_holds_up_no_other(status):
    service = Troubled("OPS-7", status)
    loop = asyncio.get_running_loop()
    worker = SyncWorker(cast(Any, service), 3600.0)
    working = asyncio.create_task(worker.run())
    delivered = []
    for _ in range(40):
        await asyncio.sleep(7.3)
        delivered.append(loop.time())
        worker.request(frozenset({"RFC-093"}))
    await asyncio.sleep(1)
    during = worker.problem
    service.status = "in step"
    service.name = ""
    await asyncio.sleep(61)
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    after = worker.problem
    assert [at for at, only in service.asked if only and "RFC-093" in only] == delivered
    tried = service.times("OPS-7")
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert pauses[:4] == pytest.approx([1, 2, 4, 8])
    assert max(pauses) == pytest.approx(10 if status == "contended" else 60)
    assert (during, after) == ("OPS-7 is in trouble", None)  # the problem is shown until it is solved


# -- the service -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(server: Any, *words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``asterism series serve`` as a process, and where it listens."""
    known = {**scenes.environ(server), "GITHUB_WEBHOOK_SECRET": SECRET, **environment}
    options = ["--github", "acme/rocket", "--assign", "robot", "--listen", "127.0.0.1:0", "--every", "1h", *words]
    process = ForkedCommand(
        ["series", "serve", *options], strict=True, stdout=subprocess.PIPE, env={**os.environ, **known}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on ")
        yield process, line.split()[-1].removesuffix("/webhook")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "payload",
    [
        {"action": "\ud800", "repository": {"full_name": "acme/rocket"}, "issue": {"number": 1, "title": "RFC-1-01"}},
        {
            "action": "edited",
            "repository": {"full_name": "acme/rocket"},
            "issue": {"number": 1, "title": "RFC-1-01 \ud800"},
        },
    ],
)
def test_half_of_a_surrogate_pair_is_no_payload_of_github(payload):
    """GitHub sends none, and no answer, log or series could have it."""
    with pytest.raises(ValueError, match="surrogates not allowed"):
        affected_series("issues", json.dumps(payload).encode(), "acme/rocket", SeriesMatcher())
    whole = json.loads(json.dumps(payload).replace("\\ud800", "\\ud83d\\ude00"))
    affected_series("issues", json.dumps(whole).encode(), "acme/rocket", SeriesMatcher())


def deliver(
    url: str, form: Any, event: str = "issues", *, sign: str | None = None, delivery: str | None = None
) -> httpx.Response:
    body = form if isinstance(form, bytes) else json.dumps(form).encode()
    headers = {"X-GitHub-Event": event, "X-GitHub-Delivery": delivery or str(uuid.uuid4())}
    headers["X-Hub-Signature-256"] = signature(body) if sign is None else sign
    return httpx.post(f"{url}/webhook", content=body, headers=headers, timeout=PATIENCE)


HOUR = 3600.0
"""What ``serving`` gives as --every, in seconds."""


@pytest.fixture
def server() -> Iterator[GitHubServer]:
    """For commands that are processes."""
    with GitHubServer(scenes.world_of(), listening=True) as running:
        yield running
        assert running.world.doubles == []


def in_rest(server: GitHubServer) -> bool:
    """Whether the sync at the beginning is over: the turn to make the tracking issue has been given back."""
    turns = server.world.documents("refs/asterism/turns/")
    shown = any("asterism-series" in issue.labels for issue in server.world.listed())
    return shown and all(json.loads(text)["holder"] is None for text in turns.values())


def assigned_is(*numbers: int) -> Any:
    return lambda world: world.assigned_by_series().get("RFC-093", []) == list(numbers)


def test_a_merge_that_is_delivered_promotes_the_next_at_once(server, capsys, tmp_path):
    figures = tmp_path / "m.json"
    with serving(server, "--metrics", str(figures)) as (process, url):
        assert server.wait_for(assigned_is(1))  # it begins with a sync of everything
        assert server.wait_for(lambda world: in_rest(server))
        scenes.merged(server, 1)
        server.forget()
        began = time.monotonic()
        answer = deliver(url, payload())
        assert (answer.status_code, answer.text) == (202, "issue closed: RFC-093\n")
        assert server.wait_for(assigned_is(2))
        took = time.monotonic() - began
        surveys = [path for method, path, _ in server.log if path.endswith("/git/matching-refs/asterism/")]
        assert len(surveys) == 1, "the first sync after the delivery did it"
        assert took < HOUR / 20, "and not the one that comes every hour"
        scenes.merged(server, 2)
        assert deliver(url, payload(), "pull_request").text == "pull request closed: all series\n"
        assert server.wait_for(assigned_is(3))
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    assert json.loads(figures.read_text())["total"]["assigned"] >= 2
    with capsys.disabled():
        print(f"\nfrom the delivery to the assignment: {took * 1000:.0f} ms ", end="")


@pytest.mark.long
def test_a_service_of_an_app_outlives_its_token(server, tmp_path):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    server.app_key = key.public_key()
    file = tmp_path / "app.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    with serving(server, GITHUB_APP_ID="77", GITHUB_APP_PRIVATE_KEY_FILE=str(file)) as (_, url):
        assert server.wait_for(assigned_is(1))
        assert server.wait_for(lambda world: in_rest(server))
        server.call(lambda world: server.tokens.clear())
        scenes.merged(server, 1)
        assert deliver(url, payload()).status_code == 202
        assert server.wait_for(assigned_is(2))
    assert [path for _, path, _ in server.log].count("/app/installations/7/access_tokens") == 2


def test_what_is_not_signed_not_new_or_not_ours_leads_to_nothing(server):
    with serving(server) as (_, url):
        assert server.wait_for(lambda world: any("asterism-series" in issue.labels for issue in world.listed()))
        assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code in (200, 503)
        first = payload("edited")
        assert deliver(url, first, delivery="one").status_code == 202
        asked = deliver(url, first, delivery="one")
        assert (asked.status_code, asked.text) == (200, "ignored: delivered before\n")
        assert deliver(url, first, delivery="another").text == "ignored: delivered before\n"
        assert deliver(url, payload(), sign="sha256=" + "0" * 64).status_code == 401
        assert deliver(url, payload(), sign="").status_code == 401
        assert deliver(url, {}, "ping").text == "pong\n"
        assert deliver(url, payload(), "star").text == "ignored: the event star changes no series\n"
        assert deliver(url, {**payload(), "repository": {"full_name": "a/b"}}).text == "ignored: another repository\n"
        assert deliver(url, b"not json").status_code == 400
        assert httpx.get(f"{url}/webhook", timeout=PATIENCE).status_code == 405
        assert httpx.get(f"{url}/", timeout=PATIENCE).status_code == 404
        assert "asterism_series_assigned_total" in httpx.get(f"{url}/metrics", timeout=PATIENCE).text


def test_a_body_that_is_too_large_is_not_read_to_its_end(server):
    with serving(server) as (_, url):
        host, port = url.removeprefix("http://").split(":")
        signed = b"POST /webhook HTTP/1.1\r\nHost: x\r\nX-Hub-Signature-256: sha256=00\r\n"
        with socket.create_connection((host, int(port))) as link:
            link.sendall(signed + b"Content-Length: 100000000\r\n\r\n")
            assert b" 413 " in link.recv(1000)
        with socket.create_connection((host, int(port))) as link:  # one that is not even signed
            link.sendall(b"POST /webhook HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
            assert b" 401 " in link.recv(1000)
        with socket.create_connection((host, int(port))) as link:  # one that does not say how much it will be
            link.sendall(signed + b"Transfer-Encoding: chunked\r\n\r\n")
            assert b" 411 " in link.recv(1000)


@pytest.mark.long
def test_silent_and_slow_connections_do_not_keep_deliveries_out(server):
    with serving(server) as (_, url), contextlib.ExitStack() as stack:
        host, port = url.removeprefix("http://").split(":")
        for number in range(250):
            link = stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE))
            if number % 5 == 0:  # these begin a large body, and never go on
                link.sendall(b"POST /webhook HTTP/1.1\r\nHost: x\r\nX-Hub-Signature-256: sha256=00\r\n")
                link.sendall(b"Content-Length: 5000000\r\n\r\n{")
        assert deliver(url, payload()).status_code == 202
        assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code in (200, 503)  # it says how the sync went


@pytest.mark.long
def test_a_github_that_is_away_for_a_while_is_asked_again(server):
    server.faults.drop = 1.0
    with serving(server) as (_, url):
        assert server.wait_for(lambda world: server.counted["dropped"] >= 4)
        server.faults.drop = 0.0
        assert server.wait_for(assigned_is(1))
        assert deliver(url, payload("edited")).status_code == 202


def serve(server: Any, monkeypatch: pytest.MonkeyPatch, secret: str, *words: str) -> Result:
    """``asterism series serve`` in this process, for a command that is refused."""
    for name, value in {**scenes.environ(server), "GITHUB_WEBHOOK_SECRET": secret}.items():
        monkeypatch.setenv(name, value)
    return asterism("series", "serve", "--github", "acme/rocket", "--assign", "robot", *words)


@pytest.mark.parametrize(
    ("words", "secret", "said"),
    [
        ([], "", "needs a secret"),
        ([], "short", "at least 16 characters"),
        (["--listen", "0.0.0.0:0"], SECRET, "--behind-proxy"),
        (["--listen", "nowhere"], SECRET, "not a valid address"),
        (["--every", "0s"], SECRET, "above zero"),
    ],
)
def test_what_would_be_unsafe_or_makes_no_sense_is_refused(server, monkeypatch, words, secret, said):
    done = serve(server, monkeypatch, secret, *words)
    assert (done.exit_code, said in done.stderr) == (64, True), done.output


def test_an_address_that_is_taken_is_told(server, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = serve(server, monkeypatch, SECRET, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert (done.exit_code, "cannot listen on" in done.stderr) == (64, True), done.output
