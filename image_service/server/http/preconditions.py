"""Conditional requests (RFC 9110 section 13): the five preconditions, in the order of 13.2.2."""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from image_service.server.http.dates import parse_http_date

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

# RFC 9110 8.8.3:  entity-tag = [ weak ] opaque-tag ; weak = %s"W/" ; opaque-tag = DQUOTE *etagc DQUOTE
#   etagc = %x21 / %x23-7E / obs-text
_ENTITY_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_ONE_TAG = re.compile(_ENTITY_TAG)
_TAG_LIST = re.compile(rf"[ \t,]*{_ENTITY_TAG}(?:[ \t]*,[ \t,]*{_ENTITY_TAG})*[ \t,]*")


class Outcome(enum.Enum):
    """The result of evaluating the preconditions."""

    PERFORM = "perform"
    NOT_MODIFIED = "not modified"
    FAILED = "precondition failed"


def evaluate(headers: Mapping[str, str], etag: str, modified: datetime | None) -> Outcome:
    """Evaluate all preconditions but If-Range, for GET and HEAD.

    Args:
        headers: field values by lower-case name.
        etag: the representation's strong entity tag, quotes included.
        modified: its modification date; None if unknown, which makes conditions on dates ignored.
    """
    if_match = headers.get("if-match")
    if if_match is not None:
        if not _lists(if_match, etag, weak=False):
            return Outcome.FAILED
    elif modified is not None:
        unmodified_since = _date(headers, "if-unmodified-since")
        if unmodified_since is not None and modified > unmodified_since:
            return Outcome.FAILED
    if_none_match = headers.get("if-none-match")
    if if_none_match is not None:
        return Outcome.NOT_MODIFIED if _lists(if_none_match, etag, weak=True) else Outcome.PERFORM
    if modified is not None:
        modified_since = _date(headers, "if-modified-since")
        if modified_since is not None and modified <= modified_since:
            return Outcome.NOT_MODIFIED
    return Outcome.PERFORM


def range_applies(headers: Mapping[str, str], etag: str, modified: datetime | None) -> bool:
    """Return True if there is no If-Range, or it names exactly this representation (strong comparison)."""
    validator = headers.get("if-range")
    if validator is None:
        return True
    if _ONE_TAG.fullmatch(validator):
        return validator == etag
    return modified is not None and parse_http_date(validator) == modified


def _lists(field: str, etag: str, *, weak: bool) -> bool:
    """Return True if a field is ``*`` or a list that contains the tag; a malformed list contains none."""
    if field.strip() == "*":
        return True
    if _TAG_LIST.fullmatch(field) is None:
        return False
    tags = _ONE_TAG.findall(field)
    return etag in tags or (weak and f"W/{etag}" in tags)


def _date(headers: Mapping[str, str], name: str) -> datetime | None:
    value = headers.get(name)
    return None if value is None else parse_http_date(value)
