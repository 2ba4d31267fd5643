"""The package as ``pip``, ``pipx`` and ``uvx`` install it: from its wheel, into an environment of its own.

Nothing is fetched. The wheel is built from the checkout, and the dependencies are packed into wheels again from where
the tests have them. So the installers find what the package declares, and nothing else.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from asterism.base.startup import VERSION
from tests.process_scenes import PATIENCE

pytestmark = [pytest.mark.long, pytest.mark.slow(together=True)]

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
KEY = "a-key-that-nobody-may-see"

OFFLINE = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        open({marks!r}, "a").write(event)
        raise OSError("the network is away")

sys.addaudithook(refuse)
"""
"""A module that each Python of an environment imports at its start."""


def called(words: Sequence[str | Path], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A command without a terminal, and with no variables but these."""
    return subprocess.run(
        words, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE
    )


def pip(*words: str | Path) -> subprocess.CompletedProcess[str]:
    own = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return called([sys.executable, "-m", "pip", *words], ROOT, **{**os.environ, **own})


# -- wheels --------------------------------------------------------------------------------------------------------


def dependencies() -> dict[str, Distribution]:
    """What the package needs without an extra, as it is installed here."""
    needed: dict[str, Distribution] = {}
    to_visit = ["asterism"]
    while to_visit:
        for need in map(Requirement, distribution(to_visit.pop()).requires or []):
            name = canonicalize_name(need.name)
            if name not in needed and (need.marker is None or need.marker.evaluate({"extra": ""})):
                needed[name] = distribution(name)
                to_visit.append(name)
    return needed


def pack(installed: Distribution, folder: Path) -> None:
    """Write the wheel of what is installed. Commands are left out: installers make them."""
    tag = re.findall(r"^Tag: (.+)$", installed.read_text("WHEEL") or "", re.MULTILINE)[0]
    name = re.sub(r"[-_.]+", "_", installed.name).lower()
    with zipfile.ZipFile(folder / f"{name}-{installed.version}-{tag}.whl", "w") as wheel:
        for file in installed.files or []:
            if ".." not in file.parts and file.suffix != ".pyc":
                wheel.write(str(file.locate()), str(file))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of the checkout, and those of its dependencies."""
    folder = tmp_path_factory.mktemp("wheels")
    built = pip("wheel", "-q", "--no-build-isolation", "--no-deps", "-w", folder, ROOT)
    assert built.returncode == 0, built.stderr
    for installed in dependencies().values():
        pack(installed, folder)
    return folder


def wheel_of(wheels: Path) -> Path:
    [path] = wheels.glob("asterism-*.whl")
    return path


def missing(wheel: Path, source: Path) -> Iterator[str]:
    """The files of a package that its wheel does not have as they are."""
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source).as_posix()
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            if name not in names or packed.read(name) != path.read_bytes():
                yield name


def test_the_wheel_has_every_file_of_the_package(wheels: Path) -> None:
    assert list(missing(wheel_of(wheels), SOURCE)) == []
    kinds = {path.suffix for path in (SOURCE / "asterism").rglob("*") if path.is_file()}
    assert {".py", ".typed", ".md", ".sql", ".html", ".css", ".js"} <= kinds


def test_a_file_that_is_missing_or_different_is_found(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a.py", "b.sql", "c.css"):
        (source / name).write_text(name)
    with zipfile.ZipFile(tmp_path / "wheel", "w") as wheel:
        wheel.writestr("a.py", "a.py")
        wheel.writestr("c.css", "older")
    assert list(missing(tmp_path / "wheel", source)) == ["b.sql", "c.css"]


# -- an environment of its own -------------------------------------------------------------------------------------


class Environment:
    """A fresh environment without pip. Its Pythons have no network, and mark each attempt to use it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marks = folder, folder / "marks"
        venv.create(folder, symlinks=True)
        [packages] = folder.glob("lib/python*/site-packages")
        (packages / "offline.py").write_text(OFFLINE.format(marks=str(self.marks)))
        (packages / "offline.pth").write_text("import offline\n")

    def install(self, wheels: Path) -> subprocess.CompletedProcess[str]:
        return pip("--python", self.folder, "install", "-q", "--find-links", wheels, "asterism")


@pytest.fixture(scope="module")
def environment(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("environment"))
    installed = environment.install(wheels)
    assert installed.returncode == 0, installed.stderr
    return environment


class User:
    """Somebody with an empty folder, an empty home, and by default no programs on the path."""

    def __init__(self, folder: Path, path: str = "") -> None:
        self.path = path
        self.folder, self.home, self.scratch = (folder / name for name in ("work", "home", "scratch"))
        for made in (self.folder, self.home, self.scratch):
            made.mkdir()

    def runs(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        own = {"HOME": str(self.home), "TMPDIR": str(self.scratch), "PATH": self.path, "RELEASE_KEY": KEY}
        return called(words, self.folder, **own)


def check_commands(asterism: Path, user: User) -> None:
    """The command runs, and its version is that of the checkout."""
    done = user.runs(asterism, "--version")
    assert done.stdout == f"asterism {VERSION}\n", done.stderr
    plan = user.home.parent / "plan.yaml"
    plan.write_text("asterism: 1\ntasks:\n  a: {shell: echo hello}\n")
    done = user.runs(asterism, "check", plan)
    assert done.stdout.endswith("is valid: 1 task, 0 dependencies.\n"), done.stderr


def check_demo(asterism: Path, user: User) -> None:
    """The demonstration reaches its end, writes its report, and leaves nothing else."""
    done = user.runs(asterism, "demo", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = [line[10:] for line in done.stdout.splitlines()]
    applied = [line for line in lines if line.startswith("edit by Maintainer applied")]
    assert any("remove task 'docs-pdf' and what depends on it" in line for line in applied)
    assert any("add task 'patch'" in line for line in applied)
    assert any(line.startswith("test-numbers failed after ") for line in lines)
    assert any(line.startswith("retest completed after ") for line in lines)
    assert "State                repaired\n" in done.stdout
    assert "Tasks                17 completed, 1 failed\n" in done.stdout
    report = user.folder / "asterism-report.html"
    assert f"Report: {report.resolve()}\n" in done.stdout
    page = report.read_text("utf-8")
    assert "proofread-pdf" in page
    assert KEY not in page + done.stdout
    assert [*user.folder.iterdir(), *user.home.iterdir(), *user.scratch.iterdir()] == [report]
    # other tasks start or end while the editor reviews the failure
    failed = next(number for number, line in enumerate(lines) if line.startswith("test-numbers failed"))
    repaired = next(number for number, line in enumerate(lines) if "add task 'patch'" in line)
    assert any(" started on " in line or " completed after " in line for line in lines[failed + 1 : repaired])
    assert "\n  OPENAI_API_KEY=… ASTERISM_MODEL=openai:gpt-5 asterism demo\n" in done.stdout


def test_the_demonstration_runs_from_the_wheel_without_network_or_programs(
    environment: Environment, tmp_path: Path
) -> None:
    user = User(tmp_path)
    asterism = environment.folder / "bin" / "asterism"
    check_commands(asterism, user)
    check_demo(asterism, user)
    assert not environment.marks.exists()


def test_what_is_installed_is_complete_and_not_the_checkout(environment: Environment, tmp_path: Path) -> None:
    checked = pip("--python", environment.folder, "check")
    assert checked.returncode == 0, checked.stdout
    script = "import asterism, importlib.util; print(asterism.__file__, importlib.util.find_spec('httpx'))"
    done = User(tmp_path).runs(environment.folder / "bin" / "python", "-c", script)
    place, extra = done.stdout.split()
    assert Path(place).is_relative_to(environment.folder)
    assert extra == "None"


def test_a_connection_of_the_environment_is_noticed(tmp_path: Path) -> None:
    environment, user = Environment(tmp_path / "environment"), User(tmp_path)
    script = "import socket; socket.create_connection(('127.0.0.1', 9))"
    done = user.runs(environment.folder / "bin" / "python", "-P", "-c", script)
    assert "the network is away" in done.stderr
    assert environment.marks.read_text()


def test_without_a_dependency_the_package_is_not_installed(wheels: Path, tmp_path: Path) -> None:
    """The installer fetches nothing, and takes nothing from the environment of the tests."""
    fewer = tmp_path / "wheels"
    shutil.copytree(wheels, fewer, ignore=shutil.ignore_patterns("rich-*"), copy_function=os.link)
    refused = Environment(tmp_path / "environment").install(fewer)
    assert refused.returncode == 1
    assert "No matching distribution found for rich" in refused.stderr


# -- pipx and uvx ----------------------------------------------------------------------------------------------------


def program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)]))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


OWN_INDEX = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_NO_INDEX": "1",
    "UV_NO_CONFIG": "1",
    "UV_NO_INDEX": "1",
    "UV_OFFLINE": "1",
}
"""pipx calls uv, where there is one, and pip otherwise."""


@pytest.mark.long
def test_pipx_installs_the_command(wheels: Path, tmp_path: Path) -> None:
    own = {name: str(tmp_path / name) for name in ("PIPX_HOME", "PIPX_BIN_DIR", "PIPX_MAN_DIR", "UV_CACHE_DIR")}
    own |= {name: str(wheels) for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS")}
    words = [program("pipx"), "install", "--python", sys.executable, wheel_of(wheels)]
    pack(distribution("pip"), wheels)  # pipx has a pip of its own, which it renews
    installed = called(words, tmp_path, **{**os.environ, **OWN_INDEX, **own})
    assert installed.returncode == 0, installed.stderr
    user = User(tmp_path)
    check_commands(tmp_path / "PIPX_BIN_DIR" / "asterism", user)
    check_demo(tmp_path / "PIPX_BIN_DIR" / "asterism", user)


@pytest.mark.long
def test_uvx_runs_the_command(wheels: Path, tmp_path: Path) -> None:
    own = {name: str(tmp_path / name) for name in ("UV_CACHE_DIR", "UV_TOOL_DIR")} | {"UV_FIND_LINKS": str(wheels)}
    words = ["env", *(f"{name}={value}" for name, value in {**OWN_INDEX, **own}.items())]
    words += [program("uvx"), "--quiet", "--python", sys.executable]
    command = tmp_path / "asterism"
    command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} --from {wheel_of(wheels)} asterism "$@"\n')
    command.chmod(0o755)
    user = User(tmp_path, os.defpath)  # the command that uv makes needs programs of the system
    check_commands(command, user)
    check_demo(command, user)
