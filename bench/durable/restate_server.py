"""The server of Restate, a program that its npm package carries: ``python -m bench.durable.restate_server`` fetches it
into a folder that git ignores. Without npm it is left out of the comparison."""

import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from bench.child_process import child_process
from bench.peers.surroundings import environment
from tests.npm_packages import Package, fetch

FOLDER = Path(__file__).parents[2] / ".restate"
PROGRAM = FOLDER / "restate-server"
VERSION = "1.7.12"
START_LIMIT = 60.0
"""Seconds that it may take to start."""

INTEGRITY = {
    "linux-x64": "sha512-URotJ1AIqaSCDkRMl4OrQfTLH+NYuOZb3ZsP7wxxiuAB6pncgPhTUYSvegTF5PTrAShnNyHNpju9kjf2O3QxoA==",
    "linux-arm64": "sha512-aV7YxWvPhp88MjQtObGDhDCTwCBa68wwZOAMmJqDreO0auHYuSfOqabEx4I90coZsx3zShNusppbTPKprOa+dw==",
    "darwin-x64": "sha512-ZRS1kk3S4pzIiup2IRRQ3eHoKJSZ43FG4rDe7UbGFWwZ/Yz0xSDa4/3/kiuwaMHXWs/CsKtJe0shx8JCR0DO1g==",
    "darwin-arm64": "sha512-pHrZMaaeBJxXTgI19WG/aJvxuUDQ2nhSDEEJVseTZQiTEdJ7hboPlhvYacgXIE2iMnLMmWkN5XIlXqosHK8Byg==",
}
QUIET = {"DO_NOT_TRACK": "1", "RESTATE_DISABLE_TELEMETRY": "true", "RESTATE_LOG_FILTER": "error"}


def machine() -> str:
    """This machine, as npm names it."""
    processor = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"{platform.system().lower()}-{processor}"


def main() -> None:
    name = machine()
    if name not in INTEGRITY:
        print(f"There is no server of Restate for {name}: the benchmarks leave Restate out.")
    elif shutil.which("npm") is None:
        print("npm is missing, so the server of Restate cannot be fetched: the benchmarks leave Restate out.")
    else:
        FOLDER.mkdir(exist_ok=True)
        package = f"@restatedev/restate-server-{name}"
        try:
            fetch([Package(package, VERSION, INTEGRITY[name], "bin/restate-server", PROGRAM.name)], FOLDER)
        except subprocess.CalledProcessError:
            print("npm could not fetch the server of Restate: the benchmarks leave Restate out.")
        else:
            PROGRAM.chmod(0o755)


@contextmanager
def running(folder: Path) -> Iterator[Path]:
    """A server as it comes, on sockets in the folder that is yielded: ``ingress.sock`` and ``admin.sock``."""
    command = [str(PROGRAM), "--no-logo", "--listen-mode=unix", "--node-name=bench", f"--base-dir={folder}"]
    with environment(QUIET), child_process(command, terminate=True, stderr=subprocess.DEVNULL) as process:
        sockets = folder / "bench"
        until = time.monotonic() + START_LIMIT
        while not _ready(sockets):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server of Restate did not start: {process.poll()}")
            time.sleep(0.05)
        yield sockets


def client(sockets: Path, name: str) -> httpx.Client:
    """Of one of its sockets."""
    transport = httpx.HTTPTransport(uds=str(sockets / f"{name}.sock"))
    return httpx.Client(transport=transport, base_url="http://restate", timeout=START_LIMIT)


def _ready(sockets: Path) -> bool:
    if not all((sockets / f"{name}.sock").exists() for name in ("admin", "ingress")):
        return False
    try:
        with client(sockets, "admin") as admin, client(sockets, "ingress") as ingress:
            return admin.get("/health").is_success and ingress.get("/restate/health").is_success
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    main()
