"""The report of a call: one JSON object, or text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.define
class CallReport:
    """The findings and results of a call so far; printed on success and on failure.

    Args:
        verb: of the command line; "" until it is known.
        input: format, size (bytes of the file) and sha256 of the source, as far as known.
        output: the same of the result; further members are the verb's own.
        fields: further members of the object.
        text: printed without --json.
    """

    verb: str = ""
    input: dict[str, Any] = attrs.field(factory=dict)
    output: dict[str, Any] = attrs.field(factory=dict)
    fields: dict[str, Any] = attrs.field(factory=dict)
    text: str = ""

    def render(self, status: int, reason: str | None) -> str:
        """Return the JSON object, without a line break."""
        document: Mapping[str, Any] = {
            "verb": self.verb,
            "exit": status,
            "input": self.input or None,
            "output": self.output or None,
            "error": None if reason is None else {"reason": reason},
            **self.fields,
        }
        return json.dumps(document)
