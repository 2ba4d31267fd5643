"""The exchange of an invitation for a secret, with either side killed at any point."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from asterism.peers.invitations import parse_invitation
from tests.cli.command_scenes import Scene, until
from tests.cli.peer_scenes import House, address_of, befriend, invitation, lasting_place, refused, serving
from tests.forked_commands import ForkedProgram
from tests.long_tests import rest_long
from tests.process_scenes import PATIENCE

KILLED = """
import os, signal, sys
from asterism.peers import peer_server, private_files
owner, name, call, when = {point!r}
owner = {{"tokens": private_files.TokenFile, "guard": peer_server}}[owner]
real, calls = getattr(owner, name), []

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def plain(*words):
    calls.append(1)
    if len(calls) == call and when == "before":
        die()
    real(*words)
    if len(calls) == call and when == "after":
        die()

async def waiting(*words):
    if when == "before":
        die()
    await real(*words)
    die()

setattr(owner, name, waiting if name == "redeem" else plain)
from asterism.cli.main import main
main()
"""
"""The command line in a process that is killed at some point."""


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@contextmanager
def doomed(scene: Scene, point: tuple[Any, ...], *words: str) -> Iterator[subprocess.Popen[str]]:
    script = KILLED.format(point=point)
    process = ForkedProgram(
        script,
        *words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **scene.env},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def is_finished(laptop: Scene, kitchen: Scene, line: str) -> None:
    """Check that they are peers, the laptop has a secret of its own, and the invitation is worthless."""
    assert [peer["state"] for peer in laptop.json("peer", "list")] == ["met"]
    assert [peer["state"] for peer in kitchen.json("peer", "list")] == ["met"]
    secrets = json.loads((laptop.folder / "fleet.db-peers.json").read_text())
    assert isinstance(secrets["kitchen"], str)
    assert secrets["kitchen"] != parse_invitation(line).token


# -- killed meanwhile --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", rest_long([1, 2], 1), ids=["the secret is written down", "it is exchanged"])
@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.long), "after"])
def test_a_killed_guest_continues_its_acceptance(house: House, call: int, when: str) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    with serving(kitchen) as url:
        line = invitation(kitchen, "laptop", url, "--as", "kitchen")
        with doomed(laptop, ("tokens", "put", call, when), "peer", "accept", line) as process:
            assert process.wait(PATIENCE) == -signal.SIGKILL
        laptop.ok("peer", "accept", "-", stdin=line)
        is_finished(laptop, kitchen, line)
        laptop.ok("peer", "sync", "kitchen")


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.long), "after"])
def test_a_killed_host_answers_the_repeated_request(house: House, when: str) -> None:
    laptop, kitchen = house.laptop, house.kitchen.made()
    place = lasting_place()
    line = invitation(kitchen, "laptop", f"https://{place}", "--as", "kitchen")
    with doomed(kitchen, ("guard", "redeem", 1, when), "peer", "serve", "--listen", place) as process:
        assert address_of(process) == f"https://{place}"
        refused(laptop.run("peer", "accept", line), "is unreachable", code=75)  # the outcome is unknown
        assert process.wait(PATIENCE) == -signal.SIGKILL
    with serving(kitchen, place):
        laptop.ok("peer", "sync", "kitchen")
        is_finished(laptop, kitchen, line)


# -- what was used is worth nothing ------------------------------------------------------------------------------------


def test_a_used_invitation_and_a_store_id_do_not_authenticate(house: House) -> None:
    """The line may be in a shell history, and every peer knows the id of the store."""
    laptop, kitchen, thief = house.laptop, house.kitchen, house.thief
    kitchen.workflow("cook")
    kitchen.create("cook")
    with serving(kitchen) as url:
        line = invitation(kitchen, "laptop", url, "--as", "kitchen")
        laptop.ok("peer", "accept", line)
        thief.ask(lambda fleet: _disguised(fleet, laptop))
        refused(thief.run("peer", "accept", line), "403: the invitation of laptop was already used")
        assert thief.json("runs", "list") == []
        laptop.ok("peer", "sync", "kitchen")


async def _disguised(fleet: Any, as_whom: Scene) -> None:
    """A store file with the id of another store."""
    from asterism.fleet.device.membership import store_identity
    from asterism.fleet.fleet import Fleet
    from asterism.store.protocol import PutRegister

    async with await Fleet.open(as_whom.url) as other:
        stolen = await store_identity(other.store, other.clock)
    await fleet.store.commit([PutRegister("store/id", {"id": stolen}, None)])


def test_an_invitation_is_read_from_standard_input(house: House) -> None:
    laptop, kitchen = house.laptop, house.kitchen
    with serving(kitchen) as url:
        line = kitchen.ok("peer", "invite", "laptop", "--as", "kitchen", "--url", url)
        assert "kitchen is now a peer" in laptop.run("peer", "accept", "-", stdin=line).stderr
    refused(laptop.run("peer", "accept", "-", stdin="no"), "this is not an invitation")


# -- silent connections ------------------------------------------------------------------------------------------------


@contextmanager
def few_descriptors(number: int) -> Iterator[None]:
    """Limit the file descriptors of processes that start in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
def test_a_device_and_its_peers_survive_a_flood_of_connections(house: House) -> None:
    """It has 256 file descriptors, and 300 idle connections are opened."""
    laptop, kitchen = house.laptop, house.kitchen
    kitchen.workflow("cook", shell="echo soup")
    with ExitStack() as stack:
        with few_descriptors(256):
            words = ("device", "join", "cooker", "--listen", "127.0.0.1:0", "--slots", "4", "--heartbeat", "0.3")
            process = stack.enter_context(kitchen.process(*words))
        url = address_of(process)
        befriend(kitchen, "laptop", laptop, url, "kitchen")
        host, port = url.removeprefix("https://").split(":")
        for number in range(300):
            sock = stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE))
            sock.setblocking(False)
            if number % 100 == 99:
                run = kitchen.create("cook")
                until(kitchen, run.id, status="completed")
                laptop.ok("peer", "sync", "kitchen")
                assert laptop.json("runs", "show", run.id)["status"] == "completed"
        assert process.poll() is None
