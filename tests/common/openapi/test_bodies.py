from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any, Literal

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
    color: Color | None
    weight: Annotated[float, "in grams"] = 1.0


@body(description="of leaves", properties={"bark": {"description": "refused"}})
class TreeBody:
    name: Annotated[str, Keywords(maxLength=3)]
    size: Count
    born: Time | None
    state: Literal["alive", "dead"] = "alive"
    is_old: bool = False
    leaves: Annotated[tuple[Leaf, ...], Keywords(maxItems=2)] = ()
    top: Leaf | None = None
    twin: TreeBody | None = None
    notes: Json = NOTHING
    by_name: Mapping[str, Leaf] = NOTHING
    further: list[object] | None = None
    anything: object = None


@body(is_open=True)
class Thing:
    id: str


@body(is_open=True)
class ThingWithLeaf(Thing):
    leaf: Leaf | None


SCHEMAS = schemas_of(TreeBody)


def is_valid(document: object) -> bool:
    schema = {**reference("Tree"), "components": {"schemas": SCHEMAS}}
    return Draft202012Validator(schema).is_valid(document)


def test_schema_has_the_members_and_what_is_required() -> None:
    assert SCHEMAS.keys() == {"Tree", "Leaf"}
    assert SCHEMAS["Leaf"] == {
        "type": "object",
        "additionalProperties": False,
        "required": ["color"],
        "properties": {
            "color": {"enum": ["red", "blue", None]},
            "weight": {"type": "number", "description": "in grams"},
        },
    }
    tree: Any = SCHEMAS["Tree"]
    assert tree["description"] == "of leaves"
    assert tree["required"] == ["name", "size", "born"]
    assert tree["properties"] == {
        "name": {"type": "string", "maxLength": 3},
        "size": {"type": "integer", "minimum": 0},
        "born": {"type": ["string", "null"], "format": "date-time"},
        "state": {"enum": ["alive", "dead"], "default": "alive"},
        "is_old": {"type": "boolean", "default": False},
        "leaves": {"type": "array", "maxItems": 2, "items": reference("Leaf")},
        "top": reference("Leaf"),
        "twin": reference("Tree"),
        "notes": {"type": "object"},
        "by_name": {"type": "object", "additionalProperties": reference("Leaf")},
        "further": {"type": "array"},
        "anything": {},
        "bark": {"description": "refused"},
    }


def test_number_of_items_is_checked_before_them() -> None:
    assert list(SCHEMAS["Tree"]["properties"]["leaves"]) == ["type", "maxItems", "items"]  # type: ignore[index]


def test_open_body_extends_another() -> None:
    schemas = schemas_of(ThingWithLeaf)
    own = {
        "type": "object",
        "required": ["leaf"],
        "properties": {"leaf": {"oneOf": [reference("Leaf"), {"type": "null"}]}},
    }
    assert schemas.keys() == {"ThingWithLeaf", "Thing", "Leaf"}
    assert schemas["ThingWithLeaf"] == {"allOf": [reference("Thing"), own]}
    assert parse_body(ThingWithLeaf, {"id": "a", "leaf": None, "more": 1}) == ThingWithLeaf(id="a", leaf=None)


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
        leaves=(Leaf(color=None),),
        twin=TreeBody(name="elm", size=1, born=None),
        notes={"a": {"b": [1]}},
    )
    document = json.loads(json.dumps(tree, default=render_body))
    assert is_valid(document)
    assert "top" not in document
    assert document["twin"]["born"] is None
    assert document["leaves"] == [{"color": None, "weight": 1.0}]
    parsed = parse_body(TreeBody, document)
    assert (parsed.leaves, parsed.twin, parsed.notes) == (tree.leaves, tree.twin, tree.notes)


def test_whole_number_may_be_written_as_a_fraction() -> None:
    document = {"name": "a", "size": 3.0, "born": None, "bark": 1}
    assert is_valid(document)
    assert repr(parse_body(TreeBody, document).size) == "3"


def test_enumeration_is_rendered_as_its_value() -> None:
    assert json.dumps(Leaf(color=Color.RED), default=render_body) == '{"color": "red", "weight": 1.0}'
