"""A mount through the balancer: ranges in random order, each compared with the image that was read first."""

from __future__ import annotations

import http.client
import random
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs

from tests.acceptance.clients import run_client

if TYPE_CHECKING:
    import threading
    from collections.abc import Set as AbstractSet

_TIMEOUT_SECONDS = 30
_OUTAGE_SECONDS = 120
"""No outage of these tests takes longer, on a slow machine."""
_RETRY_SECONDS = 0.05
_MAX_RANGE_BYTES = 16 * 1024
_NEW_CONNECTION = 0.1
"""The part of ranges that begin a new connection, so that per-connection balancing spreads a mount."""
_GATEWAY_STATUSES = {502, 503, 504}
_LATER = {503, 504}
"""Of the service: it cannot answer now, or not in time. Both have Retry-After."""


@attrs.frozen
class Response:
    """A response: status, header fields by lower-case name, content."""

    status: int
    fields: dict[str, str]
    content: bytes = attrs.field(repr=False)

    @property
    def is_of_balancer(self) -> bool:
        """Whether the balancer answered because a replica did not; its own errors are HTML."""
        is_html = self.fields.get("content-type", "").startswith("text/html")
        return self.status in _GATEWAY_STATUSES and is_html


@attrs.define(eq=False)
class Mount:
    """A client that reads one image.

    Attributes:
        read: ranges so far.
        refused: responses 503 so far, and errors of connections, by description.

    Args:
        host: and port, of the balancer or of a replica.
        path: of the image.
        source: the client's address; empty: any.
    """

    host: str
    path: str
    source: str = ""
    etag: str = ""
    image: bytes = attrs.field(default=b"", repr=False)
    read: int = 0
    refused: Counter[str] = attrs.field(factory=Counter)
    _connection: http.client.HTTPConnection | None = None

    def start(self) -> None:
        """Read the whole image; all ranges are compared with it."""
        answer = self._get_served()
        assert answer.status == 200, answer
        self.etag, self.image = answer.fields["etag"], answer.content

    def read_ranges(self, count: int, until: threading.Event, pause_seconds: float = 0.0) -> None:
        """Read at least `count` ranges, and go on until the event is set."""
        chooser = random.Random(self.path)  # noqa: S311 - the same ranges in each run
        target = self.read + count
        while self.read < target or not until.is_set():
            self._read_range(chooser)
            time.sleep(pause_seconds)
        self.close()

    def check(self, base: Path, configs: AbstractSet[bytes]) -> None:
        """Check that the image is the base with one of these configs, and nothing else."""
        with TemporaryDirectory() as directory:
            iso = Path(directory) / "image.iso"
            iso.write_bytes(self.image)
            assert run_client("coreos-installer", "iso", "ignition", "show", iso) in configs
            assert run_client("coreos-installer", "iso", "reset", "-o", "-", iso) == base.read_bytes()

    def move_to(self, host: str) -> None:
        """Go on at another host."""
        self.close()
        self.host = host

    def get(self, headers: dict[str, str] | None = None) -> Response:
        """Send one request, on the open connection if there is one."""
        if self._connection is None:
            source = (self.source, 0) if self.source else None
            self._connection = http.client.HTTPConnection(
                self.host, timeout=_TIMEOUT_SECONDS, source_address=source
            )
        try:
            self._connection.request("GET", self.path, headers=headers or {})
            answer = self._connection.getresponse()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return Response(answer.status, fields, answer.read())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read_range(self, chooser: random.Random) -> None:
        start = chooser.randrange(len(self.image))
        stop = min(len(self.image), start + chooser.randint(1, _MAX_RANGE_BYTES))
        if chooser.random() < _NEW_CONNECTION:
            self.close()
        answer = self._get_served({"Range": f"bytes={start}-{stop - 1}"})
        assert answer.status == 206, answer
        assert answer.fields["etag"] == self.etag, "another ETag"
        assert answer.fields["content-range"] == f"bytes {start}-{stop - 1}/{len(self.image)}"
        assert answer.content == self.image[start:stop], f"other bytes in {start}-{stop - 1}"
        self.read += 1

    def _get_served(self, headers: dict[str, str] | None = None) -> Response:
        """Send a request; repeat it while it is refused with Retry-After, or a replica is lost."""
        deadline = time.monotonic() + _OUTAGE_SECONDS
        while True:
            try:
                answer = self.get(headers)
            except (OSError, http.client.HTTPException) as error:
                self.refused[type(error).__name__] += 1
                pause_seconds = _RETRY_SECONDS
            else:
                if answer.status not in _GATEWAY_STATUSES:
                    return answer
                self.refused[f"{answer.status} {answer.content[:200]!r}"] += 1
                self.close()
                pause_seconds = _RETRY_SECONDS
                if not answer.is_of_balancer:
                    assert answer.status in _LATER, answer
                    pause_seconds = float(answer.fields["retry-after"])
            assert time.monotonic() < deadline, self.refused
            time.sleep(pause_seconds)
