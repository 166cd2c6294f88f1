"""Lists of checksums that a medium has of its files: ``md5sum.txt``, ``sha256sum.txt``, ``SHA256SUMS``.

    DIGEST  ./path      hexadecimal, as md5sum writes it; an asterisk may be in place of the second blank

Paths are relative to the directory of the list. Other lines stay as they are.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LIST_NAME = re.compile(r"\.?(?:md5|sha1|sha256|sha512)sums?(?:\.txt)?", re.IGNORECASE)
"""The names of such lists."""

_LINE = re.compile(rb"([0-9A-Fa-f]{32,128})( [ *])((?:\./|/)?)([^\r\n]++)(\r?\n?)")
_ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}


def update_checksums(
    path: str,
    content: bytes,
    changed: Mapping[str, Mapping[str, str]],
    added: Mapping[str, Mapping[str, str]],
) -> bytes:
    """Return a list that is true after an edit of the medium.

    Args:
        path: of the list on the medium.
        content: of the list.
        changed: files with another content, and their digests by algorithm (``md5``, ``sha256``, …). A line
            whose algorithm is not among them is removed.
        added: new files, likewise. They are appended if the list names a changed file, as a list of the whole
            medium does.
    """
    directory = posixpath.dirname(path)
    digests = {**changed, **added}
    lines: list[bytes] = []
    listed: set[str] = set()
    last: re.Match[bytes] | None = None
    for line in content.splitlines(keepends=True):
        if match := _LINE.fullmatch(line):
            last = match
            name = posixpath.normpath(posixpath.join(directory, match[4].decode(errors="surrogateescape")))
            if name in digests:
                listed.add(name)
                digest = _digest_like(match, digests[name])
                lines.append(digest + line[match.end(1) :] if digest else b"")
                continue
        lines.append(line)
    edited = b"".join(lines)
    if last is None or listed.isdisjoint(changed):
        return edited
    end = last[5] or b"\n"
    if edited and not edited.endswith(b"\n"):
        edited += end
    base = f"{directory}/" if directory else ""
    for name in sorted(added.keys() - listed):
        digest = _digest_like(last, added[name])
        if digest and name.startswith(base):
            relative = name.removeprefix(base).encode(errors="surrogateescape")
            edited += digest + last[2] + last[3] + relative + end
    return edited


def _digest_like(line: re.Match[bytes], digests: Mapping[str, str]) -> bytes:
    """Return the digest by the algorithm of a line; b"" if it is not among them."""
    return digests.get(_ALGORITHMS.get(len(line[1]), ""), "").encode()
