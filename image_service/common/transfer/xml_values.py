"""XML of unknown origin: parsed without DTD and entities, in bounded memory; its required elements."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MAX_MANIFEST_BYTES = 16 * 1024 * 1024
MAX_PARTS = 10_000
"""As of S3's multipart uploads: 100 GiB in parts of 10 MiB."""

_ENCODING = re.compile(rb"<\?xml[^>]{0,100}?encoding\s*=\s*[\"']([A-Za-z0-9._-]{1,40})[\"']")
_ENCODINGS = {"utf-8", "utf-16", "us-ascii", "iso-8859-1"}
_NUMBER = re.compile("[0-9]{1,18}")


def parse_xml(text: bytes, name: str, max_elements: int, longest_tag: int = 1024) -> Element:
    """Return the root element.

    Args:
        max_elements: it may have.
        longest_tag: characters.

    Raises:
        FormatError: it is too large, not well-formed, or has a DTD or entities.
    """
    # Imported here because it is an extra of the package.
    from xml.etree.ElementTree import TreeBuilder  # noqa: PLC0415 - the parser is defusedxml's

    from defusedxml.common import DefusedXmlException  # noqa: PLC0415 - same
    from defusedxml.ElementTree import DefusedXMLParser, ParseError  # noqa: PLC0415 - same

    class BoundedBuilder(TreeBuilder):
        count = 0

        def start(self, tag: str, attributes: dict[str, str], /) -> Element:
            self.count += 1
            if self.count > max_elements:
                raise FormatError(f"{name} has more than {max_elements} elements")
            return super().start(tag, attributes)

    if len(text) > MAX_MANIFEST_BYTES:
        raise FormatError(f"{name} has more than {MAX_MANIFEST_BYTES} bytes")
    decoded = _decode(text, name)
    if re.search(f"<[^<>]{{{longest_tag}}}", decoded):
        raise FormatError(f"{name} has a tag of more than {longest_tag} characters")
    parser = DefusedXMLParser(target=BoundedBuilder(), forbid_dtd=True)
    try:
        parser.feed(decoded)
        root: Element = parser.close()
    except DefusedXmlException:
        raise FormatError(
            f"{name} has a document type declaration or entities, which it must not have"
        ) from None
    except (ParseError, ValueError) as error:
        raise FormatError(f"{name} is not well-formed XML: {error}") from None
    return root


def _decode(text: bytes, name: str) -> str:
    """Return the characters of a document; the parser then ignores the encoding that it declares."""
    declared = _ENCODING.match(text)
    encoding = declared[1].decode().lower() if declared else "utf-8"
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    elif text.startswith((b"<\0", b"\0<")):
        encoding = "utf-16-le" if text.startswith(b"<") else "utf-16-be"
    elif encoding not in _ENCODINGS:
        raise FormatError(f"{name} is not well-formed XML: unknown encoding {encoding}")
    try:
        return text.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except ValueError as error:
        raise FormatError(f"{name} is not well-formed XML: {error}") from None


def only_child(parent: Element, tag: str) -> Element:
    """Return the only child element of a name; FormatError if there is none, or more than one."""
    found = parent.findall(tag)
    if len(found) != 1:
        raise FormatError(f"the manifest has {len(found)} elements {tag} in {parent.tag}, not one")
    return found[0]


def text_of(parent: Element, tag: str) -> str:
    """Return the text of the only child element of a name, without white space around it."""
    child = only_child(parent, tag)
    if len(child):
        raise FormatError(f"the manifest has elements in {tag}, which must have text alone")
    return (child.text or "").strip()


def number_of(parent: Element, tag: str) -> int:
    """Return the text of the only child element of a name as a number."""
    return parse_number(text_of(parent, tag), tag)


def parse_number(text: str | None, name: str) -> int:
    """Return a number of decimal digits; FormatError if it is none."""
    if text is None or not _NUMBER.fullmatch(text):
        raise FormatError(f"the manifest's {name} is not a number of at most 18 digits")
    return int(text)


def parts_of(parent: Element) -> list[Element]:
    """Return the parts in the only element ``parts``; FormatError if count or indices are wrong."""
    element = only_child(parent, "parts")
    count = parse_number(element.get("count"), "parts count")
    if not 0 < count <= MAX_PARTS:
        raise FormatError(f"the manifest's parts count of {count} is not from 1 to {MAX_PARTS}")
    parts = element.findall("part")
    if len(parts) != count:
        raise FormatError(f"the manifest's parts count is {count}, but it has {len(parts)} parts")
    for index, part in enumerate(parts):
        if parse_number(part.get("index"), "part index") != index:
            raise FormatError(f"the manifest's part {index} has another index")
    return parts
