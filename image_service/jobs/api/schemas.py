"""Checks JSON documents by the schemas of an API's OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator

from image_service.common.openapi.document import reference

if TYPE_CHECKING:
    from jsonschema import ValidationError

    from image_service.common.openapi.document import Schemas


class SchemaCheck:
    """Checks documents by one schema."""

    def __init__(self, schemas: Schemas, name: str) -> None:
        self._validator = Draft202012Validator({**reference(name), "components": {"schemas": schemas}})

    def violation(self, document: object) -> str | None:
        """Return the place where a document violates the schema, and a right value; None: nowhere.

        The text has names of members, never values, which may be secret.
        """
        error = next(self._validator.iter_errors(document), None)  # all of them would take long
        return None if error is None else _describe(error)


def _describe(error: ValidationError) -> str:
    place = error.json_path.removeprefix("$").removeprefix(".") or "the content"
    expected: Any = error.validator_value
    instance: Any = error.instance
    match error.validator:
        case "additionalProperties":
            schema: Any = error.schema
            return f"{place} must not have {', '.join(sorted(set(instance) - set(schema['properties'])))}"
        case "required":
            return f"{place} must have {', '.join(name for name in expected if name not in instance)}"
        case "type":
            return f"{place} must be of type {expected}"
        case "enum":
            return f"{place} must be one of {', '.join(map(str, expected))}"
        case keyword:
            return f"{place} violates {keyword}: {expected}"
