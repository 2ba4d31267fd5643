"""Files beside a plan stand in for no module: only what a plan calls is imported from there, and only to execute it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.cli_scenes import read_until
from tests.process_scenes import PATIENCE

COMMAND = ("-P", "-c", "from asterism.cli.main import main; main()")
"""What the command ``asterism`` is: Python puts the folder of the command first, and not the one it is started in."""
MODULE = ("-m", "asterism")


@cache
def installed() -> set[str]:
    """The modules of all packages that are installed here."""
    names = {name for name in packages_distributions() if name.isidentifier() and not name.startswith("_")}
    return names - {"asterism"}


ASKED_FOR = {"brotli", "brotlicffi", "zstandard", "h2", "socksio", "email_validator", "uvloop", "trio", "IPython"}
"""What libraries ask for and do without, if it is not installed."""
OF_PYTHON = {name for name in sys.stdlib_module_names if not name.startswith("_")}

PLAN = """
asterism: 1
tasks:
  greet: {call: "greetings:hello"}
  fetch:
    http: {url: "http://127.0.0.1:9/", expect: [200]}
    after: {greet: {when: "result == 'hello'"}}
"""
"""It fails in part: nobody answers, which is known once the client for HTTP is imported."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A plan, its own module, and files named like the modules that we use; each leaves a mark when it is imported."""
    for name in installed() | ASKED_FOR | OF_PYTHON:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'marks')!r}, 'a').write('{name} ')\nraise ImportError('the wrong {name}')\n"
        )
    (tmp_path / "greetings.py").write_text("def hello():\n    return 'hello'\n")
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path


def marks(folder: Path) -> set[str]:
    path = folder / "marks"
    return set(path.read_text().split()) if path.exists() else set()


def leave_what_is_elsewhere(folder: Path) -> None:
    """To run a plan is to trust its folder: a module that a library asks for, and that is nowhere else (``winreg`` on
    Linux), is found there."""
    for name in ASKED_FOR | OF_PYTHON:
        if find_spec(name) is None:
            (folder / f"{name}.py").unlink()


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ASTERISM"))}
    homes = {name: str(folder / "home") for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    return {**kept, **homes, "ASTERISM_STORE": "sqlite:///fleet.db", "PYTHONDONTWRITEBYTECODE": "1"}


def asterism(folder: Path, *words: str, how: tuple[str, ...] = COMMAND) -> str:
    command = [sys.executable, *how, *words]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode in (0, 2), done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("check", "plan.yaml"),
        pytest.param(("show", "plan.yaml"), marks=pytest.mark.long),
        pytest.param(("show", "plan.yaml", "--json"), marks=pytest.mark.long),
    ],
)
def test_looking_at_a_plan_imports_nothing_from_beside_it(folder: Path, words: tuple[str, ...]) -> None:
    (folder / "greetings.py").write_text(f"open({str(folder / 'marks')!r}, 'a').write('greetings ')\n")
    assert "warning" not in asterism(folder, *words)  # it sees that the module is there
    assert marks(folder) == set()


@pytest.mark.long
def test_a_plan_elsewhere_is_looked_at_as_carefully(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    here = tmp_path_factory.mktemp("here")
    command = [sys.executable, *COMMAND, "check", str(folder / "plan.yaml")]
    subprocess.run(command, cwd=here, env=environment(here), capture_output=True, check=True, timeout=PATIENCE)
    assert marks(folder) == set()


@pytest.mark.long
def test_with_imports_only_what_the_plan_calls_is_imported(folder: Path) -> None:
    (folder / "greetings.py").write_text(
        f"open({str(folder / 'marks')!r}, 'a').write('greetings ')\ndef hello():\n    return 1\n"
    )
    asterism(folder, "check", "plan.yaml", "--imports")
    assert marks(folder) == {"greetings"}


def test_running_a_plan_imports_what_it_calls_and_no_shadow(folder: Path) -> None:
    leave_what_is_elsewhere(folder)
    asterism(folder, "run", "plan.yaml", "--plain")
    assert marks(folder) == set()


@pytest.mark.long
def test_a_plan_in_a_store_and_its_device_import_no_shadow(folder: Path) -> None:
    leave_what_is_elsewhere(folder)
    asterism(folder, "run", "plan.yaml", "--id", "plan", "--plain", "--store", "sqlite:///fleet.db")
    asterism(folder, "resume", "plan", "--plain")
    asterism(folder, "plan", "standby", "plan", "--plain")
    asterism(folder, "workflow", "add", "greet", "--call", "greetings:hello")
    command = [sys.executable, *COMMAND, "device", "join", "here"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as device:
        try:
            read_until(device, "joined as here")
            assert "completed" in asterism(folder, "runs", "create", "greet", "--wait")
            device.send_signal(signal.SIGTERM)
            device.communicate(timeout=PATIENCE)
        finally:
            device.kill()
    assert marks(folder) == set()


@pytest.mark.long
@pytest.mark.parametrize("words", [("check", "plan.yaml"), ("show", "plan.yaml"), ("run", "plan.yaml", "--plain")])
def test_started_as_a_module_only_python_itself_is_shadowed(folder: Path, words: tuple[str, ...]) -> None:
    """``python -m`` imports modules of its own with the working directory first, before any line of ours."""
    leave_what_is_elsewhere(folder)
    for name in OF_PYTHON:
        (folder / f"{name}.py").unlink(missing_ok=True)
    asterism(folder, *words, how=MODULE)
    assert marks(folder) == set()


def test_with_the_folder_at_the_front_the_shadows_would_be_imported(folder: Path) -> None:
    """The safeguard switched off: this is what the other tests would find."""
    front = ("-P", "-c", "import sys; sys.path.insert(0, ''); from asterism.cli.main import main; main()")
    command = [sys.executable, *front, "check", "plan.yaml"]
    subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, check=False, timeout=PATIENCE)
    assert marks(folder)
