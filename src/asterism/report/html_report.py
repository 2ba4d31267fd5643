"""The report of a run: one HTML page that needs nothing else, neither network nor files beside it."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

from asterism.base.durations import format_duration
from asterism.base.text import markup
from asterism.report.assets import beside
from asterism.report.report_data import Report
from asterism.report.report_sections import edits, figures, graph, pill, stories, tasks, time


def report(data: Report) -> str:
    """The whole page. Any text is safe in it: all data is escaped, and only the page's own script may run.

    Large plans are shown in part, and the page says so.
    """
    script = beside("report.js")
    # Should escaping ever fail, the browser still runs nothing but this one script and loads nothing at all.
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    sections = [figures(data), graph(data), time(data), tasks(data), edits(data), stories(data)]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{markup(data.title)}: report</title>
<link rel="icon" href="data:,">
<style>{beside("colours.css")}{beside("report.css")}</style>
</head>
<body class="asterism">
{_header(data)}
<main>
{"".join(sections)}
</main>
<script>{script}</script>
</body>
</html>
"""


def _header(data: Report) -> str:
    took = format_duration(data.ended_at - data.started_at)
    links = "".join(
        f'<a href="#{name.lower()}">{name}</a>' for name in ("Graph", "Timeline", "Tasks", "Edits", "Stories")
    )
    return (
        f'<header><p class="kind">Report of a run</p><h1>{markup(data.title)}</h1>'
        f'<p class="end">{pill(data.state)} after {took}</p>'
        f'<nav aria-label="Sections">{links}</nav></header>'
    )
