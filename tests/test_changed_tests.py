"""The selection of tests that a change can reach."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.changed_tests import ImportGraph, changed_files

TREE = {
    "src/asterism/__init__.py": """
        from typing import TYPE_CHECKING
        from asterism.base.startup import lazy_names
        from asterism.fleet.extensions import register
        if TYPE_CHECKING:
            from asterism.core.graph import Graph
            from asterism.core.task import Task
        register("asterism.peers.extension")
        __getattr__, __dir__ = lazy_names(__name__)
    """,
    "src/asterism/base/startup.py": "",
    "src/asterism/core/task.py": "",
    "src/asterism/core/graph.py": "from asterism.core import task",
    "src/asterism/fleet/extensions.py": "",
    "src/asterism/fleet/page.css": "",
    "src/asterism/peers/extension.py": "",
    "src/asterism/cli/__init__.py": "",
    "src/asterism/cli/main.py": "def command(name):\n    return import_module(f'asterism.cli.{name}')",
    "src/asterism/cli/show.py": "def show():\n    from asterism.report import drawing",
    "src/asterism/report/drawing.py": "",
    "src/asterism/__main__.py": "from asterism.cli.main import main",
    "tests/conftest.py": "from tests import plugin",
    "tests/plugin.py": "",
    "tests/core/scenes.py": "from asterism import Task",
    "tests/core/test_task.py": "from .scenes import task",
    "tests/core/test_graph.py": "from asterism import Graph",
    "tests/fleet/test_fleet.py": "from asterism.fleet import extensions",
    "tests/cli/test_process.py": "ASTERISM = [sys.executable, *['-m', 'asterism'], 'show']",
    "tests/report/test_script.py": "SCRIPT = '''\nfrom asterism.report import drawing\n'''",
    "tests/docs/test_docs.py": "PAGES = ROOT / 'docs'",
    "docs/index.md": "",
    "Makefile": "",
    "LICENSE": "",
}
ALL = [
    *("tests/cli/test_process.py", "tests/core/test_graph.py", "tests/core/test_task.py", "tests/docs/test_docs.py"),
    *("tests/fleet/test_fleet.py", "tests/report/test_script.py"),
]
IMPORTING = [file for file in ALL if file != "tests/docs/test_docs.py"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = text.strip("\n").splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
        file.write_text("\n".join(line[indent:] for line in lines), encoding="utf-8")
    for folder in (*(tmp_path / "src/asterism").iterdir(), *(tmp_path / "tests").iterdir(), tmp_path / "tests"):
        if folder.is_dir():
            (folder / "__init__.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        pytest.param("tests/core/test_task.py", ["tests/core/test_task.py"], id="a test"),
        pytest.param("tests/core/scenes.py", ["tests/core/test_task.py"], id="a relative import"),
        pytest.param("src/asterism/core/graph.py", ["tests/core/test_graph.py"], id="a lazy name"),
        pytest.param(
            "src/asterism/core/task.py", ["tests/core/test_graph.py", "tests/core/test_task.py"], id="what it imports"
        ),
        pytest.param("src/asterism/core/gone.py", [], id="a removed module that nothing imports"),
        pytest.param(
            "src/asterism/peers/extension.py", IMPORTING, id="what a package registers with a module it imports"
        ),
        pytest.param(
            "src/asterism/report/drawing.py",
            ["tests/cli/test_process.py", "tests/report/test_script.py"],
            id="an import within a function, and in a script",
        ),
        pytest.param("src/asterism/cli/show.py", ["tests/cli/test_process.py"], id="a command of another process"),
        pytest.param("src/asterism/fleet/page.css", IMPORTING, id="a file beside modules"),
        pytest.param("docs/index.md", ["tests/docs/test_docs.py"], id="a file whose folder a test reads"),
        pytest.param("tests/plugin.py", ALL, id="an import of a conftest"),
        pytest.param("Makefile", ALL, id="a file for all"),
        pytest.param("LICENSE", ALL, id="a file that nothing names"),
    ],
)
def test_a_change_reaches_what_depends_on_it(checkout: Path, changed: str, reached: list[str]) -> None:
    assert ImportGraph(checkout).test_files([changed]) == reached


def test_the_change_is_what_differs_from_main_and_what_is_new(checkout: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=checkout, check=True, capture_output=True)

    git("init", "-b", "main")
    git("add", ".")
    git("commit", "-m", "first")
    git("checkout", "-b", "change")
    (checkout / "LICENSE").unlink()
    git("commit", "-a", "-m", "second")
    (checkout / "Makefile").write_text("test:\n")
    (checkout / "new.py").touch()
    assert changed_files(checkout) == {"LICENSE", "Makefile", "new.py"}
    assert changed_files(checkout, "HEAD") == {"Makefile", "new.py"}
