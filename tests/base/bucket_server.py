"""A real server that speaks S3, on loopback, in a process of its own: the one of moto."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # until who started it ends, whichever way
"""


class BucketServer:
    """``url`` is its address."""

    def __init__(self, url: str) -> None:
        self.url = url

    def create(self, bucket: str) -> None:
        self._send("PUT", f"/{bucket}")

    def check_credentials(self, check: bool) -> None:
        """Refuse credentials that nobody made, or accept any."""
        self._send("POST", "/moto-api/reset-auth", b"0" if check else b"inf")

    def _send(self, method: str, path: str, data: bytes | None = None) -> None:
        heads = {"content-type": "application/octet-stream"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, heads, method=method), timeout=60):
            pass

    def use(self, patch: pytest.MonkeyPatch) -> None:
        """Name the server and some credentials in the environment."""
        patch.setenv("AWS_ENDPOINT_URL", self.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_REGION", "us-east-1")


@contextlib.contextmanager
def bucket_server() -> Iterator[BucketServer]:
    """The server is there for as long as the block lasts."""
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield BucketServer(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()
