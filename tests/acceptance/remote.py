"""Images of remote bases: their entries, and a client that checks each range it gets."""

from __future__ import annotations

import http.client
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from tests.acceptance.image_states import PATIENCE_SECONDS
from tests.remote_base import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.acceptance.service import Answer, Service
    from tests.server.catalog.origin import Origin

CONFIG: Mapping[str, object] = {"ignition": {"version": "3.4.0"}}
_TIMEOUT_SECONDS = 100
_RETRY_SECONDS = 0.05
_MAX_RANGE_BYTES = 2 * MIB
_MAX_THREADS = 32


def remote_entry(url: str, version: str, **members: object) -> dict[str, object]:
    """Return the entry of ``OS_IMAGES`` for a base that stays at its origin."""
    return {
        "version": version,
        "openshift_version": "4.17",
        "cpu_architecture": "x86_64",
        "url": url,
        "remote": True,
        **members,
    }


def local_entry(path: Path, version: str) -> dict[str, object]:
    """Return the entry of ``OS_IMAGES`` for the same base on the local disk, which says what is right."""
    return {
        "version": version,
        "openshift_version": "4.17",
        "cpu_architecture": "x86_64",
        "url": path.as_uri(),
    }


def image_path(infra_env: str, version: str, file: str = "full.iso") -> str:
    """Return the path of an image of an infra-env."""
    return f"/byid/{infra_env}/{version}/x86_64/{file}"


def get_ready(service: Service, path: str, method: str = "GET") -> Answer:
    """Get an image; wait until each worker that is asked has its base ready."""
    answer = service.get_image(path, method=method)
    assert answer.status == 200, answer
    return answer


def etag_of(service: Service, path: str) -> str:
    """Return the ETag of the image that a newcomer gets."""
    return get_ready(service, path, "HEAD").headers["ETag"]


@attrs.define
class RangeReader:
    """Reads ranges on one connection, and checks each response.

    Args:
        service: which is asked.
        path: of the image.
        contents: what is right, by ETag.
        address: of the client; one that reads an old version keeps it, another one is a newcomer.
        outcomes: how many ranges were ``right``, ``refused`` (503 with Retry-After) and ``aborted``.
        etags: of what it has read.
    """

    service: Service
    path: str
    contents: Mapping[str, bytes]
    address: str = "127.0.0.1"
    outcomes: Counter[str] = attrs.field(factory=Counter)
    etags: set[str] = attrs.field(factory=set)
    _connection: http.client.HTTPConnection | None = None

    def read(self, first: int, length: int) -> bool:
        """Read a range once; return True if it came. Wrong bytes fail the test.

        Args:
            first: offset.
            length: bytes, all of them before the end of the image.
        """
        outcome = self._read(first, length)
        self.outcomes[outcome] += 1
        return outcome == "right"

    def read_at_last(self, first: int, length: int) -> None:
        """Read a range again and again until it comes."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.read(first, length):
            assert time.monotonic() < deadline, f"bytes {first} to {first + length}: {self.outcomes}"
            time.sleep(_RETRY_SECONDS)

    def read_everything(self, step: int = MIB) -> None:
        """Read all ranges in order."""
        size = len(next(iter(self.contents.values())))
        for first in range(0, size, step):
            self.read_at_last(first, min(step, size - first))

    def close(self) -> None:
        """Close the connection; the next range opens another one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _read(self, first: int, length: int) -> str:
        last = first + length - 1
        try:
            response, body = self._ask(f"bytes={first}-{last}")
        except (http.client.HTTPException, OSError):
            self.close()
            return "aborted"
        if response.status == 503:
            assert int(response.headers["Retry-After"]) > 0
            return "refused"
        assert response.status == 206, (response.status, body)
        self.etags.add(response.headers["ETag"])
        content = self.contents[response.headers["ETag"]]
        sent = response.headers["Content-Range"]
        assert sent == f"bytes {first}-{last}/{len(content)}", (sent, len(body))
        assert body == content[first : last + 1], f"wrong bytes in {first} to {last}"
        return "right"

    def _ask(self, wanted: str) -> tuple[http.client.HTTPResponse, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                urlsplit(self.service.url).netloc,
                timeout=_TIMEOUT_SECONDS,
                source_address=(self.address, 0),
            )
        self._connection.request("GET", self.path, headers={"Range": wanted})
        response = self._connection.getresponse()
        return response, response.read()


def run_all(calls: Iterable[Callable[[], object]]) -> None:
    """Run calls at the same time; raise what one of them raised."""
    with ThreadPoolExecutor(max_workers=_MAX_THREADS) as threads:
        for future in [threads.submit(call) for call in calls]:
            future.result()


def random_ranges(
    size: int, count: int, seed: int, max_bytes: int = _MAX_RANGE_BYTES
) -> Iterator[tuple[int, int]]:
    """Return ranges of a file: offset and length."""
    random = Random(seed)  # noqa: S311 - the same in each run
    for _ in range(count):
        first = random.randrange(size)
        yield first, random.randint(1, min(max_bytes, size - first))


def fetched_bytes(origin: Origin, path: str) -> int:
    """Return how many bytes of a file the service has asked the origin for."""
    return sum(last + 1 - first for first, last in fetched_ranges(origin, path))


def fetched_ranges(origin: Origin, path: str) -> Sequence[tuple[int, int]]:
    """Return the first and last bytes of the ranges that the service has asked the origin for."""
    wanted = [request.headers["Range"] for request in origin.requests if request.target == path]
    pairs = [text.removeprefix("bytes=").split("-") for text in wanted if text is not None]
    return [(int(first), int(last)) for first, last in pairs]


def used_bytes(directory: Path) -> int:
    """Return what the files below a directory take of the disk."""
    return sum(_blocks(path) for path in directory.rglob("*")) * 512


def _blocks(path: Path) -> int:
    try:
        return path.stat().st_blocks
    except FileNotFoundError:  # evicted meanwhile
        return 0
