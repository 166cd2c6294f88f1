"""SHA256SUMS: the digests of the files of a directory, under the rules of these files."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import fail, succeed

from image_service.core.errors import Forbidden, NotFound, Unavailable, Unprocessable
from image_service.core.images.reference import ISOS, Kind
from image_service.server.serving.digests import TIMEOUT_SECONDS
from tests.core.families.coreos.miniso_builder import live_iso_with_minimal
from tests.core.images.building import base_image
from tests.server.http.reading import body_of, fields_of, problem_of
from tests.server.serving.asking import TARGET, Service, answers_of
from tests.server.serving.test_request_handler_digests import HeldHashes
from tests.server.snapshots.doubles import ID, TTL_SECONDS, infra_env_of
from tests.server.snapshots.doubles import world as make_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.snapshots.doubles import World

DIRECTORY = TARGET.removesuffix("full.iso")
ISO_CHECKSUMS = f"{DIRECTORY}SHA256SUMS"
ARTIFACTS = "/boot-artifacts/4.20/x86_64/"
NAMES = {
    DIRECTORY: ["full.iso", "minimal.iso", "disconnected.iso", "config.iso"],
    ARTIFACTS: ["vmlinuz", "initrd.img", "rootfs.img"],
}


@pytest.fixture
def world() -> Iterator[World]:
    """A world whose base image has a recipe of its minimal ISO, and whose threads work at once."""
    with make_world() as made, base_image(live_iso_with_minimal()) as base:
        made.catalog.images["4.20", "x86_64", Kind.FULL_ISO] = base
        made.images = made.make_images(lambda work: succeed(work()))
        yield made


@pytest.fixture
def service(world: World) -> Service:
    return Service(world)


def lines_of(service: Service, directory: str) -> dict[str, str]:
    """Return the digests by the names of the files."""
    answer = service.get(f"{directory}SHA256SUMS")
    assert answer.response.status == 200, problem_of(answer.response)
    pairs = [line.split("  ") for line in body_of(answer.response).decode().splitlines()]
    return {name: digest for digest, name in pairs}


@pytest.mark.parametrize("directory", NAMES)
def test_checksums_are_of_the_files_of_the_directory(service: Service, directory: str) -> None:
    answers = {name: service.get(directory + name).response for name in NAMES[directory]}
    assert lines_of(service, directory) == {
        name: sha256(body_of(answer)).hexdigest() for name, answer in answers.items()
    }
    answer = service.get(f"{directory}SHA256SUMS")
    assert fields_of(answer.response)["content-type"] == "text/plain"
    assert answer.subject.infra_env == ("" if directory == ARTIFACTS else ID)
    assert answer.subject.kind == "SHA256SUMS"
    head = service.get(f"{directory}SHA256SUMS", "HEAD").response
    assert (head.fields, head.body) == (answer.response.fields, ())


def test_files_that_are_not_there_or_do_not_fit_have_no_line(service: Service) -> None:
    del service.world.catalog.images["4.20", "x86_64", Kind.DISCONNECTED_ISO]
    service.world.assisted.reported = infra_env_of(["a" * 100_000])
    statuses = [service.get(DIRECTORY + name).response.status for name in NAMES[DIRECTORY]]
    assert statuses == [422, 422, 404, 200]
    assert list(lines_of(service, DIRECTORY)) == ["config.iso"]


@pytest.mark.parametrize("directory", NAMES)
def test_a_directory_without_files_is_the_error_of_its_first(service: Service, directory: str) -> None:
    unknown = f"{directory.replace('4.20', '9.99')}SHA256SUMS"
    assert problem_of(service.get(unknown).response)["code"] == "base-image-unknown"


def test_checksums_need_the_credentials_of_the_images(service: Service) -> None:
    assert service.get(ISO_CHECKSUMS, authorization="good").response.status == 200
    service.world.assisted.failures["ignition"] = Forbidden("no")
    assert service.get(ISO_CHECKSUMS, authorization="bad").response.status == 403
    assert service.get(ISO_CHECKSUMS).response.status == 403
    assert service.get(ISO_CHECKSUMS, authorization="good").response.status == 200


def test_checksums_are_withheld_where_an_image_is(world: World) -> None:
    service = Service(world, withheld=ISOS)
    assert service.get(ISO_CHECKSUMS).response.status == 404
    assert world.assisted.calls == []
    assert list(lines_of(service, ARTIFACTS)) == NAMES[ARTIFACTS]


def test_a_file_that_cannot_be_served_now_is_not_left_out(service: Service) -> None:
    directory = DIRECTORY.replace("x86_64", "aarch64")  # whose minimal ISO is being made
    statuses = [service.get(directory + name).response.status for name in NAMES[DIRECTORY]]
    assert statuses == [200, 503, 404, 200]
    assert service.get(f"{directory}SHA256SUMS").response.status == 503


def test_a_directory_of_which_nothing_can_be_served_yet_is_not_unknown(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a client would not come again."""
    errors = iter([NotFound("no"), Unprocessable("too large"), Unavailable("wait"), NotFound("no")])
    monkeypatch.setattr(service.world.images, "get", lambda *_: fail(next(errors)))
    assert service.get(f"{DIRECTORY}SHA256SUMS").response.status == 503


def test_each_version_is_hashed_once(world: World) -> None:
    hashes = HeldHashes()
    service = Service(world, hashes=hashes)
    for _ in NAMES[DIRECTORY]:
        waiting = answers_of(service.ask(ISO_CHECKSUMS))
        world.clock.advance(TIMEOUT_SECONDS)
        (answer,) = waiting
        assert answer.response.status == 503
        assert int(fields_of(answer.response)["retry-after"]) > 0
        assert len(hashes.waiting) == 1, "the others may wait for other images"
        hashes.release()
    before = lines_of(service, DIRECTORY)
    world.assisted.config = b'{"ignition": {"version": "3.3.0"}}'
    world.clock.advance(TTL_SECONDS + 1)
    service.ask(ISO_CHECKSUMS)
    hashes.release()  # of all, one after the other: none of them waits in vain
    after = lines_of(service, DIRECTORY)
    assert before.keys() == after.keys()
    assert not before.items() & after.items()


def test_images_are_asked_for_at_once(service: Service) -> None:
    """One after the other, four slow answers of assisted-service would take longer than a client waits."""
    service.world.assisted.held = []
    waiting = answers_of(service.ask(ISO_CHECKSUMS))
    asked = {kind for question, _, kind, _ in service.world.assisted.calls if question == "ignition"}
    service.world.assisted.release()
    assert len(asked) == len(NAMES[DIRECTORY])
    assert len(waiting) == 1
