"""What the documentation shows runs as shown, and what it links to is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click
import pytest

from asterism.cli import main
from asterism.planfile.loader import examine
from tests import process_scenes
from tests.docs import docs_pages
from tests.docs.docs_pages import ROOT, Block, Page, blocks, commands
from tests.forked_commands import ForkedCommand, shared_server

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LONG = (
    "durable-constellations.md",  # processes one after the other
    *("backup-and-retention.md", "fleet-on-postgresql.md", "mcp.md", "peers.md", "runs.md", "schedules.md"),
    *("plan-files.md", "server.md"),
    *("devices-over-https.md", "logs.md", "metrics.md", "models.md", "series.md", "team-in-an-hour.md", "tutorial.md"),
)
"""Pages that take seconds: ``make test-long`` runs them."""
LIMIT = 900
"""Seconds after which a page hangs."""

_LINK = re.compile(r"!?\[(?:[^\]\\]|\\.)*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
_CODE = re.compile(r"`+[^`]*`+")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(markdown: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of a page that are not in a fenced block."""
    fenced = False
    for number, line in enumerate(markdown.splitlines(), 1):
        if line.strip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def headings(markdown: str) -> set[str]:
    """The anchors of a page, made from its headings as forges make them."""
    anchors = set()
    for _, line in prose(markdown):
        if line.startswith("#"):
            text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()).lower()
            anchors.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return anchors


def broken_links(page: Path) -> Iterator[str]:
    for number, line in prose(page.read_text("utf-8")):
        for target in _LINK.findall(_CODE.sub("", line)):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            path, _, anchor = unquote(target).partition("#")
            there = (page.parent / path).resolve() if path else page
            if not there.exists():
                yield f"{name_of(page)}:{number}: there is no {target}"
            elif anchor and there.suffix == ".md" and anchor not in headings(there.read_text("utf-8")):
                yield f"{name_of(page)}:{number}: {path or 'this page'} has no heading {anchor!r}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.long) if page.name in LONG else page for page in PAGES], ids=name_of
)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path) -> None:
    if not any(block.language in ("python", "console") for block in blocks(page.read_text("utf-8"))):
        return
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    words = [str(page), shared_server("commands").path]
    with ForkedCommand(words, program=docs_pages.__name__, strict=True, cwd=tmp_path, **streams) as process:
        try:
            said, _ = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    assert process.returncode == 0, said


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_effect_of_every_plan_is_compared(page: Path) -> None:
    """A plan that is only checked, or only runs, may do nothing of what the page says about it."""
    unseen = [f"{name_of(page)}:{block.line}" for block in docs_pages.unseen_plans(page.read_text("utf-8"))]
    assert not unseen, f"run it below with `asterism run`, and show its results: {', '.join(unseen)}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_plan_uses_a_variable_that_nothing_sets(page: Path) -> None:
    mistakes = [
        f"{name_of(page)}:{block.line + mistake.line - 1}: {mistake.text}"
        for block in docs_pages.plans(page.read_text("utf-8"))
        for mistake in examine(block.text, "plan")[1]
        if "no-run" not in block.options and "the line uses $" in mistake.text
    ]
    assert not mistakes


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert not list(broken_links(page))


def test_an_example_on_a_page_is_the_file_that_the_tests_run() -> None:
    """``example=moved/cron/backup.yaml``: that file of examples, without the comment at its top."""
    shown = {}
    for page in PAGES:
        for block in blocks(page.read_text("utf-8")):
            if name := block.options.get("example"):
                shown[name] = f"{name_of(page)}:{block.line}"
                text = (ROOT / "examples" / name).read_text("utf-8")
                top = text.removesuffix(block.text)
                assert top != text, f"{shown[name]} is not {name}"
                assert all(line.startswith(("#", '"""')) for line in top.splitlines() if line), shown[name]
    moved = {f"moved/{path.parent.name}/{path.name}" for path in (ROOT / "examples/moved").glob("*/*.yaml")}
    assert moved <= shown.keys()


def test_every_picture_is_there_and_small() -> None:
    shown = {
        page.parent / name for page in PAGES for name in re.findall(r'src(?:set)?="([^"]+)"', page.read_text("utf-8"))
    }
    assert shown == set((ROOT / "docs/pictures").iterdir())
    assert max(picture.stat().st_size for picture in shown) < 150_000


def commands_named(page: Path) -> Iterator[list[str]]:
    """The commands of ``asterism`` that a page names, in a block or in a sentence, word by word."""
    text = page.read_text("utf-8")
    for words in re.findall(r"`asterism ([a-z][^`]*)`", text):
        first, *rest = words.split()
        yield from ([name, *rest] for name in first.split("/"))
    for block in blocks(text):
        if block.language == "console":
            yield from (c.words[1:] for c in commands(block) if c.words[0] == "asterism" and c.words[1][0] != "-")


def unknown_command(words: list[str]) -> str | None:
    """The word that is no command where one has to stand."""
    place: click.Command = main.commands
    for word in words:
        if not isinstance(place, click.Group) or not re.fullmatch(r"[a-z]+", word):
            return None
        if word not in place.commands:
            return word
        place = place.commands[word]
    return None


def test_every_command_exists() -> None:
    """Except in the changelog, which names the commands that were renamed."""
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    named = [(name_of(page), words) for page in pages for words in commands_named(page)]
    assert {"run", "check", "show", "runs", "device"} <= {words[0] for _, words in named}
    assert not [(page, words) for page, words in named if unknown_command(words)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_extras_are_those_of_this_package_in_its_checkout(page: Path) -> None:
    """A package index may have another package of this name."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for place, names in re.findall(r"pip install '?([\w.]*)\[([\w,]+)\]", page.read_text()):
        assert place == "."
        assert set(names.split(",")) <= extras.keys()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_target_of_make_exists(page: Path) -> None:
    for name in re.findall(r"`make ([a-z-]+)[^`]*`", page.read_text("utf-8")):
        assert name in docs_pages.make_targets(), f"{name_of(page)}: make {name}"


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in _LINK.findall(index.read_text("utf-8"))}
    missing = [name_of(page) for page in PAGES if page.is_relative_to(ROOT / "docs") and page not in {*linked, index}]
    assert not missing


# -- the means themselves, tested --------------------------------------------------------------------------------------


def run_page(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    Page(page).run()


def test_a_plan_whose_results_are_not_shown_is_noticed() -> None:
    plan = "```yaml file=a.yaml{}\nasterism: 1\ntasks: {{a: {{shell: echo hello}}}}\n```\n"
    shown = "```console\n$ asterism run a.yaml{}\n{}\n```\n"

    def unseen(*parts: str) -> list[int]:
        return [block.line for block in docs_pages.unseen_plans("".join(parts))]

    assert unseen(plan.format("")) == [2]
    assert unseen(plan.format(" no-run")) == []
    assert unseen(plan.format("").replace(" file=a.yaml", "")) == []
    assert unseen(plan.format(""), "```console\n$ asterism check a.yaml\na.yaml is valid\n```\n") == [2]
    assert unseen(plan.format(""), shown.format("", "...\nState  completed\n...")) == [2]
    assert unseen(plan.format(""), shown.format("", "Results\n  a  ...")) == [2]
    assert unseen(plan.format(""), shown.format("", "...\nResults\n  a  hello")) == []
    assert unseen(plan.format(""), shown.format(" --json", '... "value": "hello"...')) == []


def test_a_plan_with_another_result_than_the_page_shows_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "```yaml file=a.yaml\nasterism: 1\ntasks: {{a: {{shell: echo loading $b}}}}\n```\n"
    text += "```console\n$ asterism run a.yaml --plain\n...\nResults\n  a  loading{}\n```\n"
    run_page(text.format(""), tmp_path, monkeypatch)
    with pytest.raises(SystemExit, match="the page says"):
        run_page(text.format(" 41"), tmp_path, monkeypatch)


def test_a_block_is_found_with_its_terms_and_its_line() -> None:
    parsed = list(blocks("text\n\n```python file=a.py\nx = 1\n```\n  ```console exit=2\n  $ make test\n  ```\n"))
    assert parsed == [
        Block("python", {"file": "a.py"}, "x = 1\n", 4),
        Block("console", {"exit": "2"}, "$ make test\n", 7),
    ]


def test_blocks_of_a_page_share_a_namespace_and_their_output_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = "```python\nx = 1\n```\n```python\nprint('it took', x, 's')\n```\n```text output\nit took {} s\n```\n"
    run_page(shown.format("..."), tmp_path, monkeypatch)
    with pytest.raises(SystemExit, match="the page says"):
        run_page(shown.format("2"), tmp_path, monkeypatch)


def test_the_time_of_an_event_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "```python\nprint('    0.41  a started')\n```\n```text output\n    {}\n```\n"
    run_page(shown.format("0.00  a started"), tmp_path, monkeypatch)
    with pytest.raises(SystemExit, match="the page says"):
        run_page(shown.format("0.00  b started"), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ asterism run nothing.yaml\n```\n",
        "```console\n$ asterism fly\n```\n",
        "```console\n$ asterism --version\nasterism 99\n```\n",
        "```console exit=1\n$ asterism --version\n```\n",
        "```console\n$ make nothing-of-the-kind\n```\n",
        "```python file=a.py\nprint(1)\n```\n```console\n$ python a.py\n2\n```\n",
    ],
)
def test_a_command_that_does_not_do_what_the_page_says_is_noticed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"page\.md:\d"):
        run_page(text, tmp_path, monkeypatch)


def test_a_python_block_that_fails_is_noticed_and_one_that_is_not_to_run_is_only_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_page("```python no-run\nraise RuntimeError\n```\n", tmp_path, monkeypatch)
    with pytest.raises(RuntimeError):
        run_page("```python\nraise RuntimeError\n```\n", tmp_path, monkeypatch)
    with pytest.raises(SyntaxError):
        run_page("```python no-run\nplan add\n```\n", tmp_path, monkeypatch)


def test_a_variable_holds_for_the_rest_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST", "SECOND"):
        monkeypatch.setenv(name, "")  # so that they are as before when this has ended
    show = "```python file=show.py\nimport os, sys\nprint(os.environ['FIRST'], *sys.argv[1:])\n```\n"
    text = "```console\n$ export FIRST=one\n$ SECOND=$(python show.py two)\n"
    text += "$ python show.py $SECOND $who\none one two $who\n```\n"
    run_page(show + text, tmp_path, monkeypatch)
    with pytest.raises(SystemExit, match="the page says"):
        run_page(show + text.replace("one one two", "one two"), tmp_path, monkeypatch)


def test_a_file_that_another_process_writes_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = "```python file=late.py\nimport os\n\nif not os.fork():\n    open('a.txt', 'w').write('done')\n```\n"
    text = late + "```console\n$ python late.py\n$ cat a.txt\n{}\n```\n"
    run_page(text.format("done"), tmp_path, monkeypatch)
    monkeypatch.setattr(process_scenes, "PATIENCE", 0.0)
    with pytest.raises(SystemExit, match=r"a\.txt has"):
        run_page(text.format("never"), tmp_path, monkeypatch)


LASTING = """```python file=lasting.py
import signal, sys

signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))
print("ready", flush=True)
signal.pause()
```
```console
$ python lasting.py &
{printed}
```
"""


def test_what_is_left_running_ends_with_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(LASTING.format(code=0, printed="ready"), tmp_path, monkeypatch)
    with pytest.raises(SystemExit, match="ended with 3"):
        run_page(LASTING.format(code=3, printed="ready"), tmp_path, monkeypatch)


def test_what_is_left_running_and_ends_too_early_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="it ended with"):
        run_page(LASTING.replace("signal.pause()", "").format(code=0, printed="steady"), tmp_path, monkeypatch)


def test_what_is_left_running_ends_also_if_the_page_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    start = docs_pages._started
    monkeypatch.setattr(
        docs_pages, "_started", lambda *args, **named: started.append(start(*args, **named)) or started[-1]
    )
    failing = "```console\n$ asterism --version\nasterism 99\n```\n"
    with pytest.raises(SystemExit, match="asterism 99"):
        run_page(LASTING.format(code=0, printed="ready") + failing, tmp_path, monkeypatch)
    assert [process.poll() is not None for process in started] == [True, True]


@pytest.mark.parametrize(
    "words", [["runs", "fly"], ["fly"], ["store", "check", "--store"], ["check", "plan"], ["runs"]]
)
def test_a_command_that_is_not_there_is_noticed(words: list[str]) -> None:
    assert unknown_command(words) == ("fly" if "fly" in words else None)


def test_a_broken_link_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Here\n[a](page.md#here) [b](nowhere.md) `[c](code.md)`\n[d](#there) [e](https://x.example/y)\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert list(broken_links(page)) == [
        "page.md:2: there is no nowhere.md",
        "page.md:3: this page has no heading 'there'",
    ]
