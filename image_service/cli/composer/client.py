"""A client of the composer API, for commands: blocking."""

from __future__ import annotations

import hashlib
import re
import time
from base64 import b64decode
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import attrs

from image_service.common.command_line.progress_bar import ProgressBar
from image_service.common.concurrency.interruption import Interruption
from image_service.common.http.errors import HttpError
from image_service.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from image_service.common.http.response import HttpResponse
    from image_service.jobs.worker.requests import ServerRequests

_API = "/api/image-builder-composer/v2"
_SECONDS = 60.0  # between two reads of a response
_OUTAGE_SECONDS = 300.0  # for which requests are repeated while the server restarts
_PAUSES_SECONDS = (1.0, 1.0, 2.0, 5.0)  # between two requests; then the last one
_RANGE_BYTES = 32 * 1024 * 1024
_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/([0-9]+)")
_SHA256 = re.compile(r"sha-256=:([A-Za-z0-9+/]+=*):")


class ComposerClient:
    """Sends requests to the composer API.

    Each method raises as `ServerRequests.ask` does: NotFound if there is no such compose, RequestRefused if
    the server refuses, Unavailable if it does not answer.
    """

    def __init__(self, requests: ServerRequests) -> None:
        self._requests = requests
        self._interruption = Interruption()

    def start(self, document: Mapping[str, object]) -> str:
        """Start a compose; return its id."""
        return str(self._ask("POST", "/compose", document)["id"])

    def find_page(self, **parameters: object) -> list[dict[str, Any]]:
        """Return statuses, newest first."""
        page: dict[str, Any] = self._ask("GET", f"/composes/?{urlencode(parameters)}")
        return list(page["items"])

    def find(self, compose_id: str) -> dict[str, Any]:
        """Return the status of a compose."""
        status: dict[str, Any] = self._ask("GET", _path(compose_id))
        return status

    def cancel(self, compose_id: str) -> None:
        """Cancel a compose."""
        self._ask("POST", _path(compose_id, "/cancel"), {})

    def wait(self, compose_id: str, show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Return the status of a compose that has ended.

        Args:
            show: called with each status.
        """
        pauses = list(_PAUSES_SECONDS)
        while True:
            status: dict[str, Any] = self._retry(lambda: self.find(compose_id))
            show(status)
            if status["status"] != "pending":
                return status
            time.sleep(pauses.pop(0) if len(pauses) > 1 else pauses[0])

    def download(self, compose_id: str, write: Callable[[bytes], object]) -> None:
        """Download an image in ranges, and compare its digest, if the server has it.

        Args:
            write: called with the bytes, in their order.

        Raises:
            Unavailable: the server does not answer for too long, or the bytes are not those of its digest.
        """
        image = _PartialImage(write)
        with ProgressBar() as progress:
            while not image.is_complete:
                self._retry(lambda: self._read_range(compose_id, image, progress))
        image.verify()

    def _read_range(self, compose_id: str, image: _PartialImage, progress: ProgressBar) -> None:
        fields = {"Range": f"bytes={image.offset}-{image.offset + _RANGE_BYTES - 1}"}
        if image.etag:
            fields["If-Match"] = image.etag
        path = f"{self._requests.prefix}{_API}{_path(compose_id, '/download')}"
        with self._requests.open(
            "GET", path, fields, seconds=_SECONDS, interruption=self._interruption
        ) as answer:
            image.read_head(answer)
            try:
                for block in answer.blocks():
                    image.add(block)
                    progress.report(image.offset, image.size)
            except HttpError as error:
                raise Unavailable(f"the download broke off at byte {image.offset}: {error}") from None

    def _retry(self, ask: Callable[[], Any]) -> Any:  # noqa: ANN401 - of any type
        """Return the value of `ask`, repeated until the server answers."""
        deadline = time.monotonic() + _OUTAGE_SECONDS
        while True:
            try:
                return ask()
            except Unavailable as error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(error.retry_after_seconds or _PAUSES_SECONDS[-1])

    def _ask(self, method: str, path: str, document: object | None = None) -> Any:  # noqa: ANN401 - JSON
        return self._requests.ask(
            method,
            f"{self._requests.prefix}{_API}{path}",
            document,
            seconds=_SECONDS,
            interruption=self._interruption,
        )


def _path(compose_id: str, part: str = "") -> str:
    return f"/composes/{quote(compose_id, safe='')}{part}"


@attrs.define
class _PartialImage:
    """An image whose first bytes were downloaded."""

    write: Callable[[bytes], object]
    offset: int = 0
    size: int | None = None
    etag: str = ""
    sha256: bytes | None = None
    _hash: Any = attrs.field(factory=hashlib.sha256)

    @property
    def is_complete(self) -> bool:
        """True if all bytes were downloaded."""
        return self.offset == self.size

    def read_head(self, answer: HttpResponse) -> None:
        """Record size, version and digest of the image; raise Unavailable for another range."""
        match = _CONTENT_RANGE.fullmatch(answer.field("Content-Range"))
        if match is None or int(match[1]) != self.offset:
            raise Unavailable(f"the server has not sent the range from byte {self.offset} on")
        self.size = int(match[2])
        self.etag = answer.field("ETag")
        digest = _SHA256.search(answer.field("Repr-Digest"))
        self.sha256 = b64decode(digest[1]) if digest else None

    def add(self, block: bytes) -> None:
        """Write the next bytes."""
        self.write(block)
        self._hash.update(block)
        self.offset += len(block)

    def verify(self) -> None:
        """Raise Unavailable if the digest is another than the server's."""
        if self.sha256 not in (None, self._hash.digest()):
            raise Unavailable(f"the SHA-256 of the {self.offset} bytes is not that of the server")
