"""An origin that fails, lies and changes: the service never sends a wrong byte, and reports each fault."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.acceptance.image_states import until
from tests.acceptance.readers import reading
from tests.acceptance.remote import (
    CONFIG,
    RangeReader,
    etag_of,
    get_ready,
    image_path,
    local_entry,
    random_ranges,
    remote_entry,
    run_all,
)
from tests.acceptance.service import run_service
from tests.origin_faults import EXPIRED_PATH, FAULTS, FaultyResource, hold
from tests.remote_base import MIB, dense_base
from tests.server.catalog.origin import Origin, Reply, Resource, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.acceptance.service import Service

pytestmark = pytest.mark.acceptance

MEGABYTES = 8
NEWCOMER = "127.0.0.2"
NEWCOMER_SECONDS = 300  # ten times what is promised


@pytest.fixture
def origin() -> Iterator[Origin]:
    with running() as server:
        server.serve(EXPIRED_PATH, Reply(status=403))
        yield server


@attrs.frozen
class Served:
    """A service with one remote base, which the origin can spoil, or replace by another version.

    Args:
        service: which is asked.
        origin: of the base.
        faulty: what the origin serves.
        path: of the image.
        content: of the image.
        changed: the other version.
        changed_content: of the image from that.
    """

    service: Service
    origin: Origin
    faulty: FaultyResource
    path: str
    content: bytes
    changed: Resource
    changed_content: bytes

    @contextmanager
    def reader(self, contents: Mapping[str, bytes] | None = None) -> Iterator[RangeReader]:
        """Read with a connection of its own."""
        reader = RangeReader(self.service, self.path, contents or {self.etag(): self.content})
        with closing(reader):
            yield reader

    def etag(self) -> str:
        """Return the ETag of the image that a newcomer gets."""
        return etag_of(self.service, self.path)


@pytest.fixture
def served(tmp_path: Path, origin: Origin) -> Iterator[Served]:
    """Serve a base of which the boot set alone is local."""
    with serving(tmp_path, origin, {}) as running_service:
        yield running_service


@contextmanager
def serving(directory: Path, origin: Origin, environment: Mapping[str, str]) -> Iterator[Served]:
    """Run a service with a remote base that is ready."""
    base, changed = dense_base(MEGABYTES), dense_base(MEGABYTES, seed=1)
    (directory / "local.iso").write_bytes(base)
    (directory / "changed.iso").write_bytes(changed)
    faulty = FaultyResource(Resource(base))
    entries = [
        remote_entry(origin.serve("/a.iso", faulty) + "?token=top-secret", "remote"),
        local_entry(directory / "local.iso", "local"),
        local_entry(directory / "changed.iso", "changed"),
    ]
    with run_service(directory, entries, environment=environment) as service:
        infra_env = service.register("local", CONFIG)
        content, changed_content = (
            get_ready(service, image_path(infra_env, version)).body for version in ("local", "changed")
        )
        other = Resource(changed, etag='"2"')
        path = image_path(infra_env, "remote")
        yield Served(service, origin, faulty, path, content, other, changed_content)
        assert b"top-secret" not in service.output + service.get("/images").body


@pytest.mark.soak
def test_absent_bytes_are_refused_during_each_fault_and_come_after_it(tmp_path: Path, origin: Origin) -> None:
    """One base for each fault, all at once."""
    base = dense_base(MEGABYTES)
    (tmp_path / "local.iso").write_bytes(base)
    spoilt = [FaultyResource(Resource(base)) for _ in FAULTS]
    entries = [
        remote_entry(origin.serve(f"/{index}.iso", faulty), str(index)) for index, faulty in enumerate(spoilt)
    ]
    entries.append(local_entry(tmp_path / "local.iso", "local"))
    with run_service(tmp_path, entries) as service, ExitStack() as stack:
        infra_env = service.register("local", CONFIG)
        content = get_ready(service, image_path(infra_env, "local")).body
        readers = []
        for index in range(len(FAULTS)):
            path = image_path(infra_env, str(index))
            reader = RangeReader(service, path, {etag_of(service, path): content})
            readers.append(stack.enter_context(closing(reader)))
        for faulty, fault in zip(spoilt, FAULTS.values(), strict=True):
            faulty.fault = fault
        run_all(partial(read_absent, reader, len(content)) for reader in readers)
        refused = {name: reader.outcomes for name, reader in zip(FAULTS, readers, strict=True)}
        assert not {name: found for name, found in refused.items() if found["right"]}
        assert not {name: found for name, found in refused.items() if found["aborted"]}
        for index in range(len(FAULTS)):
            service.wait_for(rf'"level": "warn"[^\n]*(-{index}-x86_64\.iso): ')
        for faulty in spoilt:
            faulty.fault = None
        origin.released.set()
        run_all(reader.read_everything for reader in readers)


def read_absent(reader: RangeReader, size: int) -> None:
    """Read bytes that are not local; each range once."""
    for first in range(2 * MIB, size - MIB, 3 * MIB):
        reader.read(first, 4096)


def test_stall_after_the_head_ends_in_an_abort(served: Served) -> None:
    """The first bytes were local, the rest does not come: no short body that ends in order."""
    local = 2 * MIB
    with served.reader() as reader:
        reader.read_at_last(local, 4096)
    served.faulty.fault = hold
    with reading(served.service.url + served.path, f"Range: bytes={local}-") as client:
        client.read_head()
        assert client.status == 206
        with pytest.raises((AssertionError, ConnectionError)):
            client.read(len(served.content) - local - len(client.received))
        assert bytes(client.received) == served.content[local:][: len(client.received)]
    served.origin.released.set()


def test_changed_origin_is_a_new_version_and_never_a_mixture(served: Served) -> None:
    """Readers of the old version get its bytes or nothing; newcomers get the new one."""
    old_etag = served.etag()
    contents = NewestVersion(old_etag, served.content, served.changed_content)
    with ExitStack() as stack:
        readers = [stack.enter_context(served.reader(contents)) for _ in range(8)]
        reading_old = [partial(read_randomly, reader, seed) for seed, reader in enumerate(readers)]
        change = partial(setattr, served.faulty, "resource", served.changed)
        run_all([*reading_old, change])
        deadline = time.monotonic() + NEWCOMER_SECONDS
        while served.etag() == old_etag:
            readers[0].read(len(served.content) - MIB, 4096)
            assert time.monotonic() < deadline
    with closing(RangeReader(served.service, served.path, contents, NEWCOMER)) as newcomer:
        newcomer.read_everything()
        assert newcomer.etags == {served.etag()}


class NewestVersion(dict[str, bytes]):
    """The contents by ETag, where any ETag but the old one is that of the new version."""

    def __init__(self, old_etag: str, old: bytes, new: bytes) -> None:
        super().__init__({old_etag: old})
        self._new = new

    def __missing__(self, etag: str) -> bytes:
        """Return the content of the new version."""
        return self._new


def read_randomly(reader: RangeReader, seed: int) -> None:
    """Read some ranges, each once."""
    for first, length in random_ranges(MEGABYTES * MIB, 30, seed):
        reader.read(first, length)


def test_changed_origin_is_noticed_by_the_check(tmp_path: Path, origin: Origin) -> None:
    """Nothing is absent, so that no fetch notices it."""
    environment = {"REMOTE_CHECK": "1", "REMOTE_PREFETCH": "all"}
    with serving(tmp_path, origin, environment) as served:
        until(served.service, "remote", "ready")
        old = served.etag()
        served.faulty.resource = served.changed
        deadline = time.monotonic() + NEWCOMER_SECONDS
        while served.etag() == old:
            assert time.monotonic() < deadline
            time.sleep(0.1)
