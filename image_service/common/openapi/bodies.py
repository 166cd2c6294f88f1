"""Bodies of requests and replies as attrs classes, whose fields give their schemas, reading and rendering.

The annotation of a field is its schema; ``Annotated`` adds a description and other `Keywords` to it. A member
whose field has a default may be absent; if that default is None it is never null.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, EnumType
from functools import cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeAlias,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

Json: TypeAlias = Mapping[str, object]
"""A JSON object."""
Schemas: TypeAlias = Mapping[str, Json]
"""JSON Schemas (2020-12) by name; they refer to each other by ``#/components/schemas/NAME``."""


class Keywords:
    """Keywords of JSON Schema in an annotation."""

    def __init__(self, **values: object) -> None:
        self.values = values


Time: TypeAlias = Annotated[str, Keywords(format="date-time")]
Count: TypeAlias = Annotated[int, Keywords(minimum=0)]

_Class = TypeVar("_Class", bound=type)
_Body = TypeVar("_Body")

_TYPES: Mapping[object, str] = {str: "string", int: "integer", bool: "boolean", list[object]: "array"}
_UNIONS = {Union, UnionType}
_KEYWORDS: dict[type, dict[str, Any]] = {}  # of each body


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(attrs.field,))
def body(*, is_open: bool = False, **keywords: object) -> Callable[[_Class], _Class]:
    """Return a decorator that makes a class a body. Its schema has its name, without a final ``Body``.

    Args:
        is_open: an object may have other members too, which are ignored.
        keywords: of the schema; ``properties`` are those of members without a field.
    """

    def decorate(cls: _Class) -> _Class:
        made = attrs.frozen(kw_only=True)(cls)
        _KEYWORDS[made] = keywords if is_open else {"additionalProperties": False, **keywords}
        return made

    return decorate


def reference(name: str) -> Json:
    """Return a reference to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def schemas_of(*bodies: type) -> Schemas:
    """Return the schemas of bodies, and of those in their fields."""
    found: dict[str, Json] = {}
    for each in bodies:
        _refer(each, found)
    return found


def parse_body(cls: type[_Body], document: Mapping[str, Any]) -> _Body:
    """Return the body that a document is; it has passed the check of its schema."""
    types = _types(cls)  # type: ignore[arg-type]  # a class is hashable
    return cls(**{name: _parse(types[name], value) for name, value in document.items() if name in types})


def render_body(value: Any) -> object:  # noqa: ANN401 - it is the `default` of json.dumps
    """Return a body as a dictionary, whose values may be bodies; a mapping and an enumeration likewise."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Enum):
        return value.value
    members = [(field, getattr(value, field.name)) for field in attrs.fields(type(value))]
    return {field.name: member for field, member in members if not (member is field.default is None)}


@cache
def _types(cls: type) -> Mapping[str, Any]:
    """Return the annotations of a body; evaluating them takes longer than reading a request."""
    return get_type_hints(cls, include_extras=True)


def _refer(cls: type, found: dict[str, Json]) -> Json:
    """Return a reference to the schema of a body, and add that to those found."""
    name = cls.__name__.removesuffix("Body")
    if name not in found:
        found[name] = _body_schema(cls, found)
    return reference(name)


def _body_schema(cls: type, found: dict[str, Json]) -> Json:
    types, fields = _types(cls), attrs.fields(cls)
    properties = {field.name: _member_schema(types[field.name], field.default, found) for field in fields}
    required = [field.name for field in fields if field.default is attrs.NOTHING]
    keywords = dict(_KEYWORDS[cls])
    further = keywords.pop("properties", {})
    return {"type": "object", **keywords, "required": required, "properties": {**properties, **further}}


def _member_schema(type_: Any, default: object, found: dict[str, Json]) -> Json:  # noqa: ANN401 - an annotation
    schema = _schema(type_, found, is_nullable=default is not None)
    return {**schema, "default": default} if isinstance(default, str | int) else schema


def _schema(type_: Any, found: dict[str, Json], *, is_nullable: bool = True) -> Json:  # noqa: ANN401 - same
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Annotated:
        schema = {**_schema(arguments[0], found, is_nullable=is_nullable)}
        for note in arguments[1:]:
            schema |= {"description": note} if isinstance(note, str) else note.values
        if "items" in schema:
            schema["items"] = schema.pop("items")  # checked after their number
        return schema
    if origin in _UNIONS:
        schema = {**_schema(arguments[0], found)}
        return {**schema, "type": [schema["type"], "null"]} if is_nullable else schema
    if origin is Mapping:
        values = {} if arguments[1] is object else {"additionalProperties": _schema(arguments[1], found)}
        return {"type": "object", **values}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], found)}
    if type_ in _KEYWORDS:
        return _refer(type_, found)
    return {"type": _TYPES[type_]} if type_ in _TYPES else {"enum": [each.value for each in type_]}


def _parse(type_: Any, value: Any) -> Any:  # noqa: ANN401 - JSON
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Annotated or (origin in _UNIONS and value is not None):
        return _parse(arguments[0], value)
    if origin is tuple:
        return tuple(_parse(arguments[0], each) for each in value)
    if type_ in _KEYWORDS:
        return parse_body(type_, value)
    # 1024.0 is an integer of JSON Schema, too
    return type_(value) if type_ is int or isinstance(type_, EnumType) else value
