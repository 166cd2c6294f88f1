from __future__ import annotations

import os
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

import pytest

from tests.pytwisted import async_fixture
from tests.server.transport.image_handler import Image, ImageHandler, make_image
from tests.server.transport.server import DEFAULTS, Server, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator

    from twisted.internet.epollreactor import EPollReactor

    from image_service.common.files.page_cache import PageCache
    from image_service.server.http.forwarded import Network
    from image_service.settings.network import LimitSettings


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    made = make_image(tmp_path_factory.mktemp("image"))
    yield made
    os.close(made.file.descriptor)


@pytest.fixture
def handler(image: Image) -> Iterator[ImageHandler]:
    made = ImageHandler(image)
    yield made
    assert made.ended == made.given


class Serve(Protocol):
    """Starts servers that live as long as the test."""

    async def __call__(
        self,
        *,
        secure: bool = False,
        limits: LimitSettings = DEFAULTS,
        downloads: int = 400,
        page_cache: PageCache | None = None,
        proxies: Collection[Network] = (),
    ) -> Server: ...


@async_fixture
async def serve(reactor: EPollReactor, handler: ImageHandler) -> AsyncIterator[Serve]:
    async with AsyncExitStack() as running:

        async def start(
            *,
            secure: bool = False,
            limits: LimitSettings = DEFAULTS,
            downloads: int = 400,
            page_cache: PageCache | None = None,
            proxies: Collection[Network] = (),
        ) -> Server:
            return await running.enter_async_context(
                serving(
                    reactor,
                    handler,
                    secure=secure,
                    limits=limits,
                    downloads=downloads,
                    page_cache=page_cache,
                    proxies=proxies,
                )
            )

        yield start


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def serve_both(request: pytest.FixtureRequest, serve: Serve) -> Serve:
    return cast("Serve", partial(serve, secure=request.param))


@async_fixture
async def server(serve_both: Serve) -> AsyncIterator[Server]:
    yield await serve_both()


@async_fixture
async def plain(serve: Serve) -> AsyncIterator[Server]:
    yield await serve()


@async_fixture
async def tls(serve: Serve) -> AsyncIterator[Server]:
    yield await serve(secure=True)
