"""Files over HTTP in flat memory: a device sends and fetches one, and a client gets it from the server."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.command_scenes import Scene
from tests.process_scenes import soon

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is in /proc"),
]

COMMAND = """
import sys
from pathlib import Path
from asterism.cli.main import main

try:
    main()
finally:
    sys.stdout.write(Path("/proc/self/status").read_text())
"""

PLAN = """
asterism: 1
id: film
tasks:
  render:
    shell: head -c {size} /dev/zero > big.bin
    outputs: {{big: big.bin}}
    device: {{needs: [lab]}}
  measure:
    shell: wc -c < big.bin
    inputs: {{big: {{files_from: render.big}}}}
    device: {{needs: [lab]}}
"""

MEGABYTE = 1 << 20

ROOM = 72 * MEGABYTE
"""How much more than a process at rest a process may need, in bytes: a few parts of a file."""


def peak(status: str) -> int:
    match = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def peak_of(process: subprocess.Popen[str]) -> int:
    return peak(Path(f"/proc/{process.pid}/status").read_text())


def command(*words: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **variables}
    return subprocess.Popen([sys.executable, "-c", COMMAND, *words], text=True, stdout=subprocess.PIPE, env=environment)


@contextmanager
def started(*words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    with command(*words, **variables) as process:
        try:
            yield process
        finally:
            process.kill()


def done(*words: str, **variables: str) -> str:
    with command(*words, **variables) as process:
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return output


@pytest.mark.parametrize("size", [96 * MEGABYTE, pytest.param(1024 * MEGABYTE, marks=pytest.mark.long)])
def test_a_file_passes_through_a_device_a_server_and_a_client_in_flat_memory(tmp_path: Path, size: int) -> None:
    scene = Scene(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    variables = {f"XDG_{kind}_HOME": str(tmp_path / kind) for kind in ("STATE", "CONFIG", "DATA")}
    plan = tmp_path / "film.yaml"
    plan.write_text(PLAN.format(size=size))
    with started("serve", "--store", scene.url, "--listen", f"127.0.0.1:{port}", "--no-login", **variables) as server:
        soon(lambda: listens(port))
        scene.ok("fleet", "set", "--device-bytes", "10G")
        code = scene.json("device", "invite", "--name", "lab", "--can", "lab", "--server", url)["code"]
        token = scene.json("token", "create", "--scope", "admin", "--for", "ann")["token"]
        client = {**variables, "ASTERISM_TOKEN": token, "ASTERISM_STORE": url}
        with started("device", "join", "lab", "--server", url, "--code", code, "--can", "lab", **variables) as device:
            soon(lambda: "lab" in scene.ok("device", "list"))
            at_rest = {"server": peak_of(server), "device": peak_of(device)}
            alone = peak(done("plan", "list", **client))
            assert f" {size}\n" in done("run", str(plan), "--plain", **client)
            got = peak(done("plan", "get", "film", "render", "big", "-o", str(tmp_path / "into"), **client))
            assert (tmp_path / "into/big.bin").stat().st_size == size
            more = {
                "server": peak_of(server) - at_rest["server"],
                "device": peak_of(device) - at_rest["device"],
                "client": got - alone,
            }
    assert {name: needed for name, needed in more.items() if needed > ROOM} == {}


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
