"""Simulated downloads: an origin that changes, breaks off and lies, and a machine that loses power.

What is published must be, whole, a file that the origin had.
"""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from email.utils import formatdate
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import attrs

from image_service.common.concurrency.interruption import Interruption
from image_service.core.errors import Unavailable
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.server.catalog.storage.data_dir import DataDir
from image_service.server.catalog.storage.manifest import FileIdentity
from tests.server.catalog.catalogs import entry
from tests.simulation.disk import PowerFailure, SimulatedDisk
from tests.simulation.events import START, Outcome
from tests.simulation.steps import Step, choose_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

VERSIONS = 4
MOST_BYTES = 40_000
WEIGHTS = {"download": 3, "lose_power": 7}
STEPS = 10
WELL = (Step(0.0, "download", (0.0,)), Step(0.0, "download", (0.5,)))
"""In the end nothing fails any more."""


@attrs.frozen(eq=False)
class OriginVersion:
    """A file of the origin, and its validator."""

    content: bytes = attrs.field(repr=False)
    fields: Mapping[str, str]


@attrs.frozen(eq=False)
class SimulatedResponse:
    """As `OriginResponse`. ``length`` is what the origin promises."""

    status: int
    fields: Mapping[str, str]
    length: int | None
    body: Iterator[bytes]

    def field(self, name: str) -> str:
        """Return a field's value."""
        return self.fields.get(name, "")

    def blocks(self) -> Iterator[bytes]:
        """Yield the body."""
        return self.body

    def unavailable(self, reason: str) -> Unavailable:
        """Return the error for a reason."""
        return Unavailable(reason)


class SimulatedOrigin:
    """An origin, in the place of `OriginClient`; well: it does what it should."""

    def __init__(self, chance: Random, disk: SimulatedDisk) -> None:
        self._chance = chance
        self._disk = disk
        self.is_well = False
        self.now = 0.0
        kind = chance.choice(("ETag", "ETag", "Last-Modified", "none"))
        sizes = [chance.randrange(1, MOST_BYTES)] * VERSIONS
        if chance.random() < 0.5:
            sizes = [chance.randrange(1, MOST_BYTES) for _ in range(VERSIONS)]
        self.versions = [self._make_version(kind, number, size) for number, size in enumerate(sizes)]
        self._current = 0

    def _make_version(self, kind: str, number: int, size: int) -> OriginVersion:
        value = f'"{number}"' if kind == "ETag" else formatdate(number * 1000, usegmt=True)
        fields = {kind: value, "Date": formatdate(100_000, usegmt=True)}
        return OriginVersion(self._chance.randbytes(size), fields)

    @contextmanager
    def fetch(
        self, _url: str, headers: Mapping[str, str], _interruption: Interruption
    ) -> Iterator[SimulatedResponse]:
        """As `OriginClient.fetch`."""
        if self._happens(0.2):
            raise Unavailable("refused")
        if self._happens(0.4):
            self._current = min(self._current + 1, VERSIONS - 1)
        response = self._respond(self.versions[self._current], headers)
        answer = f"{response.status} {dict(response.fields)}, {response.length} bytes"
        self._disk.trace.append(f"{dict(headers)}: {answer}")
        yield response

    def _respond(self, version: OriginVersion, headers: Mapping[str, str]) -> SimulatedResponse:
        size, start = len(version.content), int(headers.get("Range", "bytes=0-")[6:-1])
        asked = headers.get("If-Match") or headers.get("If-Unmodified-Since")
        is_same = asked in {None, *version.fields.values()} or self._happens(0.5)
        if not is_same:
            return SimulatedResponse(412, {}, 0, iter(()))
        if start == 0 or self._happens(0.1):
            length = None if self._happens(0.2) else size
            body = self._send(version.content, 0, may_exceed=length is not None)
            return SimulatedResponse(200, version.fields, length, body)
        if start >= size:
            return SimulatedResponse(416, {**version.fields, "Content-Range": f"bytes */{size}"}, 0, iter(()))
        first = max(0, start - 1) if self._happens(0.1) else start
        part = f"bytes {first}-{size - 1}/{size}"
        fields = {**version.fields, "Content-Range": part}
        return SimulatedResponse(206, fields, size - first, self._send(version.content, first))

    def _send(self, content: bytes, start: int, *, may_exceed: bool = True) -> Iterator[bytes]:
        while start < len(content):
            if self._happens(0.2):
                raise Unavailable("the connection broke")
            self.now += self._chance.random()
            self._disk.step()
            stop = start + self._chance.randrange(1, 9000)
            yield content[start:stop]
            start = stop
        if may_exceed and self._happens(0.03):
            yield b"more than was promised"

    def _happens(self, probability: float) -> bool:
        return self._chance.random() < probability and not self.is_well


def make_steps(seed: int) -> list[Step]:
    """Return the attempts of a seed: the power fails in most of them."""
    return choose_steps(seed, WEIGHTS, STEPS)


def run_downloads(directory: Path, seed: int, steps: Sequence[Step]) -> Outcome:
    """Carry out steps of the history of a seed in an empty directory, up to its first fault."""
    chance = Random(f"downloads {seed}")
    disk = SimulatedDisk(directory, chance)
    faults: list[str] = []
    origin, image = SimulatedOrigin(chance, disk), entry("https://origin.test/live.iso")
    with (
        disk.observed(),
        patch.object(time, "monotonic", lambda: origin.now),
        patch.object(secrets, "token_hex", lambda count: chance.randbytes(count).hex()),
        patch.object(FileIdentity, "of", lambda status: FileIdentity(status.st_size, disk.modified(status))),
    ):
        for number, step in enumerate((*steps, *WELL), 1):
            chance.seed(step.draws[0])
            disk.trace.append(f"-- {step.act}")
            origin.is_well = number > len(steps)
            if step.act == "lose_power":
                disk.steps_left = chance.randrange(1, 60)
            data_dir = DataDir(directory, now=lambda: int(START + origin.now))
            try:
                data_dir.open()
                fetcher = ImageFetcher(data_dir, partial(download_file, cast("Any", origin)))
                try:
                    fetcher.fetch_if_absent(image, Interruption())
                except Unavailable as error:
                    disk.trace.append(error.detail)
            except PowerFailure:
                disk.restart()
            finally:
                data_dir.close()
            disk.write_back()
            is_due = number == len(steps) + len(WELL)
            if faults := list(_faults(directory / image.file_name, origin, is_due=is_due)):
                break
    disk.close()
    return Outcome("\n".join(disk.trace), tuple(faults), origin.now)


def _faults(image: Path, origin: SimulatedOrigin, *, is_due: bool) -> Iterator[str]:
    if image.exists():
        content = image.read_bytes()
        if all(content != version.content for version in origin.versions):
            yield f"{len(content)} bytes are published, which the origin never had"
    elif is_due:
        yield "nothing is published in the end"
    if is_due and (left := [path.name for path in image.parent.glob(".*.part")]):
        yield f"{left} are left in the end"
