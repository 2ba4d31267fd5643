"""The published JSON Schema of plan files."""

from __future__ import annotations

from typing import Any

from asterism.surfaces.planfile.shape import Plan


def json_schema() -> dict[str, Any]:
    """The schema, made from the models that check a file."""
    schema = Plan.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Asterism plan file"}
