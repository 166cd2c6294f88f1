"""What is published of streams, as an application answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import succeed

from image_service.core.errors import NotFound, Unavailable
from image_service.core.extents import ExtentMap, Literal
from image_service.core.images.boot_image import BootImage
from image_service.core.images.reference import ISOS, StreamDocumentRef
from image_service.server.boot_progress.recording import ReadRecorder
from image_service.server.serving.digests import Digests
from image_service.server.serving.image_responses import ImageResponses
from image_service.server.serving.ipxe_scripts import IpxeScripts
from image_service.server.serving.pages import Pages
from image_service.server.serving.request_handler import ImageRequestHandler
from tests.server.serving.asking import Service
from tests.server.snapshots.doubles import BASE_URL
from tests.server.snapshots.doubles import world as make_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.errors import ImageServiceError
    from image_service.core.images.reference import StreamRef
    from image_service.server.transport.exchanges.exchange import PreparedResponse
    from tests.server.snapshots.doubles import World

DOCUMENT = b'{"stream": "stable"}\n'
IMAGE = BootImage(
    extents=ExtentMap((Literal(DOCUMENT),)),
    etag='"1"',
    modified=None,
    file_name="stable.json",
    is_iso=False,
    is_public=True,
    content_type="application/json",
)


@attrs.define(eq=False)
class Mirror:
    """Gives the document, or fails, and knows what it was asked for."""

    failure: ImageServiceError | None = None
    refs: list[StreamRef] = attrs.field(factory=list)

    def __call__(self, ref: StreamRef) -> BootImage:
        self.refs.append(ref)
        if self.failure:
            raise self.failure
        return IMAGE


@pytest.fixture
def world() -> Iterator[World]:
    with make_world() as made:
        yield made


@pytest.fixture
def mirror() -> Mirror:
    return Mirror()


@pytest.fixture(params=[(), ISOS])
def service(request: pytest.FixtureRequest, world: World, mirror: Mirror) -> Service:
    """On a listener that serves ISOs, and on one that does not."""
    made = Service(world)
    digests = Digests(world.clock, lambda _: succeed(b""))
    scripts = IpxeScripts(world.images, lambda: BASE_URL, "/base", uses_host=False)
    made.handler = ImageRequestHandler(
        world.images,
        ImageResponses(world.images, digests, ReadRecorder(world.clock.seconds)),
        Pages(lambda: "", "/base"),
        "/base",
        links=made.links,
        scripts=scripts,
        withheld=request.param,
        mirror=mirror,
    )
    return made


def fields(answer: PreparedResponse) -> dict[str, str]:
    lines = answer.response.fields.decode().splitlines()
    return dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize("prefix", ["", "/base"])
def test_stream_document_is_served(service: Service, mirror: Mirror, prefix: str) -> None:
    answer = service.get(f"{prefix}/streams/stable.json")
    assert (answer.response.status, answer.response.body) == (200, (Literal(DOCUMENT),))
    assert fields(answer)["Content-Type"] == "application/json"
    assert fields(answer)["Cache-Control"] == "public, no-cache"
    assert fields(answer)["ETag"] == '"1"'
    assert answer.subject.handler == "/streams/:document"
    assert mirror.refs == [StreamDocumentRef("stable")]


def test_stream_document_has_methods_preconditions_and_ranges(service: Service) -> None:
    target = "/streams/stable.json"
    assert service.get(target, "HEAD").response.body == ()
    assert service.get(target, if_none_match='"1"').response.status == 304
    part = service.get(target, range="bytes=2-7")
    assert (part.response.status, part.response.body) == (206, (Literal(DOCUMENT[2:8]),))


@pytest.mark.parametrize(
    ("failure", "status"), [(NotFound("no"), 404), (Unavailable("later", retry_after_seconds=7), 503)]
)
def test_unknown_stream_is_problem_details(
    service: Service, mirror: Mirror, failure: ImageServiceError, status: int
) -> None:
    mirror.failure = failure
    answer = service.get("/streams/stable/44.1/x86_64/live.iso")
    assert answer.response.status == status
    assert fields(answer).get("Retry-After") == ("7" if status == 503 else None)
    assert answer.subject.handler == "/streams/:stream/:release/:arch/:file"


def test_stream_document_is_refused_when_overloaded(service: Service, mirror: Mirror) -> None:
    answer = service.get("/streams/stable.json", overloaded=True)
    assert (answer.response.status, mirror.refs) == (503, [])


def test_unknown_document_of_a_stream_is_404_with_its_route(service: Service, mirror: Mirror) -> None:
    answer = service.get("/streams/stable.yaml")
    assert (answer.response.status, answer.subject.handler) == (404, "/streams/:document")
    assert service.get("/streams/stable.yaml", overloaded=True).response.status == 503
    assert mirror.refs == []


def test_stream_routes_are_404_without_streams(world: World) -> None:
    assert Service(world).get("/streams/stable.json").response.status == 404
