"""A client of OCI registries (distribution specification 1.1) that reads; blocks, for several threads.

What a digest names is the same at each mirror, so a request goes to one after the other until one answers.
The bytes of manifests are compared with their digests here; those of blobs by the caller, who reads them.
"""

from __future__ import annotations

import hashlib
import re
import time
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import attrs

from image_service.common.http.errors import HttpError, UntrustedCertificate
from image_service.common.http.origins import origin_of, public_url
from image_service.common.http.redirects import REDIRECTS, Redirects
from image_service.common.registry.authorization import RegistryAuthorization
from image_service.common.registry.connections import RegistryConnections
from image_service.common.registry.errors import RegistryFailed
from image_service.common.registry.manifests import ACCEPT, MAX_MANIFEST_BYTES, ImageIndex, parse_manifest
from image_service.core.errors import ConfigurationError, FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from image_service.common.http.response import HttpResponse
    from image_service.common.registry.connections import RegistryCall, RegistryOptions
    from image_service.common.registry.manifests import BlobDescriptor, ImageManifest
    from image_service.common.registry.mirrors import Endpoint
    from image_service.common.registry.references import ImageReference

T = TypeVar("T")

_IDENTITY = {"User-Agent": "image-service"}
_DOWN_SECONDS = 60.0
"""For which an endpoint that did not answer is asked after the others."""
_MAX_FUTILE = 3  # attempts in a row that bring no byte of a blob
_MAX_CONTINUED = 100
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")


@attrs.frozen
class ResolvedImage:
    """An image as it is now.

    Args:
        reference: by the digest of its manifest.
    """

    reference: ImageReference
    manifest: ImageManifest


class RegistryClient:
    """Reads manifests and blobs, by the mirrors and with the credentials of its options.

    Args:
        max_idle: connections to each host that are kept until `close`.
    """

    def __init__(self, options: RegistryOptions, max_idle: int = 0) -> None:
        self._options = options
        self._connections = RegistryConnections(options, max_idle)
        self._authorization = RegistryAuthorization(options, self._connections)
        self._down_until: dict[Endpoint, float] = {}
        self._links: dict[tuple[Endpoint, str], str] = {}

    def close(self) -> None:
        """Close the connections that are kept."""
        self._connections.close()

    def resolve(self, reference: ImageReference, architecture: str, call: RegistryCall) -> ResolvedImage:
        """Return the image that a name stands for now.

        Args:
            architecture: in the names of RPM; of an index, its image is taken.

        Raises:
            RegistryFailed: it cannot be fetched, or its digest is wrong.
            FormatError: it is not an image, or not for this architecture.
            Interrupted: the service stops.
        """
        for _ in range(2):
            digest, content, media_type = self._fetch_manifest(reference, call)
            manifest = parse_manifest(content, media_type)
            reference = reference.with_digest(digest)
            if not isinstance(manifest, ImageIndex):
                return ResolvedImage(reference, manifest)
            reference = reference.with_digest(manifest.select(architecture).digest)
        raise FormatError("the index names another index for this architecture")

    def find_digest(self, reference: ImageReference, call: RegistryCall) -> str:
        """Return the digest that a name stands for now: of an index, if it is one; raises as `resolve`."""
        return reference.digest or self._fetch_manifest(reference, call)[0]

    def _fetch_manifest(self, reference: ImageReference, call: RegistryCall) -> tuple[str, bytes, str]:
        """Return digest, content and media type of a manifest."""

        def fetch(endpoint: Endpoint) -> tuple[str, bytes, str]:
            with self._get(endpoint, f"manifests/{reference.name}", {"Accept": ACCEPT}, call) as response:
                _check_status(endpoint, response, f"manifest {reference.name}", {HTTPStatus.OK})
                content = response.read(MAX_MANIFEST_BYTES + 1)
                stated, media_type = response.field("Docker-Content-Digest"), response.field("Content-Type")
            if len(content) > MAX_MANIFEST_BYTES:
                raise RegistryFailed(f"{endpoint}: the manifest has more than {MAX_MANIFEST_BYTES} bytes")
            wanted = reference.digest or (stated if stated.startswith("sha256:") else "")
            found = digest_of(content, wanted.partition(":")[0] or "sha256")
            if wanted not in {"", found}:
                raise RegistryFailed(f"{endpoint}: the digest of manifest {wanted} is {found}")
            return found, content, media_type

        return self._try_each(reference, fetch)

    @contextmanager
    def open_blob(
        self, reference: ImageReference, digest: str, fields: Mapping[str, str], call: RegistryCall
    ) -> Iterator[HttpResponse]:
        """Yield the response to a request for a blob, with status 200 or 206.

        Where redirects led to is remembered, until it does not answer so any more.

        Args:
            fields: such as a range, which must have an end: registries need not know others.

        Raises:
            RegistryFailed: no registry has the blob, or answers. The body may raise HttpError.
            Interrupted: the service stops.
        """
        with ExitStack() as stack:

            def ask(endpoint: Endpoint) -> HttpResponse:
                with ExitStack() as attempt:
                    response = attempt.enter_context(
                        self._get(endpoint, f"blobs/{digest}", fields, call, digest)
                    )
                    expected = {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}
                    _check_status(endpoint, response, f"blob {digest}", expected)
                    if response.coding:
                        raise RegistryFailed(f"{endpoint}: sent blob {digest} with a content coding")
                    stack.push(attempt.pop_all())
                    return response

            yield self._try_each(reference, ask)

    def read_blob(
        self, reference: ImageReference, blob: BlobDescriptor, call: RegistryCall, start: int = 0
    ) -> Generator[bytes]:
        """Yield the bytes of a blob from `start` on; a body that is cut is continued.

        Raises:
            RegistryFailed: they cannot be fetched, or are more than the manifest says.
            Interrupted: the service stops.
        """
        done, futile, continued = start, 0, 0
        while done < blob.size:
            begun, reason = done, "it ended too early"
            try:
                for block in self._continue_blob(reference, blob, call, done):
                    done += len(block)
                    yield block
            except HttpError as error:
                reason = describe_failure(error)
            continued += 1
            futile = futile + 1 if done == begun else 0
            if done < blob.size and (futile == _MAX_FUTILE or continued == _MAX_CONTINUED):
                raise RegistryFailed(
                    f"{reference.registry}/{reference.repository}: blob {blob.digest}: {reason},"
                    f" after {done} of {blob.size} bytes"
                )

    def _continue_blob(
        self, reference: ImageReference, blob: BlobDescriptor, call: RegistryCall, start: int
    ) -> Iterator[bytes]:
        fields = {"Range": f"bytes={start}-{blob.size - 1}"} if start else {}
        where = f"{reference.registry}/{reference.repository}: blob {blob.digest}"
        with self.open_blob(reference, blob.digest, fields, call) as response:
            if response.status == HTTPStatus.OK:
                skipped, left = start, blob.size
            else:
                skipped, left = 0, blob.size - start
                check_part(response, start, left, blob.size, where)
            if response.length not in {None, left}:
                raise RegistryFailed(f"{where}: announced {response.length} bytes, the manifest {left}")
            for received in response.blocks():
                left -= len(received)
                if left < 0:
                    raise RegistryFailed(f"{where}: sent more than the {blob.size} bytes of the manifest")
                block = received[skipped:]
                skipped = max(0, skipped - len(received))
                if block:
                    yield block

    def _try_each(self, reference: ImageReference, ask: Callable[[Endpoint], T]) -> T:
        """Return what the first endpoint answers that has one; those that failed lately are asked last."""
        try:
            endpoints = self._options.rules.get().endpoints(reference, self._options.insecure)
        except FormatError as error:
            raise RegistryFailed(f"{reference.registry}/{reference.repository}: {error.detail}") from None
        now = time.monotonic()
        failures: list[RegistryFailed] = []
        for endpoint in sorted(endpoints, key=lambda each: self._down_until.get(each, 0.0) > now):
            try:
                found = ask(endpoint)
            except (RegistryFailed, HttpError, ConfigurationError) as error:
                self._options.counts.add(endpoint, error)
                failures.append(_as_failure(endpoint, error))
            else:
                self._options.counts.add(endpoint)
                self._down_until.pop(endpoint, None)
                return found
            if not failures[-1].status:
                self._down_until[endpoint] = now + _DOWN_SECONDS
        is_absent = all(failure.status == HTTPStatus.NOT_FOUND for failure in failures)
        busy = [failure.retry_after for failure in failures if failure.retry_after]
        raise RegistryFailed(
            "; ".join(failure.reason for failure in failures),
            status=HTTPStatus.NOT_FOUND if is_absent else failures[-1].status if len(failures) == 1 else 0,
            retry_after=busy[0] if busy else "",
        )

    @contextmanager
    def _get(
        self, endpoint: Endpoint, path: str, fields: Mapping[str, str], call: RegistryCall, digest: str = ""
    ) -> Iterator[HttpResponse]:
        """Yield the response to a request; redirects are followed, and challenges answered once."""
        base = self._connections.base_url(endpoint, call)
        sent = {**_IDENTITY, **fields}
        with ExitStack() as stack:
            if digest and (link := self._links.get((endpoint, digest))) is not None:
                with ExitStack() as attempt:
                    response = attempt.enter_context(self._send(endpoint, base, link, sent, call))
                    if response.status in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
                        stack.push(attempt.pop_all())
                        yield response
                        return
                self._links.pop((endpoint, digest), None)
            response, url = self._follow(
                endpoint, base, f"/v2/{_repository_path(endpoint)}/{path}", sent, call, stack
            )
            if digest and origin_of(url) != base and response.status in {200, 206}:
                self._links[endpoint, digest] = url
            yield response

    def _follow(  # noqa: PLR0913, PLR0917 - of one request
        self,
        endpoint: Endpoint,
        base: str,
        path: str,
        fields: Mapping[str, str],
        call: RegistryCall,
        stack: ExitStack,
    ) -> tuple[HttpResponse, str]:
        """Return the final response, which the stack closes, and its URL."""
        for is_answered in (False, True):
            authorization = self._authorization.find(endpoint)
            credentials = {"Authorization": authorization} if authorization else {}
            redirects = Redirects(f"{base}{path}", credentials, {}, is_trusted=True)
            while True:
                url = redirects.url
                with ExitStack() as attempt:
                    own = {**fields, **redirects.fields_for(url)}
                    response = attempt.enter_context(self._send(endpoint, base, url, own, call))
                    if response.status in REDIRECTS:
                        redirects.follow(response)
                        continue
                    if response.status != HTTPStatus.UNAUTHORIZED or origin_of(url) != origin_of(base):
                        stack.push(attempt.pop_all())
                        return response, url
                    challenge = response.field("WWW-Authenticate")
                self._authorization.forget(endpoint)
                break
            if not is_answered:
                is_plain = urlsplit(base).scheme == "http"
                self._authorization.answer(endpoint, challenge, call, is_plain=is_plain)
        raise RegistryFailed(f"{endpoint}: refused what it asked for with status 401", status=401)

    @contextmanager
    def _send(
        self, endpoint: Endpoint, base: str, url: str, fields: Mapping[str, str], call: RegistryCall
    ) -> Iterator[HttpResponse]:
        is_insecure = endpoint.is_insecure and origin_of(url) == origin_of(base)
        client = self._connections.client_of(urlsplit(url).netloc.lower(), is_insecure=is_insecure)
        try:
            with client.send(
                "GET", url, fields, limits=call.limits, interruption=call.interruption
            ) as response:
                yield response
        except HttpError as error:
            if origin_of(url) != origin_of(base):
                error.args = (f"redirected to {public_url(origin_of(url))}: {error}",)
            raise


def _as_failure(endpoint: Endpoint, error: RegistryFailed | HttpError | ConfigurationError) -> RegistryFailed:
    if isinstance(error, RegistryFailed):
        return error
    reason = error.detail if isinstance(error, ConfigurationError) else describe_failure(error)
    return RegistryFailed(f"{endpoint}: {reason}")


def digest_of(content: bytes, algorithm: str = "sha256") -> str:
    """Return the digest of a content, as registries write it."""
    return f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"


def check_part(response: HttpResponse, offset: int, length: int, size: int, where: str) -> None:
    """Check the head of an answer to a range; raises RegistryFailed."""
    content_range = response.field("Content-Range")
    match = _CONTENT_RANGE.fullmatch(content_range)
    if match is None or (int(match[1]), int(match[2])) != (offset, offset + length - 1):
        raise RegistryFailed(
            f"{where}: answered with Content-Range {content_range!r:.60}"
            f" to bytes {offset}-{offset + length - 1}"
        )
    if match[3] not in {"*", str(size)}:
        raise RegistryFailed(f"{where}: has {match[3]} bytes, the manifest says {size}")
    if response.length not in {None, length}:
        raise RegistryFailed(f"{where}: announced {response.length} bytes for a range of {length}")


def describe_failure(error: HttpError) -> str:
    """Return the reason, with a hint for an authority that is not trusted."""
    if isinstance(error, UntrustedCertificate) and error.lacks_authority:
        return f"{error}; REGISTRY_CERTS_DIR, or OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE, has authorities to trust"
    return str(error)


def _check_status(endpoint: Endpoint, response: HttpResponse, what: str, expected: set[HTTPStatus]) -> None:
    if response.status not in expected:
        raise RegistryFailed(
            f"{endpoint}: answered with status {response.status} to {what}",
            status=response.status,
            retry_after=response.field("Retry-After"),
        )


def _repository_path(endpoint: Endpoint) -> str:
    """Return the repository as it is in paths: official images of Docker are in ``library``."""
    is_official = endpoint.registry == "docker.io" and "/" not in endpoint.repository
    return f"library/{endpoint.repository}" if is_official else endpoint.repository
