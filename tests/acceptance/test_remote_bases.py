"""Base images that stay at their origin: nginx with TLS, an S3 server, and an origin that counts requests."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.image_states import images_of, until
from tests.acceptance.remote import (
    CONFIG,
    RangeReader,
    etag_of,
    fetched_bytes,
    get_ready,
    image_path,
    local_entry,
    random_ranges,
    remote_entry,
    run_all,
    used_bytes,
)
from tests.acceptance.service import run_service
from tests.acceptance.tenants import wait_for
from tests.cli.piping import run_piped
from tests.nginx import Nginx, running_nginx
from tests.origin_faults import FaultyResource, corrupt, hold
from tests.remote_base import ISLAND_BYTES, MIB, dense_base, noise, write_island_base
from tests.s3_server import ACCESS_KEY, SECRET_KEY, running_s3_server
from tests.server.catalog.full_isos import x86_64
from tests.server.catalog.origin import Origin, Resource, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.acceptance.service import Answer, Certificate, Service

pytestmark = pytest.mark.acceptance

GIBIBYTES = 60
MEGABYTES = 24


@pytest.fixture
def origin() -> Iterator[Origin]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def base() -> bytes:
    """Return a base image without holes."""
    return dense_base(MEGABYTES)


def expected(service: Service, infra_env: str, version: str) -> bytes:
    """Return the image of a local base."""
    return get_ready(service, image_path(infra_env, version)).body


@contextlib.contextmanager
def compared(
    directory: Path, base: bytes, entry: dict[str, object], environment: dict[str, str] | None = None
) -> Iterator[tuple[Service, RangeReader]]:
    """Run a service with a remote base and the same one on its disk; yield a reader of the remote one."""
    (directory / "local.iso").write_bytes(base)
    entries = [entry, local_entry(directory / "local.iso", "local")]
    with run_service(directory, entries, environment=environment) as service:
        infra_env, version = service.register("local", CONFIG), str(entry["version"])
        path = image_path(infra_env, version)
        contents = {etag_of(service, path): expected(service, infra_env, "local")}
        with contextlib.closing(RangeReader(service, path, contents)) as reader:
            yield service, reader


def test_base_of_60_gib_is_served_from_nginx_and_s3(tmp_path: Path, certificate: Certificate) -> None:
    """Ready once the boot files are local, which are some MiB; the rest is read on demand."""
    for name in ("nginx", "s3", "service"):
        (tmp_path / name).mkdir()
    with (
        running_nginx(tmp_path / "nginx", certificate=certificate) as nginx,
        running_s3_server(tmp_path / "s3") as s3_server,
    ):
        islands = write_island_base(nginx.files / "huge.iso", GIBIBYTES)
        write_island_base(s3_server.directory / "huge.iso", GIBIBYTES)
        entries = [
            remote_entry(nginx.url("/huge.iso"), "nginx", type="disconnected-iso"),
            remote_entry(s3_server.publish("huge.iso"), "s3", type="disconnected-iso"),
        ]
        environment = {**s3_server.environment, "OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE": str(certificate.ca)}
        with run_service(tmp_path / "service", entries, environment=environment) as service:
            for version in ("nginx", "s3"):
                check_islands(service, version, nginx, islands)
            assert used_bytes(tmp_path / "service" / "data") < 1024 * MIB
            state = service.get("/images").body + service.get("/metrics").body
            for secret in (SECRET_KEY, ACCESS_KEY, "X-Amz-"):
                assert secret.encode() not in service.output + state
                assert not [path for path in (tmp_path / "service").rglob("*") if secret in path.name]


def check_islands(service: Service, version: str, nginx: Nginx, islands: Sequence[int]) -> None:
    """Check the state of a base, and bytes around each of its islands."""
    image = until(service, version, "ready")
    size = (nginx.files / "huge.iso").stat().st_size
    assert (image["remote"], image["size"], image["verified"]) == (True, size, "origin")
    assert image["bytes_done"] < GIBIBYTES * MIB
    path = image_path(service.register(version, CONFIG), version, "disconnected.iso")
    with (nginx.files / "huge.iso").open("rb") as file:
        for offset in [*islands, size - 4096]:
            first, last = offset - 2048, min(offset + ISLAND_BYTES, size) - 1
            answer = service.get(path, {"Range": f"bytes={first}-{last}"})
            assert (answer.status, answer.headers["Content-Range"]) == (206, f"bytes {first}-{last}/{size}")
            file.seek(first)
            assert answer.body == file.read(last + 1 - first)


def test_all_bytes_are_those_of_a_local_base(tmp_path: Path, origin: Origin, base: bytes) -> None:
    url = origin.serve("/a.iso", Resource(base))
    with compared(tmp_path, base, remote_entry(url, "remote")) as (_, reader):
        for first, length in random_ranges(len(base), 50, seed=1):
            reader.read_at_last(first, length)
        reader.read_everything()
        assert reader.outcomes["aborted"] == 0


def test_origin_is_read_once_by_all_workers_and_not_again_after_a_restart(
    tmp_path: Path, origin: Origin, base: bytes
) -> None:
    url = origin.serve("/a.iso", Resource(base))
    entry = remote_entry(url, "remote")
    with compared(tmp_path, base, entry, {"WORKERS": "2"}) as (service, reader):
        readers = [RangeReader(service, reader.path, reader.contents) for _ in range(8)]
        run_all(each.read_everything for each in readers)
        for each in readers:
            each.close()
            assert each.outcomes["right"] == -(-len(base) // MIB)
        assert len(base) <= fetched_bytes(origin, "/a.iso") < len(base) * 1.2
        etag = etag_of(service, reader.path)
    origin.requests.clear()
    with compared(tmp_path, base, entry) as (service, reader):
        reader.read_everything()
        assert fetched_bytes(origin, "/a.iso") <= 2 * MIB
        assert etag_of(service, reader.path) == etag


def test_etag_is_the_same_on_another_replica(tmp_path: Path, origin: Origin, base: bytes) -> None:
    """What stands for the base in the ETag does not depend on when or where the base was pinned."""
    entry = remote_entry(origin.serve("/a.iso", Resource(base)), "remote")
    artifacts = "/boot-artifacts/remote/x86_64/rootfs.img"
    found = set()
    for replica in ("a", "b"):
        (tmp_path / replica).mkdir()
        with run_service(tmp_path / replica, [entry]) as service:
            until(service, "remote", "ready")
            found.add(etag_of(service, artifacts))
    assert len(found) == 1


def test_digest_of_an_image_is_known_once_all_of_it_is_local(
    tmp_path: Path, origin: Origin, base: bytes
) -> None:
    url = origin.serve("/a.iso", Resource(base))
    with compared(tmp_path, base, remote_entry(url, "remote")) as (service, reader):
        refused = service.get(reader.path + ".sha256")
        assert (refused.status, "local" in refused.json()["detail"]) == (404, True), refused
        reader.read_everything()
        image = images_of(service)["remote"]
        assert image["bytes_done"] == image["size"] == len(base)
        digest = wait_for_digest(service, reader.path)
        assert digest == hashlib.sha256(next(iter(reader.contents.values()))).hexdigest()


def wait_for_digest(service: Service, path: str) -> str:
    """Return the SHA-256 of an image once the service has it."""
    answers: list[Answer] = []

    def is_answered() -> bool:
        answers.append(service.get(path + ".sha256"))
        return answers[-1].status != 503

    wait_for(is_answered)
    assert answers[-1].status == 200, answers[-1]
    return answers[-1].body.decode().split()[0]


def test_prefetch_of_all_makes_everything_local(tmp_path: Path, origin: Origin, base: bytes) -> None:
    url = origin.serve("/a.iso", Resource(base))
    environment = {"REMOTE_PREFETCH": "all"}
    with compared(tmp_path, base, remote_entry(url, "remote"), environment) as (service, reader):
        wait_for(lambda: images_of(service)["remote"]["bytes_done"] == len(base))
        origin.requests.clear()
        reader.read_everything()
        assert fetched_bytes(origin, "/a.iso") == 0


@pytest.mark.parametrize("etag", ["", 'W/"1"'], ids=["no ETag", "weak ETag"])
def test_base_that_cannot_be_pinned_is_refused_unless_it_has_digests(
    etag: str, tmp_path: Path, origin: Origin, base: bytes
) -> None:
    url = origin.serve("/a.iso", Resource(base, etag))
    entries = [remote_entry(url, "bare"), remote_entry(url, "listed", **listed(tmp_path, origin, base))]
    with run_service(tmp_path, entries, environment={"READY_WHEN": "any"}) as service:
        refused = until(service, "bare", "refused")
        assert "validator" in refused["reason"]
        assert until(service, "listed", "ready")["verified"] == "digest"


def test_origin_without_ranges_is_refused(tmp_path: Path, certificate: Certificate, base: bytes) -> None:
    del certificate
    with running_nginx(tmp_path, f"location /whole/ {{ max_ranges 0; alias {tmp_path}/files/; }}") as nginx:
        (nginx.files / "a.iso").write_bytes(base)
        entries = [
            remote_entry(nginx.url("/whole/a.iso"), "whole"),
            remote_entry(nginx.url("/a.iso"), "good"),
        ]
        with run_service(tmp_path, entries, environment={"READY_WHEN": "any"}) as service:
            assert "range" in until(service, "whole", "refused")["reason"]
            until(service, "good", "ready")


def listed(directory: Path, origin: Origin, base: bytes) -> dict[str, Any]:
    """Publish the list of digests that ``image-service digests`` writes; return the members of the entry."""
    (directory / "listed.iso").write_bytes(base)
    written = run_piped("digests", directory / "listed.iso").stdout
    head, *lines = written.decode().splitlines()
    assert head == f"sha256 {len(base)} {MIB}"
    blocks = (base[at : at + MIB] for at in range(0, len(base), MIB))
    assert lines == [hashlib.sha256(block).hexdigest() for block in blocks]
    url = origin.serve("/a.iso.digests", Resource(written))
    return {"digests": url, "digests_sha256": hashlib.sha256(written).hexdigest()}


def test_corrupt_block_is_noticed_by_its_digest(tmp_path: Path, origin: Origin, base: bytes) -> None:
    """The origin says nothing wrong: only the digest of the block does."""
    faulty = FaultyResource(Resource(base))
    entry = remote_entry(origin.serve("/a.iso", faulty), "remote", **listed(tmp_path, origin, base))
    with compared(tmp_path, base, entry) as (service, reader):
        assert images_of(service)["remote"]["verified"] == "digest"
        faulty.fault = corrupt
        offsets = range(0, len(base) - MIB, 2 * MIB)
        for first in offsets:
            reader.read(first, 4096)
        assert reader.outcomes["refused"] + reader.outcomes["aborted"] > 0
        faulty.fault = None
        reader.read_everything()
        assert b"digest" in service.output


def test_minimal_iso_that_must_be_made_answers_503_until_it_is(tmp_path: Path, origin: Origin) -> None:
    x86_64(tmp_path / "full.iso", noise(8 * MIB))
    faulty = FaultyResource(Resource((tmp_path / "full.iso").read_bytes()))
    url = origin.serve("/a.iso", faulty)
    with run_service(tmp_path, [remote_entry(url, "remote")], environment={"READY_WHEN": "any"}) as service:
        path = image_path(service.register("remote", CONFIG), "remote", "minimal.iso")
        answers: list[Answer] = []

        def is_made() -> bool:
            answers.append(service.get(path, method="HEAD"))
            return answers[-1].status != 503

        wait_for(is_made)
        *refused, answer = answers
        assert all(int(each.headers["Retry-After"]) > 0 for each in refused)
        assert answer.status == 200


def test_first_byte_or_503_comes_in_time_from_an_origin_that_hangs(
    tmp_path: Path, origin: Origin, base: bytes
) -> None:
    faulty = FaultyResource(Resource(base))
    entry = remote_entry(origin.serve("/a.iso", faulty), "remote")
    with compared(tmp_path, base, entry) as (service, reader):
        faulty.fault = hold
        absent = len(base) - 4 * MIB
        answer = service.get(reader.path, {"Range": f"bytes={absent}-{absent + 4095}"})
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        for offset in (0, 32768):  # the boot set is local
            assert reader.read(offset, 2048)
        faulty.fault = None
        origin.released.set()
        reader.read_at_last(absent, 4096)
