"""The upload of a client: its manifest, its parts while they arrive, and their deletion."""

from __future__ import annotations

import math
import time
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin

from image_service.common.http.origins import public_url
from image_service.common.transfer.client import TransientFailure
from image_service.common.transfer.xml_values import MAX_MANIFEST_BYTES
from image_service.core.errors import FormatError, ImageServiceError

if TYPE_CHECKING:
    from image_service.common.transfer.bundle_manifest import BundlePart
    from image_service.common.transfer.client import ReceivedResponse, TransferClient
    from image_service.common.transfer.manifest import ImportManifest, ManifestPart
    from image_service.core.errors import TransferFailed

_DENIED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
_SIGNATURE_REFUSED = (
    "its signature is wrong or has expired, or it is not there and its signer may not list the bucket"
)
_DELETED = {HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND}


def read_manifest_text(client: TransferClient, url: str) -> bytes:
    """Return a manifest.

    Raises:
        TransferFailed: it is not there.
        FormatError: it is too large.
        UnsafeImage: the URL or its address is not allowed.
    """
    with client.send("GET", url, "the manifest's URL", length=MAX_MANIFEST_BYTES) as response:
        if response.status != HTTPStatus.OK:
            raise _failure(response, _SIGNATURE_REFUSED)
        return response.read(MAX_MANIFEST_BYTES)


def check_part(client: TransferClient, part: ManifestPart) -> None:
    """Check that a part is there.

    Raises:
        TransferFailed: it is not.
        FormatError: it has another length than the manifest says.
        UnsafeImage: its URL or address is not allowed.
    """
    name = f"head-url of part {part.index}"
    with client.send("HEAD", part.head_url, name) as response:
        if response.status != HTTPStatus.OK:
            raise _failure(response, _SIGNATURE_REFUSED)
        length = response.field("Content-Length")
    if length not in {"", str(part.length)}:
        raise FormatError(
            f"part {part.index} has {length} bytes, instead of the {part.length} that its manifest says"
        )


def check_bundle_part(client: TransferClient, manifest_url: str, part: BundlePart) -> None:
    """Check that a part of a bundle is there; raises as `check_part`."""
    url = bundle_part_url(manifest_url, part)
    with client.send("HEAD", url, f"the bundle's part {part.file_name}") as response:
        if response.status != HTTPStatus.OK:
            raise _failure(
                response,
                "the parts of a bundle are read without a signature: upload them with --acl public-read, or"
                " let everyone read them by a policy of the bucket",
            )


def bundle_part_url(manifest_url: str, part: BundlePart) -> str:
    """Return the URL of a bundle's part, which is beside its manifest; it has no query."""
    return urljoin(public_url(manifest_url), quote(part.file_name))


def delete_parts(manifest: ImportManifest, client: TransferClient, deadline: float = math.inf) -> list[str]:
    """Delete the parts, and then the manifest; return a note for each that stays.

    If a server cannot be reached, or the deadline has passed, of `time.monotonic`, the rest is not tried.
    """
    urls = [(f"delete-url of part {part.index}", part.delete_url) for part in manifest.parts]
    notes = []
    is_away = False
    for name, url in (*urls, ("self-destruct-url", manifest.self_destruct_url)):
        try:
            if is_away or time.monotonic() > deadline:
                notes.append(f"not deleted: {public_url(url)}")
            else:
                _delete(client, url, name)
        except ImageServiceError as error:
            is_away = isinstance(error, TransientFailure)
            notes.append(f"not deleted: {error.detail}")
    return notes


def _failure(response: ReceivedResponse, hint: str) -> TransferFailed:
    """Return the error for a status that is not the expected one, with a hint if access is denied."""
    failure = response.failure()
    return type(failure)(f"{failure.detail}; {hint}") if response.status in _DENIED else failure


def _delete(client: TransferClient, url: str, name: str) -> None:
    def attempt() -> None:
        with client.send("DELETE", url, name) as response:
            if response.status not in _DELETED:
                raise response.failure()

    client.retry(attempt)
