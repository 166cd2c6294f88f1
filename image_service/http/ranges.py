"""The Range field (RFC 9110 section 14) for the one unit that boot images have: bytes."""

from __future__ import annotations

import re
from typing import TypeAlias

# RFC 9110 14.1.1:  ranges-specifier = range-unit "=" range-set ; range-set = 1#range-spec
#   int-range = first-pos "-" [ last-pos ] ; suffix-range = "-" suffix-length ; each 1*DIGIT
# Any other range-spec makes the header invalid for this unit, and an invalid header is ignored (14.2).
_RANGES = re.compile(r"bytes=(.*)", re.ASCII | re.IGNORECASE | re.DOTALL)
_SPEC = re.compile(r"([0-9]*)-([0-9]*)", re.ASCII)
_SINGLE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})", re.ASCII)
_OWS = " \t"
_BEYOND = 10**18  # past the end of anything; longer numbers mean no more than that
_DIGITS = 18

MAX_RANGES = 16

ByteRange: TypeAlias = tuple[int, int]
"""Offset of the first byte, offset behind the last."""


def parse_range(value: str, size: int) -> tuple[ByteRange, ...] | None:
    """Read a Range field against a representation.

    Args:
        value: the field value.
        size: of the representation, bytes.

    Returns:
        what to send: disjoint, non-empty, inside the representation, in the order asked for, with those
        that touch or overlap joined; empty when nothing that was asked for exists (416); None when the
        field is to be ignored (another unit, malformed, more than ``MAX_RANGES`` ranges).
    """
    single = _SINGLE.fullmatch(value)
    if single is not None:
        first, last = int(single[1]), int(single[2])
        if last < first:
            return None
        return ((first, min(last + 1, size)),) if first < size else ()
    specifier = _RANGES.fullmatch(value)
    if specifier is None:
        return None
    specs = [spec.strip(_OWS) for spec in specifier[1].split(",")]
    specs = [spec for spec in specs if spec]  # 5.6.1.2: empty list elements are skipped
    if not 0 < len(specs) <= MAX_RANGES:
        return None
    found: list[ByteRange] = []
    for spec in specs:
        resolved = _resolve(spec, size)
        if resolved is None:
            return None
        if resolved[0] < resolved[1]:
            found = _join(found, resolved)
    return tuple(found)


def _resolve(spec: str, size: int) -> ByteRange | None:
    """One range-spec as a byte range, empty when unsatisfiable, None when malformed."""
    match = _SPEC.fullmatch(spec)
    if match is None or match[0] == "-":
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - _number(last)), size
    start = _number(first)
    if not last:
        return start, max(start, size)
    if _precedes(last, first):
        return None
    return start, max(start, min(_number(last) + 1, size))


def _number(digits: str) -> int:
    significant = digits.lstrip("0")
    return _BEYOND if len(significant) > _DIGITS else int(significant or "0")


def _precedes(one: str, other: str) -> bool:
    """Whether one number is smaller, of however many digits."""
    one, other = one.lstrip("0"), other.lstrip("0")
    return (len(one), one) < (len(other), other)


def _join(ranges: list[ByteRange], added: ByteRange) -> list[ByteRange]:
    """Add a range; what touches or overlaps it becomes one, at the place of the earliest asked for."""
    start, stop = added
    place = len(ranges)
    apart: list[ByteRange] = []
    for begin, end in ranges:
        if begin <= stop and start <= end:
            start, stop, place = min(start, begin), max(stop, end), min(place, len(apart))
        else:
            apart.append((begin, end))
    apart.insert(place, (start, stop))
    return apart
