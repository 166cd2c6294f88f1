"""The JSON files of a live ISO, read field by field; each error names the field and the file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.core.formats.reading import ReadAt, Span

_MAX_LENGTH = 64 * 1024  # bytes; real ones have some hundred
_MAX_TEXT = 2048  # the longest text that any field needs
_MAX_COUNT = 2**63 - 1


@attrs.frozen
class JsonObject:
    """An object whose fields are read by type; FormatError if one is of another. Null counts as absent."""

    where: str  # the file, and the object's place in it, for messages
    values: Mapping[str, object]

    def text(self, name: str) -> str:
        """Return a string of at most 2048 characters, without lone surrogates (which JSON can escape)."""
        value = self.values.get(name)
        if (
            not isinstance(value, str)
            or len(value) > _MAX_TEXT
            or any("\ud800" <= c <= "\udfff" for c in value)
        ):
            raise self._wrong(name, f"a string of at most {_MAX_TEXT} characters")
        return value

    def character(self, name: str, default: bytes) -> bytes:
        """Return a string of one ASCII character, as a byte."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) != 1 or not value.isascii():
            raise self._wrong(name, "a string of one ASCII character")
        return value.encode()

    def count(self, name: str, default: int | None = None) -> int:
        """Return a number of bytes; required if there is no default."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 0 <= value <= _MAX_COUNT:
            raise self._wrong(name, "a number of bytes")
        return value

    def objects(self, name: str, limit: int) -> list[JsonObject]:
        """Return a list of one to ``limit`` objects."""
        value = self.values.get(name)
        if not isinstance(value, list) or not 0 < len(value) <= limit:
            raise self._wrong(name, f"a list of 1 to {limit} objects")
        return [_as_object(f"{self.where} {name}[{index}]", item) for index, item in enumerate(value)]

    def texts(self, name: str, limit: int) -> list[str]:
        """Return a list of at most ``limit`` printable strings; none if it is absent."""
        value = self.values.get(name)
        texts = [] if value is None else value
        if (
            not isinstance(texts, list)
            or len(texts) > limit
            or not all(
                isinstance(text, str) and len(text) <= _MAX_TEXT and text.isprintable() for text in texts
            )
        ):
            raise self._wrong(name, f"a list of at most {limit} printable strings")
        return texts

    def members(self) -> Iterator[tuple[str, JsonObject]]:
        """Yield the fields, all of which must be objects."""
        for name, value in self.values.items():
            yield name, _as_object(f"{self.where} {name!a}", value)

    def _wrong(self, name: str, right: str) -> FormatError:
        return FormatError(f"{self.where}: {name!r} must be {right}")


def read_json_object(read_at: ReadAt, file: Span) -> JsonObject:
    """Read a file that contains one JSON object; FormatError if it does not."""
    if file.length > _MAX_LENGTH:
        raise FormatError(f"{file.path} has {file.length} bytes, more than {_MAX_LENGTH}")
    try:
        value = json.loads(read_exactly(read_at, file.offset, file.length).decode())
    except (ValueError, RecursionError):
        raise FormatError(f"{file.path} at offset {file.offset} is not JSON") from None
    return _as_object(file.path, value)


def _as_object(where: str, value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise FormatError(f"{where} must be a JSON object")
    return JsonObject(where, value)
