"""A picture as a Mermaid flowchart."""

from __future__ import annotations

import json
import re

from asterism.base.text import clean
from asterism.report.picture import STATUSES, DrawnTask, Picture

# Kept as they are: letters and digits, spaces, a few harmless signs, and hyphen, dot and underscore inside a
# word. Everything else could mean something to Mermaid, or to the Markdown that it finds in labels.
_LETTERS = re.compile(r"(?<=[^\W_])[-._](?=[^\W_])|[^\W_]|[ ,:/=]|(.)", re.DOTALL)

_CLASSES = {
    "pending": "fill:#f3f4f6,stroke:#6b7585,color:#1c2430",
    "waiting": "fill:#f7f1e1,stroke:#8f6400,color:#1c2430,stroke-dasharray:4 3",
    "queued": "fill:#f7f1e1,stroke:#8f6400,color:#1c2430",
    "starting": "fill:#f7f1e1,stroke:#8f6400,color:#1c2430",
    "running": "fill:#e3edfb,stroke:#2563c9,color:#1c2430,stroke-width:2px",
    "completed": "fill:#e2f3e9,stroke:#1a7f4b,color:#1c2430",
    "failed": "fill:#fbe6e4,stroke:#c2372e,color:#1c2430,stroke-width:2px",
    "cancelled": "fill:#eceef1,stroke:#6b7585,color:#4a5462,stroke-dasharray:2 3",
    "removed": "fill:#ffffff,stroke:#a3abb7,color:#6b7585,stroke-dasharray:1 4",
}

_LINKS = {
    "failure": "stroke:#c2372e,stroke-dasharray:6 4",
    "completion": "stroke-dasharray:2 4",
    "always": "stroke-dasharray:1 5",
    "teardown": "stroke:#8f6400,stroke-dasharray:10 3",
    "condition": "stroke:#7a4fc4",
}


def mermaid(picture: Picture) -> str:
    """The picture as a left-to-right flowchart. Ids are made up and labels escaped, so any text is safe.

    Raises `ValueError` for a picture that is not a graph without cycles.
    """
    picture.in_order()  # it has no cycle
    numbers = {drawn_task.id: number for number, drawn_task in enumerate(picture.tasks)}
    lines = ["---", f"title: {json.dumps(clean(picture.title), ensure_ascii=False)}", "---", "flowchart LR"]
    lines += [
        f'  n{number}["{_words(drawn_task)}"]:::{_class(drawn_task)}' for number, drawn_task in enumerate(picture.tasks)
    ]
    for line in picture.edges:
        label = f'|"{_escape(line.words)}"|' if line.words else ""
        lines.append(f"  n{numbers[line.source]} -->{label} n{numbers[line.target]}")
    lines += [f"  classDef {status} {style}" for status, style in _CLASSES.items()]
    lines += _link_styles(picture)
    return "\n".join(lines) + "\n"


def _words(drawn_task: DrawnTask) -> str:
    more = "" if drawn_task.label in ("", drawn_task.id) else f"<br/>{_escape(drawn_task.label)}"
    return _escape(drawn_task.id) + more


def _class(drawn_task: DrawnTask) -> str:
    return drawn_task.status if drawn_task.status in STATUSES else "pending"


def _escape(text: str) -> str:
    return _LETTERS.sub(lambda match: f"#{ord(match[1])};" if match[1] else match[0], clean(text))


def _link_styles(picture: Picture) -> list[str]:
    styles = []
    for kind, style in _LINKS.items():
        numbers = ",".join(str(number) for number, line in enumerate(picture.edges) if line.kind == kind)
        if numbers:
            styles.append(f"  linkStyle {numbers} {style}")
    return styles
