"""Downloads a file in a thread, resuming one that was interrupted.

Parts are combined only if they belong to one representation (RFC 9110 section 14.2). The request says so by a
precondition, and ``Content-Range`` and entity tag of the response are checked all the same: stores that
speak S3 ignore ``If-Range`` and answer 206 to a stale one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.common.http.origins import public_url
from image_service.common.registry.connections import RegistryCall
from image_service.common.registry.references import is_registry_url, parse_registry_url
from image_service.core.errors import Unavailable
from image_service.server.catalog.download.partial_file import OriginFile, PartialFile
from image_service.server.catalog.download.registry_download import RegistryDownload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.common.concurrency.interruption import Interruption
    from image_service.server.catalog.download.origin_client import OriginClient, OriginResponse

ReportProgress: TypeAlias = Callable[[int, int | None], None]
"""Called with the bytes so far and those of the whole, if known; an exception from it ends the download."""

# range-resp, unsatisfied-range of RFC 9110 section 14.4
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_UNSATISFIED = re.compile(r"bytes \*/([0-9]{1,18})")


def download_file(  # noqa: PLR0913, PLR0917 - two of them have defaults
    client: OriginClient,
    url: str,
    partial: Path,
    interruption: Interruption,
    report_progress: ReportProgress = lambda *_: None,
    architecture: str = "",
) -> None:
    """Complete a file of which a part may exist; if this raises, the next call resumes it.

    Progress is reported at the beginning and with each block.

    Args:
        architecture: of the image, for registries that have images of several.

    Raises:
        BaseImageError: a registry has another thing there than a base image.
        Unavailable: not fetched, or not completely; see ``OriginClient.fetch``.
        OSError: the file cannot be written.
        Interrupted: the service stops.
    """
    interruption.raise_if_interrupted()
    if is_registry_url(url):
        _registry_download(client, url, architecture, partial, interruption, report_progress).run()
        return
    with PartialFile(partial, url) as file:
        for _ in range(2):  # the second time from the beginning
            if file.complete:
                report_progress(file.length, file.length)
                return
            with client.fetch(url, _range_headers(file), interruption) as response:
                if response.status == HTTPStatus.OK:
                    file.restart(OriginFile.from_fields(response.field, response.length))
                    _append_body(response, file, report_progress)
                elif _continues(response, file):
                    _append_body(response, file, report_progress)
                elif _is_at_end(response, file):
                    file.mark_complete()
                else:
                    file.restart(OriginFile())
    if not file.complete:
        raise Unavailable(
            f"cannot fetch {public_url(url)}: the origin's responses do not match the requested ranges"
        )


def check_registry_file(
    client: OriginClient, url: str, architecture: str, interruption: Interruption
) -> None:
    """Raise as `download_file` unless the manifests of a file in a registry are there."""
    _registry_download(client, url, architecture, Path(), interruption, lambda *_: None).check()


def _registry_download(  # noqa: PLR0913, PLR0917 - what a download has
    client: OriginClient,
    url: str,
    architecture: str,
    partial: Path,
    interruption: Interruption,
    report_progress: ReportProgress,
) -> RegistryDownload:
    call, file = RegistryCall(client.limits, interruption), parse_registry_url(url)
    return RegistryDownload(client.registries, file, architecture, partial, call, report_progress)


def _range_headers(file: PartialFile) -> Mapping[str, str]:
    """Request the missing bytes of the representation that the file is part of."""
    known, missing = file.origin_file, f"bytes={file.length}-"
    if file.length and known.etag:
        return {"Range": missing, "If-Match": known.etag}
    if file.length and known.last_modified:
        return {"Range": missing, "If-Unmodified-Since": known.last_modified}
    return {}


def _continues(response: OriginResponse, file: PartialFile) -> bool:
    """True if the response starts where the file ends, in the same representation; its size is recorded."""
    content_range = _RANGE.fullmatch(response.field("Content-Range"))
    if response.status != HTTPStatus.PARTIAL_CONTENT or not content_range or not file.length:
        return False
    first, last = int(content_range[1]), int(content_range[2])
    known = file.origin_file
    total = known.total if content_range[3] == "*" else int(content_range[3])
    fits = first == file.length and first <= last and response.length in {None, last - first + 1}
    if total is None or last >= total or not fits or known.total not in {None, total}:
        return False
    if known.etag is not None:
        is_same = response.field("ETag") == known.etag
    else:
        is_same = response.field("Last-Modified") in {"", known.last_modified}
    if is_same:
        file.origin_file = attrs.evolve(known, total=total)
    return is_same


def _is_at_end(response: OriginResponse, file: PartialFile) -> bool:
    """True if nothing follows the file because it is complete."""
    unsatisfied = _UNSATISFIED.fullmatch(response.field("Content-Range"))
    if response.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not unsatisfied:
        return False
    tag = response.field("ETag") or file.origin_file.etag  # which an error need not have
    return 0 < file.length == int(unsatisfied[1]) and tag == file.origin_file.etag


def _append_body(response: OriginResponse, file: PartialFile, report_progress: ReportProgress) -> None:
    total = file.origin_file.total
    report_progress(file.length, total)
    for block in response.blocks():
        if total is not None and file.length + len(block) > total:
            file.restart(OriginFile())  # the bytes so far cannot be trusted either
            raise response.unavailable(f"the origin sent more than the {total} bytes that it promised")
        file.append(block)
        report_progress(file.length, total)
    if total not in {None, file.length}:
        raise response.unavailable(f"the origin sent up to {file.length} of {total} bytes")
    file.mark_complete()
