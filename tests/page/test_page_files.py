"""The files of the page: vendored modules are as npm published them, nothing is inline, and headers are strict."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from pathlib import Path

import click
import httpx
import pytest
from starlette.applications import Starlette

from asterism.cli.main import commands
from asterism.server.page_routes import MEDIA_TYPES, page_files, page_routes
from asterism.server.request_guard import RequestGuard

PAGE = Path(__file__).parents[2] / "src" / "asterism" / "server" / "page"
VENDORED = json.loads((PAGE / "vendor" / "versions.json").read_text("utf-8"))
AXE = json.loads((Path(__file__).parent / "axe.json").read_text("utf-8"))


@pytest.mark.parametrize("record", VENDORED, ids=lambda record: record["file"])
def test_a_vendored_module_is_the_published_one_but_for_its_imports(record: dict) -> None:
    source = (PAGE / "vendor" / record["file"]).read_text("utf-8")
    for published, relative in record["imports"].items():
        assert published not in source
        source = source.replace(relative, published)
    assert hashlib.sha256(source.encode()).hexdigest() == record["sha256"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", record["version"])
    assert record["integrity"].startswith("sha512-")
    assert len((PAGE / "vendor" / record["licence_file"]).read_text("utf-8")) > 500


def test_every_vendored_module_is_listed() -> None:
    assert {path.name for path in (PAGE / "vendor").glob("*.mjs")} == {record["file"] for record in VENDORED}


def test_the_accessibility_checker_is_the_published_one() -> None:
    folder = Path(__file__).parent
    assert hashlib.sha256((folder / AXE["file"]).read_bytes()).hexdigest() == AXE["sha256"]
    assert "Mozilla Public License" in (folder / AXE["licence_file"]).read_text("utf-8")


@pytest.mark.parametrize("path", sorted(PAGE.rglob("*.*js")), ids=lambda path: path.name)
def test_modules_import_only_files_of_the_page(path: Path) -> None:
    source = path.read_text("utf-8")
    for name in re.findall(r"""(?:from|import)\s*\(?["']([^"'\n]+)["']""", source):
        assert name.startswith("./")
        assert (path.parent / name).is_file()


@pytest.mark.parametrize("path", sorted(PAGE.glob("*.*")), ids=lambda path: path.name)
def test_nothing_is_inline_or_from_elsewhere(path: Path) -> None:
    text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//cdn|@import", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|srcdoc", text)
    if path.suffix == ".html":
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
        assert all(" src=" in tag for tag in re.findall(r"<script[^>]*>", text))


async def test_files_have_strict_headers_and_an_etag() -> None:
    app = RequestGuard(Starlette(routes=page_routes()), ["127.0.0.1"], https=False)
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path, ending in (("/", ".html"), ("/page/main.js", ".js"), ("/page/vendor/preact.mjs", ".mjs")):
            answer = await client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == MEDIA_TYPES[ending]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-cache"
            policy = answer.headers["content-security-policy"]
            assert "script-src 'self';" in policy
            assert "unsafe" not in policy
            again = await client.get(path, headers={"if-none-match": f'"other", W/{answer.headers["etag"]}'})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["content-security-policy"] == policy


@pytest.mark.parametrize(
    "name", ["../app.py", "..%2fapp.py", "vendor/../../app.py", "%2e%2e/app.py", "/etc/passwd", "", "nothing.js"]
)
async def test_only_files_of_the_page_are_served(name: str) -> None:
    transport = httpx.ASGITransport(Starlette(routes=page_routes()))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.get(httpx.URL("http://127.0.0.1").copy_with(raw_path=f"/page/{name}".encode()))
        assert answer.status_code == 404


def test_every_file_of_the_page_is_served() -> None:
    listed = {str(path.relative_to(PAGE)) for path in PAGE.rglob("*") if path.is_file()}
    assert listed == set(page_files())


def test_every_command_that_the_page_names_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty views say what to type."""
    monkeypatch.chdir(tmp_path)
    for name in ("plan.yaml", "workflow.yaml"):
        (tmp_path / name).touch()
    text = "".join(path.read_text("utf-8") for path in PAGE.glob("*.js"))
    named = re.findall(r"""text=(?:"|\$\{`)(asterism .*?)(?:"|`\}) />""", text)
    assert len(named) > 8
    for line in named:
        command: click.Command = commands
        words = shlex.split(re.sub(r"\$\{[\w.]+\}", "release", line.replace("${day}", "2026-11-18")))[1:]
        context = click.Context(command)
        while isinstance(command, click.Group):
            subcommand = command.get_command(context, words.pop(0))
            assert subcommand is not None, line
            command = subcommand
        command.make_context(line, words, parent=context)
