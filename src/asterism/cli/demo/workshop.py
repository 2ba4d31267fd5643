"""The real work of the demonstration: a small library is written, tested, packed, signed and published.

Everything happens in one directory and nothing needs a network. ``median`` has a bug, so one of its tests fails.
"""

from __future__ import annotations

import ast
import json
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

CATALOGUES = 60

NUMBERS = '''"""Averages of magnitudes."""


def mean(values):
    """The arithmetic mean."""
    return sum(values) / len(values)


def median(values):
    """The middle value."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
'''

REPAIR = (
    "    return ordered[len(ordered) // 2]\n",
    "    middle = len(ordered) // 2\n"
    "    return ordered[middle] if len(ordered) % 2 else mean(ordered[middle - 1 : middle + 1])\n",
)

ANGLES = '''"""Angles in degrees."""


def normal(angle):
    """The same direction in 0 <= angle < 360."""
    return angle % 360.0 % 360.0


def between(first, second):
    """The smaller of the two angles between directions."""
    apart = normal(first - second)
    return min(apart, 360.0 - apart)
'''

TEST_NUMBERS = """import unittest

from meridian.numbers import mean, median


class Numbers(unittest.TestCase):
    def test_mean(self):
        self.assertEqual(mean([1, 2, 6]), 3)

    def test_median_of_three(self):
        self.assertEqual(median([9, 1, 5]), 5)

    def test_median_of_four(self):
        self.assertEqual(median([1, 2, 3, 10]), 2.5, "median of an even number of values")
"""

TEST_ANGLES = """import unittest

from meridian.angles import between, normal


class Angles(unittest.TestCase):
    def test_normal(self):
        for angle in range(-3600, 3600, 7):
            self.assertTrue(0 <= normal(angle / 3) < 360)

    def test_between(self):
        self.assertEqual(between(350, 20), 30)
"""

FUZZ = """import json, random, sys, time

from meridian.angles import between

until, cases = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < until:
    first, second = random.uniform(-1e4, 1e4), random.uniform(-1e4, 1e4)
    assert 0 <= between(first, second) <= 180.0000001, (first, second)
    assert abs(between(first, second) - between(second, first)) < 1e-6, (first, second)
    cases += 1
print(json.dumps({"cases": cases}))
"""

MEASURE = """import json, sys, time

from meridian.numbers import mean

until, calls = time.monotonic() + float(sys.argv[1]), 0
values = list(range(1000))
while time.monotonic() < until:
    mean(values)
    calls += 1
print(json.dumps({"means per second": round(calls / float(sys.argv[1]))}))
"""

SIGN = """import hashlib, hmac, json, os, pathlib, sys

action, package, signature = sys.argv[1], *map(pathlib.Path, sys.argv[2:])
key = hashlib.pbkdf2_hmac("sha256", os.environ["RELEASE_KEY"].encode(), b"meridian", 600_000)
digest = hmac.new(key, package.read_bytes(), "sha256").hexdigest()
if action == "sign":
    signature.write_text(digest)
elif not hmac.compare_digest(signature.read_text(), digest):
    sys.exit("the signature does not fit")
print(json.dumps({"signature": digest[:16]}))
"""


MEND = f"""import pathlib, sys

path = pathlib.Path(sys.argv[1])
path.write_text(path.read_text("utf-8").replace({REPAIR[0]!r}, {REPAIR[1]!r}), encoding="utf-8")
"""
"""The same repair as a command, for a model."""


class Workshop:
    """A directory, and what is done in it. The methods are tasks: their parameters are results of other tasks."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.library, self.tests, self.tools = home / "meridian", home / "checks", home / "tools"
        self.package, self.signature = home / "meridian.zip", home / "meridian.sig"

    def generate(self) -> dict[str, int]:
        """Write the library: two modules by hand, the catalogues from chance, and tests."""
        for folder in (self.library, self.tests, self.tools, self.home / "docs"):
            folder.mkdir(exist_ok=True)
        written = {
            self.library / "__init__.py": '"""Stars, and how to count them."""\n',
            self.library / "numbers.py": NUMBERS,
            self.library / "angles.py": ANGLES,
            self.tests / "__init__.py": "",
            self.tests / "test_numbers.py": TEST_NUMBERS,
            self.tests / "test_angles.py": TEST_ANGLES,
            self.tools / "fuzz.py": FUZZ,
            self.tools / "measure.py": MEASURE,
            self.tools / "sign.py": SIGN,
            self.tools / "mend.py": MEND,
        }
        chance = random.Random(1)
        for number in range(CATALOGUES):
            written[self.library / f"catalogue_{number:02}.py"] = _catalogue(number, chance)
        for path, text in written.items():
            path.write_text(text, encoding="utf-8")
        return {"files": len(written), "bytes": sum(map(len, written.values()))}

    def audit(self) -> dict[str, int]:
        """Read every module as a syntax tree and count what has no docstring."""
        trees = [ast.parse(path.read_text("utf-8")) for path in sorted(self.library.glob("*.py"))]
        functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        silent = sum(ast.get_docstring(function) is None for function in functions)
        return {"modules": len(trees), "functions": len(functions), "without docstring": silent}

    def find_typesetter(self) -> dict[str, str | None]:
        """Where the program is that would make the PDF; it is an optional one."""
        return {"tool": shutil.which("meridian-typesetter")}

    def patch(self) -> str:
        """Repair the median, the way the failing test asks for."""
        path = self.library / "numbers.py"
        before = path.read_text("utf-8")
        after = before.replace(*REPAIR)
        path.write_text(after, encoding="utf-8")
        return f"{len(after.splitlines()) - len(before.splitlines())} line more"

    def changelog(self, generate: dict[str, int], audit: dict[str, int]) -> str:
        text = f"Meridian 1.0: {generate['files']} files, {audit['functions']} functions.\n"
        (self.home / "CHANGES").write_text(text, encoding="utf-8")
        return text.strip()

    def bundle_docs(self) -> dict[str, int]:
        pages = sorted((self.home / "docs").glob("*.html"))
        with zipfile.ZipFile(self.home / "docs.zip", "w", zipfile.ZIP_DEFLATED) as bundle:
            for page in pages:
                bundle.write(page, page.name)
        return {"pages": len(pages)}

    def publish(self, verify: dict[str, str], smoke: str, results: dict[str, Any]) -> dict[str, Any]:
        """Put everything into one folder, with a manifest of what came of each step."""
        shelf = self.home / "published"
        shelf.mkdir()
        for name in ("meridian.zip", "meridian.sig", "docs.zip", "CHANGES"):
            shutil.copy(self.home / name, shelf)
        manifest = {"signature": verify["signature"], "smoke": smoke, "steps": sorted(results)}
        (shelf / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        return {"files": sorted(path.name for path in shelf.iterdir())}


def _catalogue(number: int, chance: random.Random) -> str:
    stars = [(f"M{number:02}-{star}", round(chance.uniform(-1, 6), 2)) for star in range(200)]
    return (
        f'"""Catalogue {number}."""\n\nSTARS = {stars!r}\n\n\ndef brightest():\n'
        '    """The name of the brightest star."""\n    return min(STARS, key=lambda star: star[1])[0]\n'
    )
