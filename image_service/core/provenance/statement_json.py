"""The JSON of statements: an in-toto Statement v1, in the format of docs/provenance.md.

A statement has the same bytes on every replica: it depends on no library that compresses, on no clock and on
no order.
"""

from __future__ import annotations

import base64
import json
import zlib
from datetime import UTC, datetime
from typing import Any

from image_service.core.errors import FormatError
from image_service.core.extents import Literal, Zeros
from image_service.core.formats.deflate import deflate_by_huffman
from image_service.core.provenance.statement import (
    MAX_BENEATH,
    Purpose,
    StatedBase,
    StatedOverlay,
    StatedPart,
    StatedTail,
    Statement,
)

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://image-service.invalid/boot-image/v1"
"""The type of the predicate; in a domain that nobody can own (RFC 2606), so it names and does not resolve."""

_TIME = "%Y-%m-%dT%H:%M:%SZ"


def render_statement(statement: Statement) -> bytes:
    """Return a statement as JSON, the same bytes for equal ones."""
    base = statement.base
    predicate: dict[str, Any] = {
        "layout": statement.layout,
        "length": statement.length,
        "base": {
            "digest": {"sha256": base.sha256},
            "length": base.length,
            "version": base.version,
            "architecture": base.architecture,
        },
    }
    if statement.excerpt:
        predicate["excerpt"] = [_render_tail(each) for each in statement.excerpt]
    else:
        predicate["overlays"] = [
            {**_render(each), "beneath": _pack(each.beneath)} for each in statement.overlays
        ]
        predicate["tail"] = [_render_tail(each) for each in statement.tail]
    if statement.time is not None:
        predicate["time"] = statement.time.strftime(_TIME)
    if base.origin is not None:
        predicate["base"]["origin"] = base.origin
    if base.signature is not None:
        predicate["base"]["signature"] = {"openpgp": base64.b64encode(base.signature).decode()}
    if base.block_length is not None:
        predicate["base"]["blocks"] = {"length": base.block_length, "sha256": list(base.blocks)}
    if statement.config_sha256 is not None:
        predicate["ignition"] = {"digest": {"sha256": statement.config_sha256}}
    members = {
        "_type": STATEMENT,
        "subject": [{"name": statement.file_name, "digest": {"sha256": statement.sha256}}],
        "predicateType": PREDICATE,
        "predicate": predicate,
    }
    return json.dumps(members, sort_keys=True, separators=(",", ":")).encode()


def _render(part: StatedPart) -> dict[str, Any]:
    return {
        "offset": part.offset,
        "length": part.length,
        "digest": {"sha256": part.sha256},
        "purpose": part.purpose.value,
    }


def _render_tail(part: StatedTail) -> dict[str, Any]:
    return {**_render(part), **({} if part.source is None else {"source": part.source})}


def _pack(beneath: Literal | Zeros) -> dict[str, str]:
    if isinstance(beneath, Zeros):
        return {}
    return {"deflate": base64.b64encode(deflate_by_huffman(bytes(beneath.data))).decode()}


def parse_statement(data: bytes) -> Statement:
    """Parse the JSON of a statement, of any size: verify its signature first.

    Raises:
        FormatError: it is not a statement of an image, or contradicts itself.
    """
    try:
        members = json.loads(data)
        if (members["_type"], members["predicateType"]) != (STATEMENT, PREDICATE):
            raise FormatError(f"not an in-toto statement of the type {PREDICATE}")
        statement = _read(members)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error):
        raise FormatError("not a statement of a boot image: a member is absent or malformed") from None
    _check(statement)
    return statement


def _read(members: dict[str, Any]) -> Statement:
    (subject,), predicate = members["subject"], members["predicate"]
    base, blocks = predicate["base"], predicate["base"].get("blocks", {})
    config = predicate.get("ignition")
    signature = base.get("signature")
    overlays, left = [], MAX_BENEATH
    is_excerpt = "excerpt" in predicate
    for each in () if is_excerpt else predicate["overlays"]:
        part = _read_part(each)
        beneath = _unpack(each["beneath"], part.length, left)
        left -= beneath.length if isinstance(beneath, Literal) else 0
        overlays.append(StatedOverlay(part.offset, part.length, part.sha256, part.purpose, beneath))
    return Statement(
        file_name=_text(subject["name"]),
        sha256=_sha256(subject),
        length=_count(predicate["length"]),
        base=StatedBase(
            sha256=_sha256(base),
            length=_count(base["length"]),
            version=_text(base["version"]),
            architecture=_text(base["architecture"]),
            origin=_text(base["origin"]) if "origin" in base else None,
            block_length=_count(blocks["length"]) if blocks else None,
            blocks=tuple(_hex(each) for each in blocks["sha256"]) if blocks else (),
            signature=base64.b64decode(signature["openpgp"], validate=True) if signature else None,
        ),
        config_sha256=_sha256(config) if config is not None else None,
        time=datetime.strptime(predicate["time"], _TIME).replace(tzinfo=UTC) if "time" in predicate else None,
        layout=_count(predicate["layout"]),
        overlays=tuple(overlays),
        tail=() if is_excerpt else tuple(map(_read_part, predicate["tail"])),
        excerpt=tuple(map(_read_part, predicate["excerpt"])) if is_excerpt else (),
    )


def _read_part(members: dict[str, Any]) -> StatedTail:
    offset, length = _count(members["offset"], least=0), _count(members["length"])
    source = _count(members["source"], least=0) if "source" in members else None
    return StatedTail(offset, length, _sha256(members), Purpose(members["purpose"]), source)


def _unpack(members: dict[str, str], length: int, limit: int) -> Literal | Zeros:
    if "deflate" not in members:
        return Zeros(length)
    if length > limit:
        raise ValueError(length)
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    data = stream.decompress(base64.b64decode(members["deflate"], validate=True), length + 1)
    if len(data) != length or not stream.eof:
        raise ValueError(length)
    return Literal(data)


def _count(value: object, least: int = 1) -> int:
    if type(value) is not int or not least <= value < 1 << 63:
        raise ValueError(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _sha256(members: dict[str, Any]) -> str:
    return _hex(members["digest"]["sha256"])


def _hex(value: str) -> str:
    if len(value) != 64 or value != bytes.fromhex(value).hex():  # noqa: PLR2004 - digits of a SHA-256
        raise ValueError(value)
    return value


def _check(statement: Statement) -> None:
    """Raise FormatError if parts overlap, leave the base or the image, or leave a gap."""
    base = statement.base
    position = 0
    for each in statement.overlays:
        if each.offset < position or each.offset + each.length > base.length:
            raise FormatError(f"the statement contradicts itself: its overlay at offset {each.offset}")
        position = each.offset + each.length
    where, position = ("excerpt", 0) if statement.excerpt else ("tail", base.length)
    for part in statement.excerpt or statement.tail:
        copied = 0 if part.source is None else part.source + part.length
        if part.offset != position or copied > base.length:
            raise FormatError(f"the statement contradicts itself: its {where} at offset {part.offset}")
        position += part.length
    if position != statement.length:
        raise FormatError(f"the statement contradicts itself: {position} of {statement.length} bytes")
    if base.block_length and len(base.blocks) != -(-base.length // base.block_length):
        raise FormatError(f"the statement contradicts itself: it has {len(base.blocks)} blocks of the base")
