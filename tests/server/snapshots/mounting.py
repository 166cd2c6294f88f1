"""A client of boot images, as each kind of request asks for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import attrs
from twisted.internet.defer import Deferred

from image_service.core.errors import (
    Forbidden,
    Unavailable,
    UpstreamError,
    UpstreamTimeout,
)
from image_service.core.images.reference import ImageRef, Reader
from image_service.server.snapshots.versions import ComposedVersion, ImageRequest, ReadMode
from tests.core.images.building import read
from tests.server.snapshots.doubles import ID, REF, TTL_SECONDS, World
from tests.server.snapshots.pinning import FaultyRepository
from tests.server.standalone.tokens import TokenSigner

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from image_service.core.images.reference import Credentials, Ref
    from image_service.server.snapshots.image_finder import ImageFinder
    from tests.server.snapshots.memory import MemoryRepository

_SIGNER = TokenSigner()
MOMENT = 0.01
OTHER_ID = ID.replace("a6c0", "b7d1")
OTHER_REF = attrs.evolve(REF, infra_env_id=OTHER_ID)
OPEN_REF = ImageRef(ID, None, None, None)
UPSTREAM_FAILS: dict[str, Exception] = {"ignition": UpstreamError("502")}
UPSTREAM_REFUSES: dict[str, Exception] = {"ignition": Forbidden("403")}
FAILING = [UpstreamError("502"), UpstreamTimeout("504"), Unavailable("429")]


def bytes_of(composed: ComposedVersion) -> bytes:
    """The whole image."""
    return read(composed.representation.image.extents.extents)


def etag_of(composed: ComposedVersion) -> str:
    return composed.representation.image.etag


def say(world: World, text: str = "") -> None:
    """Have assisted-service answer with this text, and a new token."""
    config = {"ignition": {"version": "3.2.0"}, "text": text, "token": _SIGNER.sign(ID)}
    world.assisted.config = json.dumps(config).encode()


def use_faulty_repository(world: World) -> FaultyRepository:
    """Replace the repository of a world by one that can fail, and restart it."""
    store = FaultyRepository()
    world.store = cast("MemoryRepository", store)
    restart(world)
    return store


def restart(world: World) -> None:
    """Continue with another process; what the one before had not saved is lost, as by ``kill -9``."""
    world.images = world.make_images()


class PendingRequest:
    """A request that may have to wait; when its image is there, the answer begins and ends at once."""

    def __init__(self, images: ImageFinder, want: ImageRequest, *, moves: bool) -> None:
        self._results: list[ComposedVersion | BaseException] = []
        self.was_cached = False
        composed = images.get_cached_image(want)
        if composed is None:
            asked = images.get(want)
        else:
            self.was_cached = True
            asked = Deferred()
            asked.callback(composed)
        asked.addCallback(self._read, images, want, moves=moves).addErrback(self._fail)

    def _fail(self, failure: Failure) -> None:
        self._results.append(cast("BaseException", failure.value))

    def _read(
        self, composed: ComposedVersion, images: ImageFinder, want: ImageRequest, *, moves: bool
    ) -> None:
        if moves:
            images.mounts.end_response(images.record_mount(want, composed))
        else:
            images.retention.announce(want, composed)
        self._results.append(composed)

    @property
    def is_over(self) -> bool:
        return bool(self._results)

    @property
    def succeeded(self) -> bool:
        return isinstance(self._results[0], ComposedVersion)

    @property
    def composed(self) -> ComposedVersion:
        """What was served; raises the error instead."""
        (result,) = self._results
        if isinstance(result, BaseException):
            raise result
        return result

    @property
    def error(self) -> BaseException:
        (result,) = self._results
        assert isinstance(result, BaseException), result
        return result


@attrs.frozen
class Client:
    """One client that reads one image.

    Args:
        world: where it asks; whichever process is running then.
        address: its address.
        credentials: its credentials.
        ref: what it reads.
    """

    world: World
    address: str = "192.0.2.1"
    credentials: Credentials | None = None
    ref: Ref = REF

    @property
    def reader(self) -> Reader:
        return Reader(self.address, self.credentials, self.ref)

    def ask(self, want: ImageRequest | None = None, *, moves: bool = True) -> PendingRequest:
        return PendingRequest(
            self.world.images, want or ImageRequest(self.reader, ReadMode.RESUME), moves=moves
        )

    def range(self) -> ComposedVersion:
        """A range without a validator."""
        return self.ask().composed

    def whole(self) -> ComposedVersion:
        """A whole GET."""
        return self.ask(ImageRequest(self.reader)).composed

    def head(self) -> ComposedVersion:
        return self.ask(ImageRequest(self.reader), moves=False).composed

    def named(self, *etags: str, date: str | None = None) -> ComposedVersion:
        """A range with If-Match or If-Range."""
        return self.ask(ImageRequest(self.reader, ReadMode.NAMED, etags, date)).composed


def rounds(world: World) -> int:
    """How often an Ignition config was asked for: once in each round."""
    return world.assisted.asked.count("ignition")


def pass_ttl(world: World, text: str = "") -> None:
    """Have the next request ask assisted-service again."""
    say(world, text)
    world.clock.advance(TTL_SECONDS)
