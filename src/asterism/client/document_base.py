"""What all documents of the HTTP API have in common, and pages of lists."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

Item = TypeVar("Item")


class Document(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Page(Document, Generic[Item]):
    """A part of a list. ``next`` is the value of ``after`` for the part that follows; null at the end."""

    items: list[Item]
    next: str | None = None
