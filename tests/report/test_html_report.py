"""The report in one file: complete, self-contained, and safe for any text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism import Constellation, Result, Task
from asterism.report import html_report
from asterism.report.html_report import page_script, report, script_data
from asterism.report.result_report import report_of

VOID = {"meta", "link"}


def documents(name: str = "release", task: str = "fetch") -> dict[str, Any]:
    plan = Constellation(name)
    plan.add(Task(task, shell="true", description=task))
    return report_of(Result(plan, [], None, "scoped"))


class Page(HTMLParser):
    """Reads a page; fails when a tag is not closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.elements: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1][0] == "script":
            self.scripts.append((self.open[-1][1], data))
        elif self.open and self.open[-1][0] != "style":
            self.texts.append(data)


ELEMENTS = ["html", "head", "meta", "meta", "meta", "meta", "title", "link", "style", "body", "div", "div", "h1", "p"]
ELEMENTS += ["script", "script"]


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00\r"), min_size=1))
@settings(deadline=None)
def test_any_text_is_safe_and_comes_back_whole(text: str) -> None:
    data = {**documents(), "summary": {"took": text, "began": ""}, "text": text}
    data["plan"] = {**data["plan"], "name": text}
    page = Page(report(data))
    assert page.elements == ELEMENTS
    (attributes, told), (_, script) = page.scripts
    assert attributes == {"type": "application/json", "id": "data"}
    assert json.loads(told)["text"] == text
    assert script == page_script()


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--<script>", "]]>", "$title"])
def test_nasty_text_cannot_leave_the_data(text: str) -> None:
    data = documents(name=f"a{text}", task=f"b{text}")
    written = report(data)
    page = Page(written)
    assert page.elements == ELEMENTS
    assert json.loads(page.scripts[0][1])["plan"]["tasks"][0]["id"] == f"b{text}"
    assert written.count("<script") == 2
    assert not re.search("[<\u2028\u2029]", script_data(data))


def test_the_file_loads_nothing() -> None:
    text = report(documents()).replace("http://www.w3.org/", "")
    assert not re.search(
        r"https?:|@import|url\((?!#)|\bsrc=", re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL)
    )
    assert "default-src 'none'" in text
    assert "connect-src" not in text


def test_the_script_is_that_of_the_page_without_imports() -> None:
    script = page_script()
    assert not re.search(r"^\s*(import|export)\b", script, re.MULTILINE)
    assert "</script" not in script.lower()
    assert "<!--" not in script
    assert "modules['vendor/preact.mjs']" in script
    assert "main.js" not in script, "the rest of the page is not in the report"


def test_modules_that_import_each_other_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report.js").write_text('import { b } from "./other.js";\nexport const a = 1;\n')
    (tmp_path / "other.js").write_text('import { a } from "./report.js";\nexport const b = 1;\n')
    monkeypatch.setattr(html_report, "PAGE", tmp_path)
    page_script.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"import each other: report\.js, other\.js, report\.js"):
            page_script()
    finally:
        page_script.cache_clear()


def test_every_form_of_import_and_export_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        "report.js": 'import "./d.js"; // for its effect\nimport make from "./a.js";\n'
        'import { one, two as zwei } from "./b.js";\n',
        "a.js": "export default function (x) { return x; }\n",
        "b.js": 'export { one } from "./c.js";\nexport const two = 2;\nexport async function three() {}\n',
        "c.js": "var o=1,f;export{o as one,f};",
        "d.js": "// nothing\n",
    }
    for name, text in modules.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(html_report, "PAGE", tmp_path)
    page_script.cache_clear()
    script = page_script()
    page_script.cache_clear()
    assert "const make = modules['a.js'].default;" in script
    assert "const { one: one, two: zwei } = modules['b.js'];" in script
    assert "return { one: modules['c.js'].one, two, three };" in script
    assert "return { one: o, f: f };" in script
    assert [script.index(f"modules['{name}'] =") for name in ("d.js", "a.js", "c.js", "b.js", "report.js")] == sorted(
        script.index(f"modules['{name}'] =") for name in modules
    )


def test_without_scripts_the_file_has_a_summary() -> None:
    async def never() -> None:
        raise AssertionError

    plan = Constellation("release <1>")
    plan.add(Task("a", call=never))
    text = " ".join(Page(report(report_of(Result(plan, [], None, "scoped")))).texts)
    assert "release <1>" in text
    assert "created" in text
    assert "1970" not in text, "it has not begun"
