"""JSON documents of other servers, read within limits and without ambiguity. Pure."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable

NOT_JSON = "must be JSON in UTF-8"
MAX_VALUES = 100_000
"""An object of one member takes some 250 bytes of memory, and 8 bytes of the document."""
MAX_LEVELS = 64
"""Of objects and arrays: functions may recurse in them."""


class _Refused(Exception):
    """A fault that the parser's hooks have found, as a sentence without its subject."""


def read_json(text: bytes | str) -> object:
    """Return the value of a document in which no object has two members of a name.

    Raises:
        FormatError: it is not JSON, or exceeds a limit; the message says what it must not be or have.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise FormatError(f"must have at most {MAX_VALUES} values")
    try:
        document: object = json.loads(
            text, object_pairs_hook=_object_of, parse_constant=_refuse_constant, parse_float=_finite
        )
    except _Refused as fault:
        raise FormatError(str(fault)) from None
    except (ValueError, RecursionError):
        raise FormatError(NOT_JSON) from None
    level: list[object] = [document]
    for _ in range(MAX_LEVELS):
        level = [each for holder in level for each in _members(holder) if isinstance(each, dict | list)]
        if not level:
            return document
    raise FormatError(f"must have at most {MAX_LEVELS} levels of objects and arrays")


def _members(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise _Refused(f"must not have the member {json.dumps(name)[:100]} twice in an object")
    return found


def _refuse_constant(name: str) -> object:
    raise _Refused(f"must not have the number {name}")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise _Refused(f"must not have a number as large as {text[:100]}")
    return number
