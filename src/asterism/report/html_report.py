"""The report of a plan: the page of the server in one HTML file with its data, which needs no server and no network."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from asterism.base.text import markup

PAGE = files("asterism") / "server" / "page"
ENTRY = "report.js"
STYLES = ("page.css", "graph.css", "lists.css")

_FILE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>$title: report</title>
<link rel="icon" href="data:,">
<style>$styles</style>
</head>
<body class="asterism">
<div id="page"><div class="loading"><h1>$title</h1>$text</div></div>
<script type="application/json" id="data">$data</script>
<script>$script</script>
</body>
</html>
""")


def report(documents: Mapping[str, Any]) -> str:
    """The file. ``documents`` are those that ``result_report.report_of`` makes. Any text is safe in it: the data cannot
    leave its element, and only the script of the page may run. Without scripts, the summary is text."""
    plan, summary = documents["plan"], documents["summary"]
    script = page_script()
    # Should escaping ever fail, the browser still runs nothing but this one script and loads nothing at all.
    digest = b64encode(sha256(script.encode()).digest()).decode()
    reasons = (f"{task['id']} failed: {task['reason']}" for task in plan["tasks"] if task["status"] == "failed")
    began = f", began {summary['began']}" if summary["began"] else ""
    lines = (f"{plan['state_text']} {summary['took']}{began}", *reasons)
    return _FILE.substitute(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
        title=markup(plan["name"]),
        styles="".join((PAGE / name).read_text("utf-8") for name in STYLES),
        text="".join(f"<p>{markup(line)}</p>" for line in lines),
        data=script_data(documents),
        script=script,
    )


def script_data(data: Any) -> str:
    """Data as JSON that no HTML parser takes for markup."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=repr)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


# -- the modules of the page as one script -----------------------------------------------------------------------------

_IMPORT = re.compile(
    r'\bimport\s*(?:(?P<default>\w+)\s+from\s*|\{(?P<names>[^{}]*)\}\s*from\s*)?"(?P<path>\./[^"]+)";?'
)
_EXPORT_FROM = re.compile(r'\bexport\s*\{(?P<names>[^{}]*)\}\s*from\s*"(?P<path>\./[^"]+)";?')
_EXPORT_LIST = re.compile(r"\bexport\s*\{(?P<names>[^{}]*)\};?")
_EXPORT = re.compile(r"^export (?=(?:async function\*?|function\*?|class|const) (\w+))", re.MULTILINE)
_DEFAULT = "export default "


@cache
def page_script() -> str:
    """The modules that the report needs as one script, each after those that it imports."""
    modules: dict[str, str] = {}
    _add_module(ENTRY, modules, ())
    return '"use strict";\nconst modules = {};\n' + "".join(modules.values())


def _add_module(name: str, modules: dict[str, str], importers: tuple[str, ...]) -> None:
    """Raises ValueError if modules import each other."""
    if name in importers:
        raise ValueError(f"these modules import each other: {', '.join((*importers, name))}")
    if name in modules:
        return
    source = (PAGE / name).read_text("utf-8")
    exported: list[str] = []
    folder = name.rpartition("/")[0]

    def imported(path: str) -> str:
        other = "/".join(filter(None, (folder, path.removeprefix("./"))))
        _add_module(other, modules, (*importers, name))
        return f"modules[{other!r}]"

    def export_from(match: re.Match[str]) -> str:
        other = imported(match["path"])
        exported.extend(f"{public}: {other}.{own}" for own, public in _names(match["names"]))
        return ""

    def export_list(match: re.Match[str]) -> str:
        exported.extend(f"{public}: {own}" for own, public in _names(match["names"]))
        return ""

    def export(match: re.Match[str]) -> str:
        exported.append(match[1])
        return ""

    def bring(match: re.Match[str]) -> str:
        other = imported(match["path"])
        if match["default"]:
            return f"const {match['default']} = {other}.default;"
        if match["names"] is None:
            return ""
        return f"const {{ {', '.join(f'{theirs}: {ours}' for theirs, ours in _names(match['names']))} }} = {other};"

    source = _EXPORT_FROM.sub(export_from, source)
    source = _IMPORT.sub(bring, source)
    source = _EXPORT_LIST.sub(export_list, source)
    source = _EXPORT.sub(export, source)
    if _DEFAULT in source:
        source = source.replace(_DEFAULT, "const defaultExport = ")
        exported.append("default: defaultExport")
    modules[name] = f"modules[{name!r}] = (() => {{\n{source}\nreturn {{ {', '.join(exported)} }};\n}})();\n"


def _names(text: str) -> list[tuple[str, str]]:
    """The names in braces: what stands before ``as``, and what stands after it."""
    pairs = [part.split(" as ") for part in text.split(",") if part.strip()]
    return [(pair[0].strip(), pair[-1].strip()) for pair in pairs]
