"""Text that XML 1.0 can represent, and its markup. Pure."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

# Everything but Char of XML 1.0 section 2.2
_UNREPRESENTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def is_representable(text: str) -> bool:
    """Return True if XML can represent a text: it has no control characters but tab and line ends."""
    return _UNREPRESENTABLE.search(text) is None


def markup(text: str) -> str:
    """Return a text as the content of an element; characters that XML cannot represent become U+FFFD."""
    # A parser would take a bare carriage return for a line feed.
    return escape(_UNREPRESENTABLE.sub("\ufffd", text), {"\r": "&#13;"})
