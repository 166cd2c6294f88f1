from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any

import pytest
from jsonschema import Draft202012Validator

from image_service.common.openapi.bodies import (
    Count,
    Json,
    Keywords,
    Time,
    body,
    parse_body,
    reference,
    render_body,
    schemas_of,
)

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@body()
class Leaf:
    color: Color
    weight: Annotated[int | None, "in grams"]


@body(description="of leaves", properties={"bark": {"description": "refused"}})
class TreeBody:
    name: Annotated[str, Keywords(maxLength=3)]
    size: Count
    born: Time | None
    state: str = "alive"
    is_old: bool = False
    leaves: Annotated[tuple[Leaf, ...], Keywords(maxItems=2)] = ()
    top: Leaf | None = None
    fruit: Leaf | None = None
    notes: Json = NOTHING
    by_name: Mapping[str, Leaf] = NOTHING
    further: list[object] | None = None


@body(is_open=True)
class Thing:
    id: str


SCHEMAS = schemas_of(TreeBody)


def is_valid(document: object) -> bool:
    schema = {**reference("Tree"), "components": {"schemas": SCHEMAS}}
    return Draft202012Validator(schema).is_valid(document)


def test_schema_has_the_members_and_what_is_required() -> None:
    assert SCHEMAS.keys() == {"Tree", "Leaf"}
    assert SCHEMAS["Leaf"] == {
        "type": "object",
        "additionalProperties": False,
        "required": ["color", "weight"],
        "properties": {
            "color": {"enum": ["red", "blue"]},
            "weight": {"type": ["integer", "null"], "description": "in grams"},
        },
    }
    tree: Any = SCHEMAS["Tree"]
    assert tree["description"] == "of leaves"
    assert tree["required"] == ["name", "size", "born"]
    assert tree["properties"] == {
        "name": {"type": "string", "maxLength": 3},
        "size": {"type": "integer", "minimum": 0},
        "born": {"type": ["string", "null"], "format": "date-time"},
        "state": {"type": "string", "default": "alive"},
        "is_old": {"type": "boolean", "default": False},
        "leaves": {"type": "array", "maxItems": 2, "items": reference("Leaf")},
        "top": reference("Leaf"),
        "fruit": reference("Leaf"),
        "notes": {"type": "object"},
        "by_name": {"type": "object", "additionalProperties": reference("Leaf")},
        "further": {"type": "array"},
        "bark": {"description": "refused"},
    }


def test_number_of_items_is_checked_before_them() -> None:
    assert list(SCHEMAS["Tree"]["properties"]["leaves"]) == ["type", "maxItems", "items"]  # type: ignore[index]


def test_open_body_may_have_other_members() -> None:
    assert "additionalProperties" not in schemas_of(Thing)["Thing"]
    assert parse_body(Thing, {"id": "a", "more": 1}) == Thing(id="a")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"name": "a", "size": 1, "born": None}, True),
        ({"name": "a", "size": 1}, False),
        ({"name": "a", "size": 1, "born": None, "top": None}, False),
        ({"name": "a", "size": 1, "born": None, "unknown": 1}, False),
        ({"name": "a", "size": 1, "born": None, "bark": 1}, True),
    ],
)
def test_optional_members_are_absent_not_null(document: object, *, expected: bool) -> None:
    assert is_valid(document) is expected


def test_body_is_rendered_as_it_is_parsed() -> None:
    tree = TreeBody(
        name="oak",
        size=3,
        born="2026-01-01T00:00:00Z",
        leaves=(Leaf(color=Color.RED, weight=None),),
        fruit=Leaf(color=Color.BLUE, weight=2),
        notes={"a": {"b": [1]}},
    )
    document = json.loads(json.dumps(tree, default=render_body))
    assert is_valid(document)
    assert "top" not in document
    assert document["leaves"] == [{"color": "red", "weight": None}]
    parsed = parse_body(TreeBody, document)
    assert parsed == tree


def test_whole_number_may_be_written_as_a_fraction() -> None:
    document = {"name": "a", "size": 3.0, "born": None, "bark": 1}
    assert is_valid(document)
    assert repr(parse_body(TreeBody, document).size) == "3"
