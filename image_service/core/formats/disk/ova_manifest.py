"""The manifest of an OVA (DSP0243 section 5.1): digests of its files.

    SHA256(NAME)= HEX

A line for each file; blanks may be around each part, and a line may end with CR LF. The manifest is the file
with the suffix .mf. The certificate that may sign it is not looked at.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache, partial
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.formats.disk.ova import OvaLayout
    from image_service.core.formats.reading import ReadAt, Span

_LINE = re.compile(r"\s*(?P<algorithm>[\w-]+)\s*\((?P<name>.*)\)\s*=\s*(?P<digest>[0-9A-Fa-f]+)\s*")
_ALGORITHMS = ("sha1", "sha224", "sha256", "sha384", "sha512")
_MAX_BYTES = 1 << 20
_PIECE = 4 << 20


@attrs.frozen
class ManifestLine:
    """The digest of a file, in hexadecimal in lower case; `algorithm` as hashlib names it."""

    name: str
    algorithm: str
    digest: str


def parse_ova_manifest(manifest: str, content: bytes) -> Iterator[ManifestLine]:
    """Yield the lines of a manifest; FormatError if one cannot be read.

    Args:
        manifest: its name, for messages.
        content: its bytes.
    """
    lines = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        algorithm = match["algorithm"].lower().replace("-", "") if match else ""
        if not match or algorithm not in _ALGORITHMS:
            raise FormatError(
                f"line {number} of {manifest} in the OVA is not a digest by {', '.join(_ALGORITHMS).upper()}"
            )
        yield ManifestLine(match["name"].strip(), algorithm, match["digest"].lower())


def check_ova_manifest(read_at: ReadAt, layout: OvaLayout) -> None:
    """Read all files that the manifests of an OVA list, each once for an algorithm.

    Raises:
        FormatError: one has another digest, or is not there; names it.
    """
    members = {member.path: member for member in layout.members}
    digest_of = cache(partial(_digest, read_at))
    for manifest in layout.members:
        if not manifest.path.lower().endswith(".mf"):
            continue
        if manifest.length > _MAX_BYTES:
            raise FormatError(
                f"{manifest.path} in the OVA has {manifest.length} bytes, more than {_MAX_BYTES}"
            )
        content = read_exactly(read_at, manifest.offset, manifest.length)
        for line in parse_ova_manifest(manifest.path, content):
            member = members.get(line.name.removeprefix("./"))
            if member is None:
                raise FormatError(f"{manifest.path} in the OVA lists {line.name!r:.80}, which is not in it")
            found = digest_of(member, line.algorithm)
            if found != line.digest:
                raise FormatError(
                    f"{member.path} in the OVA has the {line.algorithm.upper()} {found:.16}…; {manifest.path}"
                    f" has {line.digest:.16}…: the file is damaged or another one"
                )


def _digest(read_at: ReadAt, member: Span, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    end = member.offset + member.length
    for offset in range(member.offset, end, _PIECE):
        digest.update(read_exactly(read_at, offset, min(_PIECE, end - offset)))
    return digest.hexdigest()
