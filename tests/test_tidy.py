"""Keeps the house tidy: reads every file of the package and complains about what the design forbids.

Each rule is a function of a module's name and source, so that the rules themselves can be tested with a line of text.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "asterism"

FLOOR = ("core", "base", "store", "execution")
CAPABILITIES = ("orchestrator", "fleet", "planfile", "series", "report", "durable", "peers", "gateway")

ARROWS = {
    "core": (),
    "base": ("core",),
    "execution": ("core", "base"),
    "store": ("core", "base"),
    "orchestrator": FLOOR,
    "fleet": FLOOR,
    "planfile": FLOOR,
    "series": FLOOR,
    "report": (*FLOOR, "orchestrator"),
    "durable": (*FLOOR, "orchestrator", "fleet"),
    "peers": (*FLOOR, "fleet"),
    "gateway": (*FLOOR, "fleet"),
    "compat": (*FLOOR, "orchestrator"),
    "api": (*FLOOR, *CAPABILITIES),
    "__init__": (*FLOOR, *CAPABILITIES, "api"),
}
"""The rooms, and those that each may import from. What is not here, such as ``cli``, may import from all of these."""

ROOFS = ("cli", "server", "models", "mcp", "agents", "testing", "notebook", "__main__")
"""No other room imports from these, except as ``ROOF_ARROWS`` says."""

ROOF_ARROWS = (
    ("__main__", "cli"),
    ("cli", "server"),
    ("cli", "models"),
    ("cli", "mcp"),
    ("cli", "agents"),
    ("agents", "models"),
    ("mcp", "models"),
    ("mcp", "server"),
)

IMPURE = {"asyncio", "time", "random", "os", "socket", "sqlite3"}
VAGUE = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}
NOUNS = {"mapping", "outgoing", "testing", "tuning"}
"""Words that end in -ing and name a thing: a module may be called so. Any other is called after what one does there."""

ENGINES = ("asterism.store.sqlite", "asterism.store.postgres")
"""Modules of these that do the same job for their engine share a name. No other two modules do."""

LONGEST_FIRST_LINE = 120
LONGEST_FUNCTION = 60

Rule = Callable[[str, str], Iterator[str]]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)


MODULES = frozenset(map(module_name, SOURCE.rglob("*.py")))


@lru_cache(maxsize=1)
def parsed(source: str) -> ast.Module:
    """Every rule reads every file, one file after the other: if all trees stayed, the garbage collector would walk them
    again and again."""
    return ast.parse(source)


@lru_cache(maxsize=1)
def nodes(source: str) -> list[ast.AST]:
    """All nodes if a string of the source may name a module, otherwise the statements: no rule reads expressions."""
    if re.search(r"""["']asterism\.""", source):
        return list(ast.walk(parsed(source)))
    statements: list[ast.AST] = [parsed(source)]
    for node in statements:  # it grows
        inside = ast.iter_child_nodes(node)
        statements += (part for part in inside if isinstance(part, ast.stmt | ast.excepthandler | ast.match_case))
    return statements


def room_of(module: str) -> str:
    """``asterism.core.plan.task`` is in ``core``; ``asterism`` itself is the front door, ``asterism.__init__``."""
    return [*module.split("."), "__init__"][1]


@lru_cache(maxsize=1)
def imports_of(module: str, source: str) -> list[tuple[int, str]]:
    """(line, module) for every import, wherever it stands: in functions and under TYPE_CHECKING too."""
    return list(_imports(module, source))


def _imports(module: str, source: str) -> Iterator[tuple[int, str]]:
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            if origin == "asterism":  # `from asterism import core` names a room, `from asterism import Task` the door
                for alias in node.names:
                    is_room = alias.name in ARROWS or alias.name in ROOFS
                    yield node.lineno, f"asterism.{alias.name}" if is_room else "asterism"
            else:
                yield node.lineno, origin
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_module(node.value):
            yield node.lineno, node.value.partition(":")[0].removesuffix(".")


def is_module(text: str) -> bool:
    """Whether a string names a module of the package, for ``import_module``, a table of lazy names or a function by its
    path; or begins with a package, as ``f"asterism.cli.{name}"`` does. Names of loggers are no modules."""
    if not text.startswith("asterism.") or not re.fullmatch(r"asterism(\.\w+)+(\.|:[\w.]+)?", text):
        return False
    name = text.partition(":")[0].removesuffix(".")
    return name in MODULES or f"{name}.__init__" in MODULES


# -- the rules ---------------------------------------------------------------------------------------------------------


def arrows_point_down(module: str, source: str) -> Iterator[str]:
    room = room_of(module)
    for line, imported in imports_of(module, source):
        if imported.split(".")[0] != "asterism":
            continue
        other = room_of(imported)
        if other not in ARROWS and other not in ROOFS:
            yield f"line {line}: {imported} is in no known room"
        elif other != room and not may_import(room, other):
            yield f"line {line}: {room} imports {imported}, which is not below it"


def may_import(room: str, other: str) -> bool:
    if room in ROOFS:
        return other in ARROWS or (room, other) in ROOF_ARROWS
    return other in ARROWS[room]


FOR_TYPE_CHECKERS = "typing_extensions"
"""Where type variables have defaults before Python 3.13: type checkers know it themselves, nothing imports it."""

CODEC, RECORDS = "msgspec", "asterism.core.record"
"""The library that checks and writes records, and the only module that imports it."""


def the_core_is_pure(module: str, source: str) -> Iterator[str]:
    if room_of(module) != "core":
        return
    for line, imported in imports_of(module, source):
        top = imported.split(".")[0]
        if top in IMPURE:
            yield f"line {line}: the core imports {top}; time, chance and effects come from outside"
        elif top not in {"asterism", FOR_TYPE_CHECKERS, CODEC} and top not in sys.stdlib_module_names:
            yield f"line {line}: the core imports {top}, which is not in the standard library"


def only_records_import_the_codec(module: str, source: str) -> Iterator[str]:
    if module == RECORDS:
        return
    for line, imported in imports_of(module, source):
        if imported.split(".")[0] == CODEC:
            yield f"line {line}: only {RECORDS} imports {CODEC}; it has what others need of it"


def names_say_something(module: str, source: str) -> Iterator[str]:
    vague = {word for part in module.split(".") for word in part.lower().split("_")} & VAGUE
    if vague:
        yield f"the name {module} says nothing: {', '.join(sorted(vague))}"


def a_module_is_called_after_a_thing(module: str, source: str) -> Iterator[str]:
    name = module.removesuffix(".__init__").rpartition(".")[2]
    word = name.rpartition("_")[2]
    if word.endswith("ing") and word not in NOUNS:
        yield f"{name} is a gerund: call it after the thing that is in it"


def a_module_says_what_it_is_for(module: str, source: str) -> Iterator[str]:
    if not ast.get_docstring(parsed(source)):
        yield "line 1: there is no docstring"


def the_first_line_of_a_docstring_stands_alone(module: str, source: str) -> Iterator[str]:
    """The list of modules, docs/reference/modules.md, has nothing else."""
    lines = (ast.get_docstring(parsed(source)) or "").split("\n")
    if len(lines[0]) > LONGEST_FIRST_LINE:
        yield f"line 1: its first line has {len(lines[0])} characters, and {LONGEST_FIRST_LINE} are the most"
    if lines[0] and (not lines[0].endswith(".") or any(lines[1:2])):
        yield "line 1: its first line is not a sentence with an empty line after it"


def a_function_fits_on_a_screen(module: str, source: str) -> Iterator[str]:
    for node in nodes(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                yield f"line {node.lineno}: {node.name} has {lines} lines, and {LONGEST_FUNCTION} are the most"


def nothing_is_left_undone(module: str, source: str) -> Iterator[str]:
    for number, line in enumerate(source.splitlines(), 1):
        mark = re.search(r"\b(TODO|FIXME|XXX)\b", line)
        if mark:
            yield f"line {number}: {mark[0]}"


def no_module_has_process_wide_state(module: str, source: str) -> Iterator[str]:
    """Only ``compat`` may have process-wide state, since its documented API has."""
    if room_of(module) == "compat":
        return
    for node in nodes(source):
        if isinstance(node, ast.Global):
            yield f"line {node.lineno}: global {', '.join(node.names)}"


def the_path_of_python_is_changed_in_one_place(module: str, source: str) -> Iterator[str]:
    """Where a folder goes on the path decides which files stand in for our own modules."""
    if module in ("asterism.__main__", "asterism.cli.editor_options"):
        return
    changed = re.compile(r"sys\.path\.(insert|append|extend)|sys\.path(\[.*\])? *\+?= ")
    for number, line in enumerate(source.splitlines(), 1):
        if changed.search(line):
            yield f"line {number}: it changes sys.path; call allow_imports of cli/editor_options.py"


RULES: list[Rule] = [
    arrows_point_down,
    the_core_is_pure,
    only_records_import_the_codec,
    names_say_something,
    a_module_is_called_after_a_thing,
    a_module_says_what_it_is_for,
    the_first_line_of_a_docstring_stands_alone,
    a_function_fits_on_a_screen,
    nothing_is_left_undone,
    no_module_has_process_wide_state,
    the_path_of_python_is_changed_in_one_place,
]


# -- the house ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_house_is_tidy() -> None:
    """One test for all rules: another worker would parse all modules again."""
    violations = [
        f"{path.relative_to(SOURCE)}: {complaint}"
        for path in sorted(SOURCE.rglob("*.py"))
        for module, source in [(module_name(path), path.read_text("utf-8"))]
        for rule in RULES
        for complaint in rule(module, source)
    ]
    assert not violations, "\n".join(violations)


def test_the_files_beside_the_modules_are_finished_too() -> None:
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix in {".css", ".html", ".js", ".sql"}:
            text = path.read_text("utf-8")
            marks = list(nothing_is_left_undone("", text))
            assert not marks, f"{path.relative_to(SOURCE)}: {marks}"


def same_names(modules: Iterable[str]) -> Iterator[str]:
    """The modules of each name that several have, unless they are those of the two engines."""
    packages: dict[str, list[str]] = {}
    for package, _, name in (module.rpartition(".") for module in modules):
        if name not in ("__init__", "__main__"):
            packages.setdefault(name, []).append(package)
    for name, homes in packages.items():
        if len(homes) > 1 and sorted(homes) != sorted(ENGINES):
            yield f"several modules are called {name}: {', '.join(f'{package}.{name}' for package in homes)}"


def test_no_two_modules_have_the_same_name() -> None:
    doubles = list(same_names(module_name(path) for path in sorted(SOURCE.rglob("*.py"))))
    assert not doubles, "\n".join(doubles)


def test_every_room_is_known() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms <= {*ARROWS, *ROOFS}
    assert {"core", "orchestrator", "fleet"} <= rooms


# -- the rules, tested -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("asterism.core.plan.task", "from asterism.orchestrator.events import Event"),
        ("asterism.core.plan.task", "import asterism.store"),
        ("asterism.core.plan.task", "from asterism import Orchestrator"),
        ("asterism.core.plan.task", "from asterism import orchestrator"),
        ("asterism.core.plan.task", "from ...orchestrator import events"),
        ("asterism.core.plan.task", "def later():\n    from asterism.cli import main"),
        ("asterism.core.plan.task", "if TYPE_CHECKING:\n    from asterism.orchestrator.events import Event"),
        ("asterism.store.sqlite", "from asterism.orchestrator.events import Event"),
        ("asterism.orchestrator.edit_cycles", "from asterism.cli.main import main"),
        ("asterism.orchestrator.edit_cycles", "from asterism.testing.virtual_time import run"),
        ("asterism.orchestrator.edit_cycles", "from asterism.compat import galaxy"),
        ("asterism.series.git_register", "from asterism.agents.editor import ask"),
        ("asterism.series.git_register", "from asterism.cli.main import main"),
        ("asterism.orchestrator.edit_cycles", "from asterism.series.git_register import GitRegister"),
        ("asterism.cli.main", "from asterism.testing.virtual_time import run"),
        ("asterism.__init__", "from asterism.cli.main import main"),
        ("asterism.core.__init__", "from .. import Orchestrator"),
        ("asterism.core.plan.task", "from asterism.attic import Box"),
        ("asterism.fleet.extensions", "import_module('asterism.peers.takeover')"),
        ("asterism.fleet.extensions", "import_module(f'asterism.peers.{name}')"),
        ("asterism.fleet.__init__", "if TYPE_CHECKING:\n    from asterism.peers import Exchange"),
        ("asterism.execution.function_calls", "path = 'asterism.durable.fleet_device:no_action'"),
    ],
)
def test_an_arrow_that_does_not_point_down_is_noticed(module: str, source: str) -> None:
    [complaint] = arrows_point_down(module, source)
    assert re.match(r"line \d: ", complaint)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("asterism.core.plan.task", "from asterism.core.errors import InvalidTask"),
        ("asterism.core.plan.task", "from .errors import InvalidTask"),
        ("asterism.core.__init__", "from . import errors"),
        ("asterism.__init__", "from .core import edits"),
        ("asterism.core.plan.task", "import json\nfrom collections.abc import Mapping"),
        ("asterism.store.sqlite", "from asterism.core.plan.task import Task"),
        ("asterism.orchestrator.edit_cycles", "from asterism.core import edits\nfrom asterism.store import Store"),
        ("asterism.compat.galaxy", "from asterism.orchestrator.orchestrator import Orchestrator"),
        (
            "asterism.series.store_register",
            "from asterism.store import Store\nfrom asterism.core.series.machine import Series",
        ),
        ("asterism.testing.virtual_time", "from asterism import Orchestrator"),
        ("asterism.cli.main", "from asterism import core, orchestrator, __version__"),
        ("asterism.__main__", "from asterism.cli.main import main"),
        ("asterism.store.url", "import_module('asterism.store.postgres')"),
        ("asterism.store.__init__", "if TYPE_CHECKING:\n    from asterism.core.run.run import Run"),
        ("asterism.orchestrator.devices", "getLogger('asterism.device')"),
    ],
)
def test_an_arrow_that_points_down_is_fine(module: str, source: str) -> None:
    assert list(arrows_point_down(module, source)) == []


@pytest.mark.parametrize("name", [*sorted(IMPURE), "yaml"])
def test_an_impure_core_is_noticed(name: str) -> None:
    [complaint] = the_core_is_pure("asterism.core.plan.task", f"def now():\n    import {name}\n")
    assert complaint.startswith(f"line 2: the core imports {name}")
    assert list(the_core_is_pure("asterism.orchestrator.devices", f"import {name}")) == []


def test_of_the_core_only_records_import_the_codec() -> None:
    source = "from msgspec.structs import replace\n"
    assert [list(rule(RECORDS, source)) for rule in (the_core_is_pure, only_records_import_the_codec)] == [[], []]


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (names_say_something, "asterism.core.utils", ""),
        (the_path_of_python_is_changed_in_one_place, "asterism.cli.main", "sys.path.insert(0, place)"),
        (the_path_of_python_is_changed_in_one_place, "asterism.cli.main", "sys.path[:0] = [place]"),
        (names_say_something, "asterism.orchestrator.device_manager", ""),
        (names_say_something, "asterism.common.task", ""),
        (a_module_says_what_it_is_for, "asterism.core.plan.task", "x = 1\n"),
        (a_module_is_called_after_a_thing, "asterism.fleet.taking", ""),
        (a_module_is_called_after_a_thing, "asterism.fleet.run_taking.__init__", ""),
        (the_first_line_of_a_docstring_stands_alone, "asterism.core.task", f'"""{"x" * LONGEST_FIRST_LINE}."""'),
        (the_first_line_of_a_docstring_stands_alone, "asterism.core.task", '"""A task"""'),
        (the_first_line_of_a_docstring_stands_alone, "asterism.core.task", '"""A task, which\nis one."""'),
        (the_first_line_of_a_docstring_stands_alone, "asterism.core.task", '"""A task.\nMore of it."""'),
        (a_function_fits_on_a_screen, "asterism.core.plan.task", "def f():\n" + "    x = 1\n" * LONGEST_FUNCTION),
        (a_function_fits_on_a_screen, "asterism.core.plan.task", "async def f():\n" + "    x = 1\n" * LONGEST_FUNCTION),
        (only_records_import_the_codec, "asterism.core.plan.task", "import msgspec"),
        (only_records_import_the_codec, "asterism.api.operation", "def f():\n    from msgspec import json"),
        (nothing_is_left_undone, "asterism.core.plan.task", "x = 1  # TODO: make it 2"),
        (nothing_is_left_undone, "asterism.core.plan.task", '"""FIXME"""'),
        (no_module_has_process_wide_state, "asterism.orchestrator.events", "def f():\n    global bus\n    bus = 1"),
    ],
)
def test_untidiness_is_noticed(rule: Rule, module: str, source: str) -> None:
    assert len(list(rule(module, source))) == 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_tidy_module_is_left_alone(rule: Rule) -> None:
    limit = "def f():\n" + "    x = 1\n" * (LONGEST_FUNCTION - 1)
    assert list(rule("asterism.compat.galaxy", f'"""What it is for."""\n{limit}')) == []
    assert list(rule("asterism.core.plan.status", '"""What it is for."""\nfrom enum import StrEnum\n')) == []


@pytest.mark.parametrize(
    "module", ["asterism.testing.__init__", "asterism.store.sqlite.error_mapping", "asterism.series.git.string_pool"]
)
def test_a_module_that_is_called_after_a_thing_is_left_alone(module: str) -> None:
    assert list(a_module_is_called_after_a_thing(module, "")) == []


def test_modules_of_one_name_are_noticed_unless_they_are_those_of_the_engines() -> None:
    engines = [f"{engine}.queries" for engine in ENGINES]
    packages = ["asterism.core.__init__", "asterism.fleet.__init__", "asterism.__main__", "asterism.testing.__main__"]
    assert list(same_names([*engines, *packages, "asterism.core.errors"])) == []
    [complaint] = same_names([*engines, "asterism.cli.queries"])
    assert complaint.startswith("several modules are called queries: ")
    assert len(list(same_names(["asterism.core.errors", "asterism.store.errors"]))) == 1
