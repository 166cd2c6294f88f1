"""Writes blobs and manifests to an OCI registry (distribution specification 1.1); blocks."""

from __future__ import annotations

import re
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urljoin, urlsplit

import attrs

from image_service.common.http.errors import HttpError
from image_service.common.http.origins import origin_of, public_url
from image_service.common.registry.authorization import RegistryAuthorization
from image_service.common.registry.client import describe_failure, digest_of
from image_service.common.registry.connections import RegistryConnections
from image_service.common.registry.errors import RegistryFailed
from image_service.common.registry.mirrors import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from image_service.common.http.response import HttpResponse
    from image_service.common.registry.connections import RegistryCall, RegistryOptions
    from image_service.common.registry.references import ImageReference

CHUNK_BYTES = 16 * 1024 * 1024
"""In memory, and sent again after a failure."""
_MAX_FUTILE = 3  # attempts in a row after which the registry has no byte more
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,18})")
_SUCCESS = range(200, 300)


@attrs.frozen
class BlobSource:
    """A blob to write.

    Args:
        size: bytes.
        read_at: returns bytes of it; fewer only at its end.
    """

    digest: str
    size: int
    read_at: Callable[[int, int], bytes] = attrs.field(repr=False)


class _OtherBytes(HttpError):
    """A part does not begin where those that the registry has end."""


class RegistryPusher:
    """Writes to one repository. No mirror takes its place: what is written is where its name says."""

    def __init__(self, options: RegistryOptions, reference: ImageReference, call: RegistryCall) -> None:
        self._call = call
        is_insecure = reference.registry in options.insecure
        self._endpoint = Endpoint(reference.registry, reference.repository, is_insecure)
        self._connections = RegistryConnections(options, max_idle=1)
        self._authorization = RegistryAuthorization(options, self._connections, "pull,push")

    def close(self) -> None:
        """Close the connection that is kept."""
        self._connections.close()

    def push_blob(
        self, blob: BlobSource, on_bytes: Callable[[int], object] = lambda _: None, mount_from: str = ""
    ) -> bool:
        """Write a blob unless the repository has it; return whether bytes were sent.

        An upload that is cut continues behind the last byte that the registry has.

        Args:
            on_bytes: called with the number of bytes that were sent.
            mount_from: a repository of the registry that may have it.

        Raises:
            RegistryFailed: the registry cannot be reached, or refuses.
            Interrupted: the call ends.
        """
        with self._send("HEAD", f"blobs/{blob.digest}") as response:
            if response.status == HTTPStatus.OK:
                return False
            if response.status != HTTPStatus.NOT_FOUND:
                raise self._refused(response, f"whether it has blob {blob.digest}")
        query = f"?{urlencode({'mount': blob.digest, 'from': mount_from})}" if mount_from else ""
        with self._send("POST", f"blobs/uploads/{query}", {"Content-Length": "0"}) as response:
            if response.status == HTTPStatus.CREATED:
                return False
            if response.status != HTTPStatus.ACCEPTED:
                raise self._refused(response, "the beginning of an upload")
            upload = self._location(response)
        upload = self._send_chunks(blob, upload, on_bytes)
        split = urlsplit(upload)
        query = "&".join(filter(None, (split.query, urlencode({"digest": blob.digest}))))
        url = split._replace(query=query).geturl()
        with self._send("PUT", url, {"Content-Length": "0"}) as response:
            if response.status != HTTPStatus.CREATED:
                raise self._refused(response, f"the end of the upload of blob {blob.digest}")
            self._check_digest(response, blob.digest)
        return True

    def push_manifest(self, content: bytes, media_type: str, name: str) -> str:
        """Write a manifest, whose blobs are there, and return its digest.

        Args:
            name: a tag, or its digest.

        Raises:
            RegistryFailed: the registry cannot be reached, or refuses.
        """
        digest = digest_of(content)
        fields = {"Content-Type": media_type, "Content-Length": str(len(content))}
        with self._send("PUT", f"manifests/{name}", fields, content) as response:
            if response.status not in _SUCCESS:
                raise self._refused(response, f"manifest {name}")
            self._check_digest(response, digest)
        return digest

    def _send_chunks(self, blob: BlobSource, upload: str, on_bytes: Callable[[int], object]) -> str:
        """Send the bytes of a blob; return the URL of the upload as it is then."""
        done = futile = 0
        while done < blob.size:
            before, reason = done, ""
            try:
                upload, done = self._send_chunk(blob, upload, done)
            except HttpError as error:
                reason = describe_failure(error)
                upload, done = self._find_progress(upload, done)
                # 0-0 says that there is one byte, and of some registries that there is none.
                if isinstance(error, _OtherBytes) and done == before == 0:
                    done = 1
            futile = futile + 1 if done <= before else 0
            if futile == _MAX_FUTILE:
                raise RegistryFailed(
                    f"{self._endpoint}: upload of blob {blob.digest}: {reason},"
                    f" after {done} of {blob.size} bytes"
                )
            on_bytes(done - before)
        return upload

    def _send_chunk(self, blob: BlobSource, upload: str, done: int) -> tuple[str, int]:
        body = blob.read_at(done, min(CHUNK_BYTES, blob.size - done))
        fields = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(len(body)),
            "Content-Range": f"{done}-{done + len(body) - 1}",
        }
        with self._send("PATCH", upload, fields, body, may_fail=True) as response:
            if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise _OtherBytes("the registry has other bytes of it")
            if response.status not in _SUCCESS:
                raise self._refused(response, "a part of an upload")
            return self._location(response), done + len(body)

    def _find_progress(self, upload: str, done: int) -> tuple[str, int]:
        """Return the URL of an upload, and how many bytes the registry has of it."""
        try:
            with self._send("GET", upload, may_fail=True) as response:
                match = _RANGE.fullmatch(response.field("Range"))
                if response.status not in _SUCCESS or match is None:
                    raise self._refused(response, "the progress of an upload")
                end = int(match[1])
                return self._location(response, upload), end + 1 if end else 0
        except HttpError:
            return upload, done

    def _location(self, response: HttpResponse, default: str = "") -> str:
        """Return the URL where an upload goes on."""
        location = response.field("Location")
        if not location:
            if default:
                return default
            raise RegistryFailed(f"{self._endpoint}: answered to an upload without a Location")
        return urljoin(self._base, location)

    @property
    def _base(self) -> str:
        return self._connections.base_url(self._endpoint, self._call)

    def _check_digest(self, response: HttpResponse, digest: str) -> None:
        stated = response.field("Docker-Content-Digest")
        if stated not in {"", digest}:
            raise RegistryFailed(f"{self._endpoint}: stored {stated:.80} in the place of {digest}")

    def _refused(self, response: HttpResponse, what: str) -> RegistryFailed:
        return RegistryFailed(
            f"{self._endpoint}: answered with status {response.status} to {what}",
            status=response.status,
            retry_after=response.field("Retry-After"),
        )

    @contextmanager
    def _send(
        self,
        method: str,
        target: str,
        fields: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        may_fail: bool = False,
    ) -> Iterator[HttpResponse]:
        """Yield the response to a request; a challenge is answered once.

        Args:
            target: below the repository, or a whole URL.
            may_fail: the caller continues after HttpError.
        """
        try:
            base = self._base
            url = target if "://" in target else f"{base}/v2/{self._endpoint.repository}/{target}"
            for is_answered in (False, True):
                with self._ask(method, url, fields or {}, body) as response:
                    if response.status != HTTPStatus.UNAUTHORIZED or is_answered:
                        yield response
                        return
                    challenge = response.field("WWW-Authenticate")
                self._authorization.forget(self._endpoint)
                is_plain = urlsplit(base).scheme == "http"
                self._authorization.answer(self._endpoint, challenge, self._call, is_plain=is_plain)
        except HttpError as error:
            if may_fail:
                raise
            raise RegistryFailed(f"{self._endpoint}: {describe_failure(error)}") from None

    @contextmanager
    def _ask(
        self, method: str, url: str, fields: Mapping[str, str], body: bytes | None
    ) -> Iterator[HttpResponse]:
        is_own = origin_of(url) == origin_of(self._base)
        if not is_own and urlsplit(url).scheme != "https":
            raise RegistryFailed(f"{self._endpoint}: sends an upload to {public_url(origin_of(url))}")
        sent = {"User-Agent": "image-service", **fields}
        if is_own and (authorization := self._authorization.find(self._endpoint)):
            sent["Authorization"] = authorization
        is_insecure = self._endpoint.is_insecure and is_own
        client = self._connections.client_of(urlsplit(url).netloc.lower(), is_insecure=is_insecure)
        with client.send(
            method, url, sent, body, limits=self._call.limits, interruption=self._call.interruption
        ) as response:
            yield response
