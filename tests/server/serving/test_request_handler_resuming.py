"""Clients that go on with what they have a part of, by the header fields that they send."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import succeed

from image_service.server.boot_progress.recording import ReadRecorder
from image_service.server.http.head import Request
from image_service.server.serving.digests import Digests
from image_service.server.serving.image_responses import ImageResponses
from image_service.server.serving.ipxe_scripts import IpxeScripts
from image_service.server.serving.pages import Pages
from image_service.server.serving.request_handler import ImageRequestHandler
from image_service.server.transport.exchanges.exchange import PreparedResponse
from tests.server.http.reading import body_of, fields_of
from tests.server.links.linking import links_of
from tests.server.serving.asking import TARGET, answers_of
from tests.server.snapshots.doubles import BASE_URL, TTL_SECONDS, WINDOW_SECONDS, World
from tests.server.snapshots.doubles import world as make_world
from tests.server.snapshots.mounting import restart, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import LoggedFailures

MOMENT = 0.01
ONE, OTHER = "203.0.113.7", "203.0.113.8"
PART = "bytes=512-1023"


@attrs.define(eq=False)
class Service:
    """A service that may be restarted, asked by any client."""

    world: World
    application: ImageRequestHandler = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        digests = Digests(self.world.clock, lambda work: succeed(work()))
        reads = ReadRecorder(self.world.clock.seconds)
        scripts = IpxeScripts(self.world.images, lambda: BASE_URL, "", uses_host=False)
        links = links_of(self.world)
        self.application = ImageRequestHandler(
            self.world.images,
            ImageResponses(self.world.images, digests, reads),
            Pages(lambda: ""),
            links=links,
            scripts=scripts,
        )

    def restart(self) -> None:
        restart(self.world)
        self.start()

    def change(self, text: str = "changed") -> None:
        """Let the infra-env be another, and be asked about anew."""
        say(self.world, text)
        self.world.clock.advance(TTL_SECONDS)

    def begin(
        self, method: str = "GET", client: str = ONE, target: str = TARGET, **fields: str
    ) -> PreparedResponse:
        """Start a response; the caller releases it."""
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        asked = self.application.handle(
            Request(method, target, headers, keep_alive=True), client, overloaded=False
        )
        if isinstance(asked, PreparedResponse):
            return asked
        (answer,) = answers_of(asked)
        return answer

    def ask(
        self, method: str = "GET", client: str = ONE, target: str = TARGET, **fields: str
    ) -> PreparedResponse:
        answer = self.begin(method, client, target, **fields)
        answer.on_end()
        return answer

    def whole(self, client: str = ONE) -> tuple[bytes, str, str]:
        """The whole image, its entity tag and its date."""
        answer = self.ask(client=client)
        fields = fields_of(answer.response)
        return body_of(answer.response), fields["etag"], fields["last-modified"]


@pytest.fixture
def service() -> Iterator[Service]:
    with make_world() as world:
        say(world)
        yield Service(world)


def served(answer: PreparedResponse) -> tuple[int, str]:
    return answer.response.status, fields_of(answer.response)["etag"]


def test_range_resumes_and_other_requests_get_the_newest(service: Service) -> None:
    image, first, _ = service.whole()
    service.change()
    _, second, _ = service.whole(OTHER)
    assert second != first
    assert served(service.ask("HEAD")) == (200, second)
    assert served(service.ask("HEAD", range=PART)) == (200, second)
    part = service.ask(range=PART)
    assert served(part) == (206, first)
    assert body_of(part.response) == image[512:1024]
    several = service.ask(range="bytes=0-9,20-29")
    assert served(several) == (206, first)
    assert service.ask(if_none_match=first).response.status == 200
    assert served(service.ask(range=PART)) == (206, second), "a whole GET has moved it"


def test_response_without_content_moves_no_mount(service: Service) -> None:
    _, first, _ = service.whole()
    service.change()
    second = fields_of(service.ask("HEAD").response)["etag"]
    assert service.ask(if_none_match=second).response.status == 304
    assert service.ask(if_match=first).response.status == 412
    assert service.ask(range="bytes=99999999-").response.status == 416
    assert served(service.ask(range=PART)) == (206, first)


@pytest.mark.parametrize("field", ["if_range", "if_match"])
@pytest.mark.parametrize("restarted", [False, True])
def test_download_is_resumed_by_its_etag(service: Service, field: str, *, restarted: bool) -> None:
    image, first, _ = service.whole()
    service.change()
    service.ask("HEAD")
    if restarted:
        service.restart()
        service.ask("HEAD")
    answer = service.ask(range="bytes=512-", **{field: first})
    assert served(answer) == (206, first)
    assert body_of(answer.response) == image[512:]


def test_download_is_resumed_by_the_etag_of_a_head(service: Service) -> None:
    first = fields_of(service.ask("HEAD").response)["etag"]
    service.change()
    assert served(service.ask("HEAD")) != (200, first)
    assert served(service.ask(range=PART, if_match=first)) == (206, first)


@pytest.mark.parametrize("restarted", [False, True])
def test_unknown_etag_gets_the_newest(service: Service, *, restarted: bool) -> None:
    service.whole()
    service.change()
    new, second, _ = service.whole(OTHER)
    if restarted:
        service.restart()
    whole = service.ask(range="bytes=512-", if_range='"unknown"')
    assert (served(whole), body_of(whole.response)) == ((200, second), new)
    assert service.ask(range="bytes=512-", if_match='"unknown"').response.status == 412


@pytest.mark.parametrize("field", ["if_range", "if_unmodified_since"])
@pytest.mark.parametrize("restarted", [False, True])
def test_date_resumes_the_version_being_read(service: Service, field: str, *, restarted: bool) -> None:
    image, first, date = service.whole()
    service.change()
    if restarted:
        service.restart()
        service.ask("HEAD")
    answer = service.ask(range="bytes=512-", **{field: date})
    assert served(answer) == (206, first)
    assert body_of(answer.response) == image[512:]


@pytest.mark.parametrize("field", ["if_range", "if_unmodified_since"])
@pytest.mark.parametrize("restarted", [False, True])
def test_date_never_splices_two_snapshots(service: Service, field: str, *, restarted: bool) -> None:
    """They have the same date, and once the mount is over nobody knows which of them is meant."""
    _, _, date = service.whole()
    service.change()
    if restarted:
        service.restart()
    service.world.clock.advance(WINDOW_SECONDS + MOMENT)
    new, second, same_date = service.whole(OTHER)
    assert same_date == date
    answer = service.ask(range="bytes=512-", **{field: date})
    assert (served(answer), body_of(answer.response)) == ((200, second), new)
    assert service.ask(range="bytes=512-", **{field: date}).response.status == 206, "it is being read now"


def test_etag_precedes_a_date(service: Service) -> None:
    """RFC 9110 section 13.1.4: a recipient ignores the date where there is If-Match."""
    image, first, date = service.whole()
    service.change()
    service.world.clock.advance(WINDOW_SECONDS + MOMENT)
    answer = service.ask(range="bytes=512-", if_match=first, if_unmodified_since=date)
    assert served(answer) == (206, first)
    assert body_of(answer.response) == image[512:]


@pytest.mark.parametrize("tag", ["W/{}", 'W/{}, "other"'])
def test_weak_etag_names_nothing(service: Service, tag: str) -> None:
    _, first, _ = service.whole()
    service.change()
    _, second, _ = service.whole(OTHER)
    assert served(service.ask(range=PART, if_range=tag.format(first))) == (200, second)
    assert service.ask(range=PART, if_match=tag.format(first)).response.status == 412
    assert served(service.ask(range=PART, if_match=f'W/"other", {first}')) == (206, first)


def test_if_range_date_of_a_boot_artifact_gives_206(service: Service) -> None:
    target = "/boot-artifacts/4.20/x86_64/rootfs.img"
    date = fields_of(service.ask("HEAD", target=target).response).get("last-modified", "")
    assert service.ask(target=target, range="bytes=2-", if_range=date).response.status == 206


def test_response_in_progress_keeps_the_mount(service: Service) -> None:
    _, first, _ = service.whole()
    download = service.begin()
    service.change()
    service.world.clock.advance(10 * WINDOW_SECONDS)
    assert served(service.ask(range=PART)) == (206, first)
    download.on_end()
    service.world.clock.advance(WINDOW_SECONDS + MOMENT)
    assert served(service.ask(range=PART)) != (206, first)


def test_credentials_have_separate_mounts(service: Service) -> None:
    images = {}
    for name in ("", "one", "two"):
        say(service.world)
        fields = {"authorization": name} if name else {}
        images[name] = served(service.ask(range=PART, **fields))
    assert len(set(images.values())) == 3
    service.change()
    for _ in range(2):
        for name in ("", "one", "two"):
            fields = {"authorization": name} if name else {}
            assert served(service.ask(range=PART, **fields)) == images[name]
        service.restart()


def test_digest_is_of_the_newest_version(service: Service) -> None:
    image, _, _ = service.whole()
    checksum = service.ask(target=f"{TARGET}.sha256")
    assert body_of(checksum.response).startswith(hashlib.sha256(image).hexdigest().encode())
    service.change()
    new, second, _ = service.whole(OTHER)
    checksum = service.ask(target=f"{TARGET}.sha256")
    assert body_of(checksum.response).startswith(hashlib.sha256(new).hexdigest().encode())
    assert fields_of(checksum.response)["image-etag"] == second


def test_unexpected_error_for_a_cached_image_is_a_500(
    service: Service, monkeypatch: pytest.MonkeyPatch, logged_failures: LoggedFailures
) -> None:
    service.ask(range=PART)

    def fail(*_: object) -> None:
        raise KeyError("s3cr3t")

    monkeypatch.setattr(service.world.images, "get_cached_image", fail)
    answer = service.ask(range=PART)
    assert answer.response.status == 500
    assert b"s3cr3t" not in body_of(answer.response)
    assert len(logged_failures.flush(KeyError)) == 1
