"""Writes replies as XML, as botocore's model of EC2 describes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from image_service.jobs.ec2.xml_text import markup

if TYPE_CHECKING:
    from botocore.model import OperationModel, Shape


def reply_document(
    operation: OperationModel, result: Mapping[str, Any], version: str, request_id: str
) -> bytes:
    """Return the XML document of a success.

    Args:
        result: members of the output; that of an operation without output is empty, and its reply is true.
        version: of the API, as the request has it.

    Raises:
        KeyError: the output has no such member.
    """
    output = operation.output_shape
    if output is None:
        content = _element("return", "true")
    elif unknown := result.keys() - output.members.keys():
        raise KeyError(*unknown)
    else:
        content = _content(output, result)
    namespace = f"http://ec2.amazonaws.com/doc/{version}/"
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<{operation.name}Response xmlns="{namespace}">'
        f"{_element('requestId', request_id)}{content}</{operation.name}Response>\n"
    ).encode()


def _content(shape: Shape, value: object) -> str:
    """Return the elements of a value, without those of another form: damaged rows have them."""
    if shape.type_name == "structure":
        members = shape.members
        known = value if isinstance(value, Mapping) else {}
        return "".join(
            _element(members[key].serialization.get("name", key), _content(members[key], item))
            for key, item in known.items()
            if item is not None and key in members
        )
    if shape.type_name == "list":
        name = shape.member.serialization.get("name", "member")
        listed = value if isinstance(value, list | tuple) else ()
        return "".join(_element(name, _content(shape.member, item)) for item in listed)
    if shape.type_name == "boolean":
        return "true" if value else "false"
    return markup(str(value))


def _element(name: str, content: str) -> str:
    return f"<{name}>{content}</{name}>"
