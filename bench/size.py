"""``python -m bench.size COMMIT`` writes ``docs/size.md``: the size of each package, at that commit and now.

A line counts if it has code: blank lines, comments and docstrings do not.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "size.md"
NO_CODE = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
)


def code_lines(source: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def sizes(package: Path) -> tuple[Counter[str], Counter[str]]:
    """The modules and the lines of code of each package in ``package``."""
    modules, lines = Counter[str](), Counter[str]()
    for path in package.rglob("*.py"):
        name = path.relative_to(package).parts[0]
        modules[name] += 1
        lines[name] += code_lines(path.read_text("utf-8"))
    return modules, lines


def sizes_at(commit: str) -> tuple[Counter[str], Counter[str]]:
    archive = subprocess.run(["git", "archive", commit, "src/asterism"], cwd=ROOT, capture_output=True, check=True)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
        return sizes(Path(folder) / "src" / "asterism")


def page(commit: str) -> str:
    modules_before, lines_before = sizes_at(commit)
    modules, lines = sizes(ROOT / "src" / "asterism")
    rows = [
        f"| `{name.removesuffix('.py')}` | {modules_before[name]} | {lines_before[name]:,} | {modules[name]} "
        f"| {lines[name]:,} |"
        for name in sorted({*modules_before, *modules})
    ]
    total = (modules_before.total(), lines_before.total(), modules.total(), lines.total())
    return "\n".join(
        [
            "# Size",
            "",
            f"`python -m bench.size {commit}` writes this page: modules and lines of code of each package, without",
            "blank lines, comments and docstrings, at that commit and now.",
            "",
            "| package | modules before | lines before | modules | lines |",
            "| --- | ---: | ---: | ---: | ---: |",
            *rows,
            f"| **all** | **{total[0]}** | **{total[1]:,}** | **{total[2]}** | **{total[3]:,}** |",
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(sys.argv[1]), encoding="utf-8")
