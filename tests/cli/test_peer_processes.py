"""Peers as real processes: a SQLite file each, TLS on loopback, and failures between them."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from asterism.base.private_file import write_private
from asterism.fleet.fleet import Fleet
from asterism.fleet.one_time_code import new_secret, secret_hash
from asterism.peers.invitations import parse_invitation
from tests.cli.cli_scenes import heard
from tests.cli.command_scenes import Scene, pids_in, until
from tests.cli.peer_scenes import House, address_of, befriend, invitation, lasting_place, refused, serving
from tests.process_scenes import PATIENCE, ended, gone

QUICK = ("--heartbeat", "0.3", "--heartbeat-timeout", "30")  # fast syncs, and a long timeout
WATCHFUL = (*QUICK, "--every", "0.2")


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def sleeper(scene: Scene, *options: str) -> Path:
    """A workflow that writes its process ids to a file, and then sleeps until it is stopped."""
    scene.ok("workflow", "add", "nap", "--shell", "sleep 1000 & echo $$ $! > pids; wait", *options)
    return pipe(scene)


def pipe(scene: Scene) -> Path:
    place = scene.folder / "pids"
    os.mkfifo(place)
    return place


def owner(told: dict[str, Any]) -> tuple[str, str, int]:
    return told["status"], told["device"], told["epoch"]


# -- the first meeting -------------------------------------------------------------------------------------------------


def test_two_stores_become_peers_and_sync_their_runs(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    kitchen.workflow("cook", shell="echo soup")
    laptop.workflow("write", shell="echo letter")
    here = [kitchen.create("cook").id for _ in range(2)]
    there = laptop.create("write", {"to": "ann"}).id
    with serving(kitchen) as url:
        told = laptop.json("peer", "accept", invitation(kitchen, "laptop", url), "--name", "kitchen")
        assert (told["peer"], told["sent"], told["taken"], told["refused"], told["lost"]) == ("kitchen", 1, 2, 0, [])
        for scene in (laptop, kitchen):
            assert {run["id"] for run in scene.json("runs", "list")} == {*here, there}
        assert kitchen.json("runs", "show", there)["input"] == {"to": "ann"}
        again = laptop.ok("peer", "sync", str(laptop.file), url)
        assert again == "Synced with kitchen: 0 records sent, 0 records received.\n"
        more = kitchen.create("cook").id
        assert laptop.ok("peer", "sync", "kitchen") == "Synced with kitchen: 0 records sent, 1 record received.\n"
        assert laptop.json("runs", "show", more)["status"] == "created"
        [peer] = laptop.json("peer", "list")
        assert (peer["name"], peer["state"], peer["url"]) == ("kitchen", "met", url)
        [other] = kitchen.json("peer", "list")
        assert (other["name"], other["state"], other["url"]) == ("laptop", "met", None)
        assert abs(peer["skew"]) < 60


def test_the_client_prints_refusals_of_the_other_side(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    laptop.workflow("cook", shell="echo salad")
    kitchen.workflow("cook")
    kitchen.ok("fleet", "set", "--peer-runs", "0")
    with serving(kitchen) as url:
        befriend(kitchen, "laptop", laptop, url, "kitchen")
        laptop.create("cook")
        words = "peer laptop has used its quota of 0 runs in this store"
        assert f"Refused by kitchen: {words}" in laptop.ok("peer", "sync", "kitchen")
        laptop.create("cook")
        assert laptop.json("peer", "sync", "kitchen")["refused_there"][0].startswith(words)


def test_blobs_are_synced(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    laptop.workflow("count", shell='wc -c < "$ASTERISM_INPUT"')
    text = "x" * 300_000
    run = laptop.create("count", {"text": text})
    with serving(kitchen) as url:
        befriend(kitchen, "laptop", laptop, url, "kitchen")
        run_input = kitchen.ask(lambda fleet: _input(fleet, run.id))
    assert run_input == {"text": text}


async def _input(fleet: Any, run_id: str) -> Any:
    return await fleet.blobs.fetch((await fleet.run(run_id)).input)


class _Cut(socketserver.BaseRequestHandler):
    """A proxy that hangs up on both sides after so many bytes."""

    def handle(self) -> None:
        cut: Cutting = self.server  # type: ignore[assignment]
        with socket.create_connection(("127.0.0.1", cut.port)) as there:
            sides = {self.request: there, there: self.request}
            while True:
                for side in select.select(list(sides), [], [])[0]:
                    data = side.recv(65536)
                    cut.left -= len(data)
                    if not data or cut.left < 0:
                        return
                    sides[side].sendall(data)


class Cutting(socketserver.ThreadingTCPServer):
    port, left = 0, 0


@contextmanager
def cutting(port: int) -> Iterator[Cutting]:
    """A bad connection to a port of this machine."""
    with Cutting(("127.0.0.1", 0), _Cut) as server:
        server.port = port
        with in_thread(server):
            yield server


@contextmanager
def in_thread(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


@pytest.mark.long
def test_a_sync_that_is_cut_off_anywhere_continues(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    for scene in (laptop, kitchen):
        scene.workflow(f"work-{scene.folder.name}")
        scene.ask(lambda fleet, name=f"work-{scene.folder.name}": _many(fleet, name))
    with serving(kitchen) as url, cutting(int(url.rpartition(":")[2])) as line:
        at = f"https://127.0.0.1:{line.server_address[1]}"
        invited = invitation(kitchen, "laptop", at)
        line.left = 4000
        codes = [laptop.run("peer", "accept", invited, "--name", "kitchen").exit_code]
        for bytes_ in (8000, 40_000, 150_000, 300_000, 500_000):
            line.left = bytes_
            codes.append(laptop.run("peer", "sync", "kitchen").exit_code)
        assert codes[:3] == [75, 75, 75]
        line.left = 1 << 40
        assert laptop.run("peer", "sync", "kitchen").exit_code == 0
        assert laptop.ok("peer", "sync", "kitchen") == "Synced with kitchen: 0 records sent, 0 records received.\n"
    lists = [scene.json("runs", "list", "--limit", "0") for scene in (laptop, kitchen)]
    assert len(lists[0]) == len(lists[1]) == 1400
    assert [run["id"] for run in lists[0]] == [run["id"] for run in lists[1]]


async def _many(fleet: Fleet, name: str) -> None:
    for _ in range(7):
        await asyncio.gather(*(fleet.create(name, {"text": "x" * 100}) for _ in range(100)))


# -- continuously ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_run_of_one_store_is_executed_by_a_device_of_the_other(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    laptop.ok("workflow", "add", "cook", "--shell", 'echo "soup by $ASTERISM_DEVICE"', "--needs", "stove", *QUICK)
    with kitchen.process("device", "join", "cooker", "--can", "stove", "--listen", "127.0.0.1:0") as cooker:
        url = address_of(cooker)
        heard(cooker, "joined as cooker")
        befriend(kitchen, "laptop", laptop, url, "kitchen")
        with laptop.process("device", "join", "writer", "--peer", "kitchen") as writer:
            heard(writer, "joined as writer")
            told = laptop.json("runs", "create", "cook", "--wait")
            assert (told["status"], told["device"], told["output"]) == ("completed", "cooker", "soup by cooker")
            heard(cooker, f"finished run {told['id'][-8:]} (cook)")
            assert kitchen.json("runs", "show", told["id"])["output"] == "soup by cooker"
            for process in (writer, cooker):
                process.send_signal(signal.SIGINT)
            for process in (writer, cooker):
                code, output, errors = ended(process)
                assert (code, output) == (0, ""), errors
                assert "Traceback" not in errors


@pytest.mark.long
def test_a_peer_that_returns_is_synced_again(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    laptop.ok("workflow", "add", "cook", "--shell", "echo soup", "--needs", "stove")
    with serving(kitchen, lasting_place()) as url:
        befriend(kitchen, "laptop", laptop, url, "kitchen")
    with laptop.process("device", "join", "writer", "--peer", url) as writer:
        heard(writer, "cannot sync with peer kitchen: ")
        run_id = laptop.json("runs", "create", "cook")["id"]
        with serving(kitchen, url.removeprefix("https://")):
            heard(writer, "syncing with peer kitchen again, after ")
            assert kitchen.json("runs", "show", run_id)["workflow"] == "cook"


# -- apart -------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_after_a_partition_a_run_has_one_owner_and_the_loser_stops(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    here = sleeper(laptop, *QUICK, "--backoff", "0")
    there = pipe(kitchen)
    kitchen.ask(lambda fleet: fleet.configure(peer_timeout=1.0))
    with (
        laptop.process("device", "join", "writer", *WATCHFUL) as writer,
        kitchen.process("device", "join", "cooker", "--listen", "127.0.0.1:0", *WATCHFUL) as cooker,
    ):
        url = address_of(cooker)
        heard(writer, "joined as writer")
        run_id = laptop.json("runs", "create", "nap")["id"]
        mine = pids_in(here)
        befriend(kitchen, "laptop", laptop, url, "kitchen")
        # the laptop is silent for longer than peer_timeout: the kitchen takes the run over, and both own it
        theirs = pids_in(there)
        assert owner(until(kitchen, run_id, status="processing", device="cooker")) == ("processing", "cooker", 2)
        assert owner(laptop.json("runs", "show", run_id)) == ("processing", "writer", 1)
        # they sync
        told = laptop.json("peer", "sync", "kitchen")
        [lost] = told["lost"]
        assert lost.startswith(f"writer no longer owns run {run_id} (epoch 1): ")
        assert gone(mine)
        for scene in (laptop, kitchen):
            assert owner(scene.json("runs", "show", run_id)) == ("processing", "cooker", 2)
        notices = laptop.json("runs", "show", run_id)["notices"]
        assert [(notice["kind"], notice["device"]) for notice in notices if notice["kind"] == "conflict"] == [
            ("conflict", "writer")
        ]
        assert lost in [notice["message"] for notice in notices]
        heard(writer, f"stopped run {run_id[-8:]}")
        # the loser's user keeps the work
        kept = laptop.json("peer", "keep", run_id[-8:])
        assert (kept["retry_of"], kept["pinned"]) == (run_id, "writer")
        again = pids_in(here)
        for run, pids in ((kept["id"], again), (run_id, theirs)):
            scene = laptop if pids is again else kitchen
            scene.ok("runs", "cancel", run)
            assert gone(pids)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_wrong_token_is_refused(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    with serving(kitchen) as url:
        befriend(kitchen, "laptop", laptop, url, "kitchen")
        tokens = json.dumps({"kitchen": "A" * 43}).encode()
        write_private(laptop.folder / "fleet.db-peers.json", tokens, replace=True)
        refused(laptop.run("peer", "sync", "kitchen"), "answered 401: unknown token")


def test_a_server_with_another_certificate_is_refused(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    with serving(kitchen, lasting_place()) as url:
        befriend(kitchen, "laptop", laptop, url, "kitchen")
    (kitchen.folder / "fleet.db-identity.pem").unlink()
    with serving(kitchen, url.removeprefix("https://")):
        refused(laptop.run("peer", "sync", "kitchen"), f"the certificate of {url} is not the one in the invitation")


def test_an_expired_invitation_is_refused_and_leaves_nothing(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    with serving(kitchen) as url:
        late = invitation(kitchen, "laptop", url, "--valid", "0")
        refused(laptop.run("peer", "accept", late), "answered 403: the invitation of laptop has expired")
        assert laptop.json("peer", "list") == []
        assert json.loads((laptop.folder / "fleet.db-peers.json").read_text()) == {}
        laptop.ok("peer", "accept", invitation(kitchen, "laptop", url))


@pytest.mark.long
def test_an_invitation_serves_one_store(house: House) -> None:
    laptop, kitchen, attic = house.laptop, house.kitchen, house.attic
    kitchen.workflow("cook")
    kitchen.create("cook")
    with serving(kitchen) as url:
        line = invitation(kitchen, "laptop", url)
        laptop.ok("peer", "accept", line)
        refused(attic.run("peer", "accept", line), "answered 403: the invitation of laptop was already used")
        assert attic.json("peer", "list") == []
        assert attic.json("runs", "list") == []
        laptop.ok("peer", "sync", url)
        refused(kitchen.run("peer", "invite", "laptop", "--url", url), "there is already a peer 'laptop'")


def test_a_copy_of_the_same_store_is_refused(house: House) -> None:
    laptop, kitchen, copy = house.laptop, house.kitchen, house.copy
    kitchen.workflow("cook")
    kitchen.create("cook")
    with serving(kitchen, lasting_place()) as url:
        befriend(kitchen, "laptop", laptop, url, "kitchen")
    shutil.copy(laptop.file, copy.file)  # no process has it open
    with serving(kitchen, url.removeprefix("https://")):
        line = invitation(kitchen, "another", url)
        refused(copy.run("peer", "accept", line, "--name", "cooker"), "is already peer laptop, not another")
    with serving(laptop) as url:
        line = invitation(laptop, "copy", url)
        refused(copy.run("peer", "accept", line, "--name", "laptop"), "is a copy of this store")


def test_an_unreachable_peer_has_its_own_exit_code(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    with serving(kitchen) as url:
        befriend(kitchen, "laptop", laptop, url, "kitchen")
    refused(laptop.run("peer", "sync", "kitchen"), f"{url} is unreachable", code=75)
    refused(laptop.run("peer", "sync", "kitchen", "--json"), f"{url} is unreachable", code=75)


def test_invalid_requests_do_not_harm_a_server(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    with serving(kitchen) as url:
        wanted = parse_invitation(invitation(kitchen, "laptop", url))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        secret = new_secret()
        headers = {"authorization": f"Bearer {secret}"}
        options: dict[str, Any] = {"verify": context, "headers": headers, "trust_env": False, "timeout": PATIENCE}
        with httpx.Client(base_url=url, **options) as client:
            redeeming = {"authorization": f"Bearer {wanted.token}"}
            answer = client.post("/v1/accept", json={"secret_sha256": secret_hash(secret)}, headers=redeeming)
            assert answer.status_code == 200
            for body, status in ((b"{", 400), (b"[]", 400), (b'{"protocol": 99}', 409), (b"{}", 409)):
                answer = client.post("/v1/meet", content=body)
                assert (answer.status_code, list(answer.json())) == (status, ["error"]), answer.text
            large = b'{"text": "' + b"x" * (17 << 20) + b'"}'
            with suppress(httpx.TransportError):  # it may hang up before it has read everything
                assert client.post("/v1/meet", content=large).status_code == 413
            assert client.get("/v1/blobs/" + "ab" * 32).status_code == 403
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https", "http"), trust_env=False)
        befriend(kitchen, "laptop", laptop, url, "kitchen")  # invited again: the invitation was not used


def test_another_service_at_the_address_is_reported(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    line = invitation(kitchen, "laptop", "https://127.0.0.1:1")
    with plain_server() as port:
        refused(laptop.run("peer", "accept", line.replace(":1/", f":{port}/")), "does not use TLS as a peer does")
        assert laptop.json("peer", "list") == []


class _Another(socketserver.StreamRequestHandler):
    """Another service, which answers without TLS."""

    def handle(self) -> None:
        self.wfile.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")


@contextmanager
def plain_server() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Another) as server, in_thread(server):
        yield server.server_address[1]


# -- leaving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_stops_on_a_signal(house: House, number: signal.Signals) -> None:
    kitchen = house.kitchen.made()
    with kitchen.process("peer", "serve", "--listen", "127.0.0.1:0", "--json") as process:
        line = json.loads(heard(process, "listening for peers on ")[-1])
        url = line["message"].rpartition(" ")[2]
        befriend(kitchen, "laptop", house.laptop, url, "kitchen")
        process.send_signal(number)
        code, output, errors = ended(process)
    assert (code, json.loads(output)) == (0, {"store": kitchen.url, "url": url}), errors


def test_two_servers_cannot_share_an_address(house: House) -> None:
    with serving(house.kitchen) as url:
        place = url.removeprefix("https://")
        result = house.laptop.made().run("peer", "serve", "--listen", place)
        refused(result, f"cannot listen on {place}: another process listens there")


def test_the_runs_of_a_removed_peer_are_listed_and_run_only_when_they_are_adopted(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    laptop.workflow("write", shell="echo letter")
    run = laptop.create("write")
    with serving(kitchen) as url:
        befriend(kitchen, "laptop", laptop, url, "kitchen")
    told = kitchen.run("peer", "remove", "laptop")
    assert f"held: {run.id} (write, created)\n" in told.stdout
    assert "asterism peer remove laptop --adopt" in told.stderr
    listed = kitchen.run("runs", "list")
    assert "Held because peer laptop was removed: " in listed.stderr
    assert [document["held_for"] for document in kitchen.json("runs", "list")] == ["laptop"]
    assert "asterism peer remove laptop --adopt" in kitchen.ok("runs", "why", run.id)
    with kitchen.process("device", "join", "cooker", *WATCHFUL) as cooker:
        heard(cooker, "joined as cooker")
        own = kitchen.workflow("cook", shell="echo soup")
        until(kitchen, kitchen.create(own.name).id, status="completed")  # it works on this run only
        assert kitchen.json("runs", "show", run.id)["status"] == "created"
        assert kitchen.json("peer", "remove", "laptop", "--adopt")["adopted"] == [run.id]
        until(kitchen, run.id, status="completed")


@pytest.mark.long
def test_a_claimed_run_of_a_removed_peer_never_starts(house: House, tmp_path: Path) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    gate, done = tmp_path / "gate", tmp_path / "done"
    os.mkfifo(gate)
    laptop.workflow("write", shell=f"touch {done}")
    kitchen.workflow("wait", shell=f"cat {gate}")
    kitchen.workflow("cook", shell="echo soup")
    options = ("--slots", "1", "--backlog", "3", "--listen", "127.0.0.1:0", *WATCHFUL)
    with kitchen.process("device", "join", "cooker", *options) as cooker:
        url = address_of(cooker)
        heard(cooker, "joined as cooker")
        befriend(kitchen, "laptop", laptop, url, "kitchen")
        busy = kitchen.json("runs", "create", "wait")["id"]
        until(kitchen, busy, status="processing")
        queued = laptop.json("runs", "create", "write")["id"]
        laptop.ok("peer", "sync", "kitchen")
        until(kitchen, queued, status="claimed")
        told = kitchen.run("peer", "remove", "laptop")
        assert f"held: {queued} (write, reassigning)\n" in told.stdout
        gate.write_text("go on")
        until(kitchen, busy, status="completed")
        until(kitchen, kitchen.json("runs", "create", "cook")["id"], status="completed")  # its slot was free
        assert kitchen.json("runs", "show", queued)["status"] == "paused"
        assert not done.exists()
