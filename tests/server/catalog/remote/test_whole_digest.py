"""Layers that are read once as a whole: a registry that sends other bytes is found out."""

from __future__ import annotations

import hashlib
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.task import deferLater

from image_service.common.files.block_cache.fetcher import THREADS
from image_service.common.files.block_cache.source import CacheIdentity, OriginFailed
from image_service.core.errors import BaseImageError
from image_service.server.catalog.lifecycle.status import BaseImageState
from image_service.server.catalog.remote.whole_digest import WholeDigest, WholeRefused
from tests.common.files.block_cache.caches import open_cache
from tests.pytwisted import ensure_deferred
from tests.registry_origin import RAW, RegistryOrigin, digest_of
from tests.remote_base import MIB, dense_base, noise
from tests.server.catalog.origin import Reply
from tests.server.catalog.remote.remotes import CHECK_SECONDS, found, remote_entry, rendered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.server.catalog.catalog import Catalog
    from image_service.settings.os_images import OsImage
    from tests.server.catalog.lines import Lines
    from tests.server.catalog.origin import Origin, ReceivedRequest
    from tests.server.catalog.remote.remotes import RemoteCatalogs

ISO = dense_base(12)
WRONG_BYTE = 5 * MIB + 17  # of the root file system


@attrs.define
class LyingRegistry:
    """A registry that has other bytes than those of the digest, in ranges or in the whole."""

    registry: RegistryOrigin
    lies_in_ranges: bool = False
    lies_in_whole: bool = False
    wholes: int = 0

    def __attrs_post_init__(self) -> None:
        self.registry.spoil = self._spoil
        self.registry.manifest([(ISO, RAW)])

    @property
    def image(self) -> OsImage:
        return remote_entry(self.registry.url(), verify=True)

    def _spoil(self, request: ReceivedRequest, reply: Reply) -> Reply:
        wanted = request.headers["Range"]
        self.wholes += wanted is None
        start = int((wanted or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        at, is_lie = WRONG_BYTE - start, self.lies_in_whole if wanted is None else self.lies_in_ranges
        if not is_lie or not 0 <= at < len(reply.body):
            return reply
        body = bytearray(reply.body)
        body[at] ^= 1
        return attrs.evolve(reply, body=bytes(body))


@pytest.fixture
def registry(origin: Origin) -> LyingRegistry:
    return LyingRegistry(RegistryOrigin(origin))


@attrs.frozen
class Runs:
    """Catalogs of the image, with the passing of time."""

    remotes: RemoteCatalogs
    registry: LyingRegistry
    lines: Lines
    reactor: EPollReactor

    async def start(self, *, is_leader: bool = True, prefetch: str = "boot") -> Catalog:
        insecure = (self.registry.registry.host,)
        catalog = self.remotes.start(
            self.registry.image, insecure=insecure, is_leader=is_leader, prefetch=prefetch
        )
        await self.lines.until(self.registry.image.file_name, BaseImageState.READY)
        return catalog

    async def until(self, is_so: Callable[[], object]) -> None:
        while not is_so():
            self.remotes.clock.advance(0.1)
            await deferLater(self.reactor, 0.001)


@pytest.fixture
def runs(remotes: RemoteCatalogs, registry: LyingRegistry, lines: Lines, reactor: EPollReactor) -> Runs:
    return Runs(remotes, registry, lines, reactor)


def is_verified(catalog: Catalog) -> bool:
    return rendered(catalog)["verified"] == "digest"


def is_refused(catalog: Catalog) -> bool:
    return rendered(catalog)["state"] == "refused"


@ensure_deferred
async def test_later_ranges_are_compared(runs: Runs, registry: LyingRegistry) -> None:
    catalog = await runs.start()
    base = found(catalog)
    await runs.until(lambda: is_verified(catalog))
    assert found(catalog) is base
    registry.lies_in_ranges = True
    with pytest.raises(OriginFailed, match=f"MiB at offset {5 * MIB} does not have its digest"):
        base.file.sha256()
    registry.lies_in_ranges = False
    for _ in range(THREADS):  # fetches ahead that began before may fail a read each
        with suppress(OriginFailed):
            base.file.sha256()
    assert base.file.sha256() == hashlib.sha256(ISO).hexdigest()
    await catalog.stop()
    again = await runs.start()
    assert is_verified(again)
    assert registry.wholes == 1


@ensure_deferred
async def test_wrong_bytes_in_the_cache_are_replaced(runs: Runs, registry: LyingRegistry) -> None:
    """By the processes on the cache that do not read the whole, too."""
    registry.lies_in_ranges = True
    other = await runs.start(is_leader=False)
    before = found(other)
    assert before.file.sha256() != hashlib.sha256(ISO).hexdigest()
    registry.lies_in_ranges = False
    catalog = await runs.start()
    await runs.until(lambda: is_verified(catalog) and is_verified(other))
    await runs.until(lambda: found(other) is not before)
    assert f"the MiB at offset {5 * MIB} does not have its digest" in runs.lines.text
    assert "is opened again: bytes of it in the cache were wrong" in runs.lines.text
    assert "another version" not in runs.lines.text
    assert catalog.remote is not None
    counters = catalog.remote.cache.counters
    assert (counters.digest_faults, counters.failed_fetches) == (1, 1)
    for each in (catalog, other):
        assert found(each).sha256 == before.sha256
        assert found(each).file.sha256() == hashlib.sha256(ISO).hexdigest()


@ensure_deferred
async def test_other_digest_of_the_whole_is_refused_until_an_operator_says_so(
    runs: Runs, registry: LyingRegistry
) -> None:
    registry.lies_in_whole = True
    other = await runs.start(is_leader=False)
    catalog = await runs.start()
    await runs.until(lambda: is_refused(catalog) and is_refused(other))
    with pytest.raises(BaseImageError, match="was refused"):
        found(catalog)
    reason = str(rendered(catalog)["reason"])
    named = registry.registry.url(":latest")
    assert reason.startswith(f"{named}: the digest of {digest_of(ISO)} as a whole is sha256:")
    (marker,) = (runs.remotes.directory / "remote").glob("*.refused")
    assert f"remove {marker}" in reason
    await other.stop()
    assert catalog.remote is not None
    catalog.remote.remove_unused([])
    await catalog.stop()
    registry.lies_in_whole = False
    again = runs.remotes.start(registry.image, insecure=(registry.registry.host,))
    await runs.until(lambda: is_refused(again))
    assert registry.wholes == 1
    marker.unlink()
    runs.remotes.clock.advance(CHECK_SECONDS)
    await runs.until(lambda: is_verified(again))
    assert (found(again).file.sha256(), registry.wholes) == (hashlib.sha256(ISO).hexdigest(), 2)


@ensure_deferred
async def test_whole_that_cannot_be_read_is_read_later(runs: Runs, registry: LyingRegistry) -> None:
    registry.registry.spoil = lambda request, reply: (
        reply if request.headers["Range"] else Reply(status=429, headers={"Retry-After": "99"})
    )
    catalog = await runs.start()
    while "was not verified as a whole" not in runs.lines.text:
        await deferLater(runs.reactor, 0.001)
    assert "status 429" in runs.lines.text
    registry.registry.spoil = registry._spoil
    started = runs.remotes.clock.seconds()
    await runs.until(lambda: is_verified(catalog))
    assert runs.remotes.clock.seconds() - started >= 99


@ensure_deferred
async def test_image_is_prefetched_after_it_was_verified(runs: Runs) -> None:
    catalog = await runs.start(prefetch="all")
    await runs.until(lambda: rendered(catalog)["bytes_done"] == len(ISO))
    assert is_verified(catalog)


@ensure_deferred
async def test_sha256_of_an_entry_must_be_the_digest(runs: Runs, registry: LyingRegistry) -> None:
    entry = attrs.evolve(registry.image, sha256=64 * "0")
    catalog = runs.remotes.start(entry, insecure=(registry.registry.host,))
    await runs.lines.until(entry.file_name, BaseImageState.REFUSED)
    assert f"has {digest_of(ISO)} there; it must be sha256:0000" in str(rendered(catalog)["reason"])


# Killed at each step.

CONTENT = noise(2 * MIB + 5)


class WrongMiB:
    """An origin whose second MiB is wrong."""

    def fetch(self, offset: int, target: memoryview) -> None:
        content = CONTENT[:MIB] + bytes(MIB) + CONTENT[2 * MIB :]
        target[:] = content[offset : offset + len(target)]


def verify(directory: Path, content: bytes) -> WholeDigest:
    """Verify a version of whose granules two are in the cache; return what is known then."""
    identity = CacheIdentity("oci://registry/image", digest_of(CONTENT), len(CONTENT))
    whole = WholeDigest(directory, identity, "image")
    with open_cache(directory) as cache:
        file = cache.open(identity, WrongMiB(), whole)
        with suppress(OriginFailed):
            cache.fetch(identity, 0, 2 * MIB)
        blocks = [content[at : at + 300_000] for at in range(0, len(content), 300_000)]
        whole.verify(cache, blocks, lambda: None)
        file.close()
    return whole


def run_until_killed(directory: Path, content: bytes, step: int) -> bool:
    """Verify in a process that is killed before a step that touches the directory; False if it was not."""
    child = os.fork()
    if child == 0:
        import sys  # noqa: PLC0415 - of the child

        steps = [step]

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if event in {"open", "os.rename"} and any(str(directory) in str(each) for each in arguments):
                steps[0] -= 1
                if steps[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        verify(directory, content)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("content", [CONTENT, CONTENT[::-1]], ids=["right", "wrong"])
def test_verification_that_is_killed_is_done_again(tmp_path: Path, content: bytes) -> None:
    step = 0
    while run_until_killed(tmp_path / str(step), content, step):
        whole = verify(tmp_path / str(step), content)
        if content == CONTENT:
            assert whole.differing is not None
            whole.raise_if_refused()
            with pytest.raises(OriginFailed):
                whole.check(1, memoryview(bytes(MIB)))
        else:
            assert whole.differing is None
            with pytest.raises(WholeRefused, match="as a whole is"):
                whole.raise_if_refused()
        step += 1
    assert step > 10
