from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.common.openapi.document import reference
from image_service.jobs.api.schemas import SchemaCheck

if TYPE_CHECKING:
    from image_service.common.openapi.document import Schemas

SCHEMAS: Schemas = {
    "Outer": {
        "type": "object",
        "additionalProperties": False,
        "required": ["inner"],
        "properties": {
            "inner": {"type": "array", "items": reference("Inner")},
            "kind": {"enum": ["a", "b"]},
            "size": {"type": "integer", "minimum": 0},
        },
    },
    "Inner": {"type": "string"},
}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"inner": ["x"]}, None),
        ([], "the content must be of type object"),
        ({}, "the content must have inner"),
        ({"inner": [], "b": 1, "a": 1}, "the content must not have a, b"),
        ({"inner": ["x", {"secret": "s3cr3t"}]}, "inner[1] must be of type string"),
        ({"inner": [], "kind": "s3cr3t"}, "kind must be one of a, b"),
        ({"inner": [], "size": -12345}, "size violates minimum: 0"),
    ],
)
def test_violation_names_the_place_and_no_value(document: object, expected: str | None) -> None:
    assert SchemaCheck(SCHEMAS, "Outer").violation(document) == expected
