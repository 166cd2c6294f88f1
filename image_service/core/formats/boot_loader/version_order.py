"""The orders of versions by which boot loaders sort their entries, as keys for `sorted`.

Both compare versions part by part: digits as a number, letters as text, digits after letters. They differ in
the signs between: rpm skips all but ``~`` (before everything, the end too) and ``^`` (behind the end, before
any other part); the UAPI Version Format Specification, which systemd-boot follows, also orders ``-`` and
``.``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

VersionKey: TypeAlias = tuple[tuple[int, int, str], ...]

_RPM_PART = re.compile("[0-9]+|[A-Za-z]+|[~^]")
_RPM_RANKS = {"~": -1, "^": 1}
_UAPI_PART = re.compile("[0-9]+|[A-Za-z]+|[~^.-]")
_UAPI_RANKS = {"~": -1, "-": 1, "^": 2, ".": 3}
_END = (0, 0, "")
_LETTERS, _DIGITS = 4, 5


def rpm_version_key(version: str) -> VersionKey:
    """Return a key that orders versions as rpm's ``rpmvercmp``, which GRUB's ``blscfg`` has too."""
    return _key(version, _RPM_PART, _RPM_RANKS)


def uapi_version_key(version: str) -> VersionKey:
    """Return a key that orders versions as ``systemd-analyze compare-versions``."""
    return _key(version, _UAPI_PART, _UAPI_RANKS)


def _key(version: str, part: re.Pattern[str], ranks: Mapping[str, int]) -> VersionKey:
    return (*(_rank(text, ranks) for text in part.findall(version)), _END)


def _rank(text: str, ranks: Mapping[str, int]) -> tuple[int, int, str]:
    if text in ranks:
        return ranks[text], 0, ""
    if text.isdigit():
        number = text.lstrip("0")
        return _DIGITS, len(number), number  # int() refuses thousands of digits
    return _LETTERS, 0, text
