"""Writes the tables of commands, endpoints and MCP tools into their pages: ``make reference``."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from asterism.api.operation import Operation, Reason
from asterism.api.operations import OPERATIONS
from asterism.core.record import Meta
from asterism.mcp.mcp_tools import TOOLS, McpTool
from asterism.server.endpoint import Endpoint
from asterism.server.http_service import endpoints
from tests.docs.command_tables import with_command_tables, with_table

ROOT = Path(__file__).parents[2]
HTTP_PAGE, MCP_PAGE = ROOT / "docs/reference/http-api.md", ROOT / "docs/how-to/mcp.md"
COMMAND_PAGE = ROOT / "docs/reference/command-line.md"

SCOPES = {None: "", "known": "any", "observe series": "`observe` or `series`", "edit {plan}": "`edit:PLAN`"}
PLAIN = {"reason", "author", "after", "timeout", "dry_run", "tries", "deadline"}
"""Fields that mean the same wherever they occur: the page explains them once."""


def http_table() -> str:
    rows = [
        f"| `{endpoint.method} {endpoint.path}` | {_scope(endpoint.needs)} | {_effect(endpoint)} |"
        for endpoint in endpoints()
    ]
    return "\n".join(["| path | scope | what it does |", "| --- | --- | --- |", *rows, ""])


def mcp_table() -> str:
    rows = [
        f"| `{tool.name}` | {_scope(tool.operation.needs)} | {tool.text} | {_arguments(tool)} |"
        for tool in TOOLS.values()
    ]
    return "\n".join(["| tool | scope | what it does | arguments |", "| --- | --- | --- | --- |", *rows, ""])


def _scope(needs: str | None) -> str:
    return SCOPES.get(needs) or (f"`{needs.removesuffix(' {plan}')}`" if needs else "")


def _arguments(tool: McpTool) -> str:
    return ", ".join(f"`{name}`" for name in sorted(tool.arguments))


def _effect(endpoint: Endpoint) -> str:
    operation = OPERATIONS.get(endpoint.name)
    return endpoint.summary if operation is None else " ".join(_sentences(operation, endpoint.parameters))


def _sentences(operation: Operation[Any, Any, Any], in_path: list[str]) -> list[str]:
    """What an operation does, what its request means, and its fields outside the path."""
    request = operation.fields
    fields = [name for name in request.__struct_fields__ if name not in in_path]
    text = inspect.cleandoc(request.__doc__ or "").partition("\n\n")[0]
    meaning = re.sub(r"\s+", " ", text) if fields else ""
    hints = get_type_hints(request, include_extras=True)
    shown = [_field(name, hints[name]) for name in fields]
    parts = [operation.text, meaning.replace("``", "`"), f"Fields: {', '.join(shown)}." if shown else ""]
    return [part for part in parts if part]


def _field(name: str, hint: Any) -> str:
    docs = [] if name in PLAIN or hint == Reason else [note.description for note in _metadata(hint) if note.description]
    return f"`{name}`" + (f" ({docs[0].rstrip('.')})" if docs else "")


def _metadata(hint: Any) -> tuple[Meta, ...]:
    """The annotations of a field, also of one that may be null."""
    if get_origin(hint) is Annotated:
        return (*reversed(hint.__metadata__), *_metadata(hint.__origin__))
    return tuple(note for part in get_args(hint) for note in _metadata(part))


PAGES = {
    HTTP_PAGE: lambda page: with_table(page, http_table()),
    MCP_PAGE: lambda page: with_table(page, mcp_table()),
    COMMAND_PAGE: with_command_tables,
}


def filled(page: Path) -> str:
    """A page with its tables."""
    return PAGES[page](page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page), encoding="utf-8")
