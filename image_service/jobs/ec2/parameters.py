"""Reads the parameters of a request, as botocore's model of EC2 describes them. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from image_service.jobs.ec2.errors import Ec2Error, invalid_value, missing_parameter
from image_service.jobs.ec2.xml_text import is_representable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from botocore.model import ListShape, Shape, StructureShape

_NAME = re.compile(r"[A-Za-z0-9]{1,128}(?:\.[A-Za-z0-9]{1,128}){0,15}")
_INDEX = re.compile(r"[1-9][0-9]{0,8}")
_MODEL_NAMES = {
    "LaunchSpecification.Monitoring.Enabled": "LaunchSpecification.Monitoring",
    "LaunchSpecification.UserData": "LaunchSpecification.UserData.Data",
}
"""EC2's names of parameters for which euca2ools has others."""
_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")


def parse_form(body: bytes) -> dict[str, str]:
    """Return the parameters of a request's content by name.

    Raises:
        Ec2Error: it is not a form in UTF-8, a name is invalid or repeated, or XML cannot represent a value.
    """
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise Ec2Error("InvalidCharacter", "the content of the request must be in UTF-8") from None
    form: dict[str, str] = {}
    for sent_name, value in pairs:
        name = _MODEL_NAMES.get(sent_name, sent_name)
        if not _NAME.fullmatch(name):
            raise Ec2Error("InvalidQueryParameter", "a name must be letters and digits, in parts after dots")
        if name in form:
            raise Ec2Error("InvalidQueryParameter", f"the parameter {name} must not be repeated")
        if not is_representable(value):
            raise Ec2Error("InvalidCharacter", f"the value of {name} must have no control characters")
        form[name] = value
    return form


def read_parameters(shape: StructureShape, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the input of an operation.

    Args:
        form: parameters by name, without those that every operation has.

    Raises:
        Ec2Error: a parameter is unknown or missing, or its value is invalid.
    """
    return _read_structure(shape, form, "")


def one_of(name: str, value: str, values: Collection[str]) -> str:
    """Return the value of a parameter, as `values` spells it; the request may spell it in any case.

    Raises:
        Ec2Error: it is empty, or none of them.
    """
    if not value:
        raise missing_parameter(name)
    for each in values:
        if each.lower() == value.lower():
            return each
    raise invalid_value(f"{name} must be one of {', '.join(values)}")


def _read_structure(shape: StructureShape, texts: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return a structure.

    Args:
        texts: values by the names of its members and, after dots, of the members' members.
        name: of the structure, with a dot at its end; "": it is the input.
    """
    groups = _group(texts, name)
    values = {}
    for key, member in shape.members.items():
        wire_name = _wire_name(key, member)
        if wire_name in groups:
            values[key] = _read(member, groups.pop(wire_name), f"{name}{wire_name}")
        elif key in shape.required_members:
            raise missing_parameter(f"{name}{wire_name}")
    for unknown in groups:
        raise Ec2Error("UnknownParameter", f"the operation has no parameter {name}{unknown}")
    return values


def _read_list(shape: ListShape, texts: Mapping[str, str], name: str) -> list[Any]:
    """Return a list, in the order of its indices, which may have gaps."""
    groups = _group(texts, name)
    for index in groups:
        if not _INDEX.fullmatch(index):
            raise Ec2Error("UnknownParameter", f"{name}{index} must be {name} and an index from 1")
    return [_read(shape.member, groups[index], f"{name}{index}") for index in sorted(groups, key=int)]


def _read(shape: Shape, texts: Mapping[str, str], name: str) -> Any:  # noqa: ANN401 - of any type
    if shape.type_name == "structure":
        return _read_structure(shape, texts, f"{name}.")
    if shape.type_name == "list":
        return _read_list(shape, texts, f"{name}.")
    for member in texts:
        if member:
            raise Ec2Error("UnknownParameter", f"the operation has no parameter {name}.{member}")
    return _SCALARS[shape.type_name](texts[""], name)


def _group(texts: Mapping[str, str], name: str) -> dict[str, dict[str, str]]:
    """Return texts by the first part of their names; each has the rest as its name."""
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for path, text in texts.items():
        if not path:
            raise Ec2Error("UnknownParameter", f"the operation has no parameter {name.removesuffix('.')}")
        first, _, rest = path.partition(".")
        groups[first][rest] = text
    return groups


def _wire_name(key: str, member: Shape) -> str:
    """Return the name of a member in a request, as EC2's protocol forms it."""
    found: str = member.serialization.get("queryName") or member.serialization.get("name", key)
    return found[0].upper() + found[1:]


def _read_whole_number(text: str, name: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise invalid_value(f"{name} must be a whole number of at most 18 digits")
    return int(text)


def _read_number(text: str, name: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise invalid_value(f"{name} must be a number")
    return float(text)


def _read_time(text: str, name: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise invalid_value(f"{name} must be a time such as 2026-11-23T12:00:00Z") from None
    return text


def _read_flag(text: str, name: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise invalid_value(f"{name} must be true or false")
    return text.lower() == "true"


_SCALARS: dict[str, Callable[[str, str], object]] = {
    "string": lambda text, _: text,
    "integer": _read_whole_number,
    "long": _read_whole_number,
    "boolean": _read_flag,
    "double": _read_number,
    "timestamp": _read_time,
}
"""Readers of a text and its parameter's name, by type; the operations that are served have no other types."""
