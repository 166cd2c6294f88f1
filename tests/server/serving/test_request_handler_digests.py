"""Digests: asked for by a URL of their own, and told with the image once they are known."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import Deferred

from image_service.core.errors import Forbidden
from image_service.server.serving.digests import RETRY_AFTER_SECONDS, TIMEOUT_SECONDS
from image_service.server.transport.exchanges.exchange import PreparedResponse
from tests.server.http.reading import body_of, fields_of, problem_of
from tests.server.serving.asking import TARGET, Service, answers_of
from tests.server.snapshots.doubles import ID, TTL_SECONDS
from tests.server.snapshots.doubles import world as make_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.server.snapshots.doubles import World

DIGEST = f"{TARGET}.sha256"
INITRD = f"/images/{ID}/pxe-initrd?version=4.20"
KERNEL = "/boot-artifacts/4.20/x86_64/vmlinuz"


@pytest.fixture
def world() -> Iterator[World]:
    with make_world() as made:
        yield made


@pytest.fixture
def service(world: World) -> Service:
    return Service(world)


@pytest.mark.parametrize(
    ("target", "of", "name"),
    [
        (DIGEST, TARGET, f"{ID}-discovery.iso"),
        (f"{TARGET}?digest=sha256", TARGET, f"{ID}-discovery.iso"),
        (f"/images/{ID}?version=4.20&type=full&digest=sha256", TARGET, f"{ID}-discovery.iso"),
        (f"{INITRD}&digest=sha256", INITRD, f"{ID}-initrd.img"),
        (f"{KERNEL}.sha256", KERNEL, "vmlinuz"),
        ("/boot-artifacts/kernel?version=4.20&digest=sha256", KERNEL, "vmlinuz"),
    ],
)
def test_digest_url_returns_the_checksum_line_of_the_download(
    service: Service, target: str, of: str, name: str
) -> None:
    answer = service.get(target)
    assert answer.response.status == 200
    image = service.get(of)
    line = f"{sha256(body_of(image.response)).hexdigest()}  {name}\n".encode()
    assert body_of(answer.response) == line
    assert fields_of(answer.response) == {
        "content-type": "text/plain",
        "content-length": str(len(line)),
        "cache-control": "no-store",
        "image-etag": fields_of(image.response)["etag"],
    }
    head = service.get(target, "HEAD")
    assert (head.response.fields, head.response.body) == (answer.response.fields, ())
    assert answer.subject.infra_env == image.subject.infra_env


def test_digest_and_image_of_one_url_are_not_confused(service: Service) -> None:
    for _ in range(2):
        assert body_of(service.get(DIGEST).response).endswith(b"-discovery.iso\n")
        assert len(body_of(service.get().response)) > 100_000
    assert service.upstream_calls == 2
    assert body_of(service.get(DIGEST, range="bytes=0-1").response).endswith(b"-discovery.iso\n")


def test_cached_digest_is_sent_as_repr_digest(service: Service) -> None:
    before = service.get()
    assert "repr-digest" not in fields_of(before.response)
    digest = sha256(body_of(before.response)).digest()
    service.get(DIGEST)
    expected = f"sha-256=:{base64.b64encode(digest).decode()}:"
    for method, fields in (
        ("GET", {}),
        ("HEAD", {}),
        ("GET", {"range": "bytes=0-1"}),
        ("GET", {"range": "bytes=0-1,5-6"}),
    ):
        answer = service.ask(TARGET, method, overloaded=False, **fields)
        assert isinstance(answer, PreparedResponse), "it is known"
        assert fields_of(answer.response)["repr-digest"] == expected
    assert fields_of(service.get().response) == {**fields_of(before.response), "repr-digest": expected}


def test_repr_digest_is_absent_from_304_412_and_416(service: Service) -> None:
    service.get(DIGEST)
    for fields, status in (
        ({"if_none_match": "*"}, 304),
        ({"if_match": '"x"'}, 412),
        ({"range": "bytes=-0"}, 416),
    ):
        response = service.get(**fields).response
        assert response.status == status
        assert "repr-digest" not in fields_of(response)


def test_repr_digest_is_sent_for_equal_bytes_only(service: Service) -> None:
    service.get(DIGEST)
    others = [
        service.get(INITRD),
        service.get(KERNEL),
        service.get(TARGET.replace(ID, ID.replace("a6c0", "b7d1"))),
        service.get(TARGET.replace("x86_64", "aarch64")),
    ]
    same_bytes = [answer for answer in others if "repr-digest" in fields_of(answer.response)]
    assert {body_of(answer.response) for answer in same_bytes} <= {body_of(service.get().response)}
    service.world.assisted.config = b'{"ignition": {"version": "3.3.0"}}'
    service.world.clock.advance(TTL_SECONDS + 1)
    assert "repr-digest" not in fields_of(service.get().response)


def test_digest_is_of_the_newest_version_even_during_a_mount(service: Service) -> None:
    service.get(range="bytes=0-1")
    service.world.assisted.config = b'{"ignition": {"version": "3.3.0"}}'
    service.world.clock.advance(TTL_SECONDS)
    answer = service.get(DIGEST, range="bytes=0-1")
    newest = service.get()
    assert b'"3.3.0"' in body_of(newest.response)
    assert fields_of(answer.response)["image-etag"] == fields_of(newest.response)["etag"]


@attrs.define(eq=False)
class HeldHashes:
    """Digests that are taken when the test says so."""

    waiting: list[tuple[Callable[[], bytes], Deferred[bytes]]] = attrs.field(factory=list)

    def __call__(self, work: Callable[[], bytes]) -> Deferred[bytes]:
        """Take work."""
        self.waiting.append((work, Deferred()))
        return self.waiting[-1][1]

    def release(self) -> None:
        """Do it."""
        for work, done in self.waiting:
            done.callback(work())
        self.waiting.clear()


def test_slow_digest_is_503_and_found_later(world: World) -> None:
    hashes = HeldHashes()
    service = Service(world, hashes=hashes)
    waiting = answers_of(service.ask(DIGEST))
    assert body_of(service.get().response), "downloads do not wait for it"
    assert "repr-digest" not in fields_of(service.get().response)
    world.clock.advance(TIMEOUT_SECONDS)
    (answer,) = waiting
    assert answer.response.status == 503
    assert int(fields_of(answer.response)["retry-after"]) > 0
    assert (answer.subject.infra_env, answer.subject.kind) == (ID, "full-iso sha256")
    hashes.release()
    assert service.get(DIGEST).response.status == 200


def test_manifest_waits_as_a_digest_does(world: World) -> None:
    hashes = HeldHashes()
    service = Service(world, hashes=hashes, is_registry=True)
    manifest = f"/v2{TARGET}/manifests/latest"
    waiting = answers_of(service.ask(manifest))
    world.clock.advance(TIMEOUT_SECONDS - 0.1)
    assert waiting == []
    world.clock.advance(0.1)
    (answer,) = waiting
    assert answer.response.status == 503
    assert fields_of(answer.response)["retry-after"] == str(RETRY_AFTER_SECONDS)
    (taken,) = hashes.waiting
    assert answers_of(service.ask(manifest)) == []
    assert hashes.waiting == [taken], "the next request waits for the same"
    hashes.release()
    (layer,) = json.loads(body_of(service.get(manifest).response))["layers"]
    image = body_of(service.get().response)
    assert layer["digest"] == f"sha256:{sha256(image).hexdigest()}"
    assert body_of(service.get(f"/v2{TARGET}/blobs/{layer['digest']}").response) == image


def test_timeout_includes_the_wait_for_the_image(world: World) -> None:
    service = Service(world, hashes=HeldHashes())
    world.assisted.held = []
    waiting = answers_of(service.ask(DIGEST))
    world.clock.advance(TIMEOUT_SECONDS - 0.5)
    world.assisted.release()
    world.clock.advance(0.4)
    assert waiting == []
    world.clock.advance(0.1)
    (answer,) = waiting
    assert answer.response.status == 503


def test_digest_of_an_unknown_image_is_the_error_of_the_image(service: Service) -> None:
    for target, status in (
        (DIGEST.replace("4.20", "9.99"), 404),
        (f"{INITRD.replace('4.20', '9.99')}&digest=sha256", 400),
        (f"{TARGET}?digest=md5", 400),
        (f"{TARGET}.md5", 404),
        ("/boot-artifacts/4.20/x86_64/generic.ins.sha256", 404),
    ):
        answer = service.get(target)
        assert (answer.response.status, problem_of(answer.response)["status"]) == (status, status)


def test_digest_needs_the_credentials_of_the_image(service: Service) -> None:
    assert service.get(DIGEST, authorization="good").response.status == 200
    service.world.assisted.failures["ignition"] = Forbidden("no")
    assert service.get(DIGEST, authorization="bad").response.status == 403
    assert service.get(DIGEST, authorization="good").response.status == 200
