"""The published JSON Schema of plan files."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from asterism.planfile.models import Plan


class _Untitled(GenerateJsonSchema):
    """Without the titles that only repeat the names of keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """The schema, made from the models that check a file."""
    schema = Plan.model_json_schema(by_alias=True, schema_generator=_Untitled)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Asterism plan file"}
