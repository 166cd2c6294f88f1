"""Uploads of clients: awaited, checked, pinned and deleted, against a server that records its requests."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from image_service.common.http.origins import AllowedOrigins, parse_origin
from image_service.common.transfer.client import TransferClient
from image_service.common.transfer.manifest import render_import_manifest
from image_service.core.errors import NotFound, Unavailable
from image_service.jobs.database.tables import open_database
from image_service.jobs.imports.actions import MOST_OF_TENANT, THREADS, TIMES, ImportActions
from image_service.jobs.plans.import_plan import ImportedDisk, make_import_plan
from image_service.jobs.task_model import ImportSource
from tests.common.transfer.manifests import QUERY, SECRET, make_manifest, serve_parts
from tests.jobs.database.composing import Clock, Rows, make_compose
from tests.pytwisted import ensure_deferred
from tests.server.catalog.origin import Origin, Reply, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from image_service.common.database.database import Database
    from image_service.common.transfer.manifest import ImportManifest
    from image_service.jobs.artifacts.actions import StepResult
    from image_service.jobs.model import Compose

GIB = 1 << 30
IMAGE = b"a disk of the test".ljust(512, b".") * 300
POLL_SECONDS = 7
LIFETIME_SECONDS = 168 * 3600
QUICK = attrs.evolve(TIMES, attempts=2, backoff_seconds=0.01, outage_seconds=0)
DISK = ImportedDisk("RAW", len(IMAGE), GIB, {})


async def at_once(work: Callable[[], Any]) -> Any:
    """Do a piece of work that belongs into a thread."""
    return work()


@attrs.define
class Site:
    """A store with an upload, and the actions.

    Args:
        store: object store.
        foreign: a server that is on no list.
    """

    store: Origin
    foreign: Origin
    database: Database
    clock: Clock
    manifest: ImportManifest
    has_bundle_key: bool = False

    @property
    def actions(self) -> ImportActions:
        allowed = AllowedOrigins(frozenset({parse_origin(self.store.url(""))}), setting="EC2_OBJECT_STORES")
        client = TransferClient(allowed, times=QUICK)
        composes = Rows(self.database).composes
        return ImportActions(
            at_once, composes, allowed, client, POLL_SECONDS, self.has_bundle_key, self.clock
        )

    def add(self, *disks: ImportedDisk) -> Compose:
        """Add an import whose manifests are at ``/manifest``."""
        expires_at = attrs.evolve(self.clock)
        expires_at.advance(LIFETIME_SECONDS)
        plan = make_import_plan(disks or (DISK,), {self.store.url("")}, expires_at())
        compose = make_compose(plan=plan, uploads=())
        source = ImportSource((f"{self.store.url('/manifest')}{QUERY}",) * max(1, len(disks)))
        self.database.transact(
            lambda connection: Rows(self.database).composes.insert(connection, compose, source)
        )
        return compose

    async def look(self, compose: Compose) -> StepResult:
        """Look for the upload of an import once."""
        return await self.actions.await_upload(compose, compose.plan.steps[0])

    async def refused(self, manifest: bytes) -> str:
        """Return the reason why an import with a manifest is refused; nothing else was requested."""
        self.store.serve("/manifest", Reply(manifest))
        result = await self.look(self.add())
        assert result.error
        assert result.error.id == 4
        assert SECRET not in result.error.reason
        assert [request.target for request in self.store.requests] == [f"/manifest{QUERY}"]
        assert self.foreign.requests == []
        return result.error.reason

    def pinned(self, compose: Compose) -> tuple[bytes, ...]:
        source = Rows(self.database).composes.import_source(compose)
        assert source
        return source.manifests


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with running() as store, running() as foreign, closing(open_database(None, tmp_path)) as database:
        yield Site(store, foreign, database, Clock(), make_manifest(store.url(""), len(IMAGE)))


def requests_of(origin: Origin, method: str) -> list[str]:
    return [request.target for request in origin.requests if request.method == method]


@ensure_deferred
async def test_upload_is_awaited_until_all_parts_are_there_and_then_pinned(site: Site) -> None:
    compose = site.add()
    with pytest.raises(Unavailable) as caught:
        await site.look(compose)
    assert caught.value.retry_after_seconds == POLL_SECONDS
    assert caught.value.detail == "the upload is awaited"
    text = render_import_manifest(site.manifest)
    site.store.serve("/manifest", Reply(text))
    parts = serve_parts(site.store, IMAGE)
    site.store.replies[f"/{len(parts) - 1}"].clear()
    with pytest.raises(Unavailable):
        await site.look(compose)
    assert requests_of(site.store, "HEAD") == [
        site.manifest.parts[-1].head_url.removeprefix(site.store.url(""))
    ]
    assert site.pinned(compose) == ()
    site.store.serve(f"/{len(parts) - 1}", parts[-1])
    assert (await site.look(compose)).error is None
    assert site.pinned(compose) == (text,)


@ensure_deferred
async def test_pinned_manifest_is_not_fetched_again(site: Site) -> None:
    compose = site.add()
    text = render_import_manifest(site.manifest)
    site.store.serve("/manifest", Reply(text), Reply(text.replace(b"key 0", b"key X")))
    serve_parts(site.store, IMAGE)
    assert (await site.look(compose)).error is None
    assert (await site.look(compose)).error is None
    assert site.pinned(compose) == (text,)
    assert requests_of(site.store, "GET") == [f"/manifest{QUERY}"]


@ensure_deferred
async def test_manifests_of_several_disks_are_pinned_together(site: Site) -> None:
    site.store.serve("/manifest", Reply(render_import_manifest(site.manifest)))
    serve_parts(site.store, IMAGE)
    compose = site.add(DISK, attrs.evolve(DISK, bytes=1))
    result = await site.look(compose)
    assert result.error
    assert f"size is {len(IMAGE)}, but that of the request is 1" in result.error.reason
    assert site.pinned(compose) == ()
    compose = site.add(DISK, DISK)
    assert (await site.look(compose)).error is None
    assert len(site.pinned(compose)) == 2


@ensure_deferred
async def test_upload_that_is_not_complete_in_time_is_refused(site: Site) -> None:
    compose = site.add()
    site.clock.advance(LIFETIME_SECONDS - 1)
    with pytest.raises(Unavailable):
        await site.look(compose)
    site.clock.advance(2)
    result = await site.look(compose)
    assert result.error
    assert result.error.reason == (
        "step await-upload: the upload was not complete in time:"
        f" {site.store.url('/manifest')} answered with status 404"
    )


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/manifest", 403, "answered with status 403; its signature is wrong or has expired"),
        ("/manifest", 401, "answered with status 401; its signature is wrong or has expired"),
        ("/manifest", 503, "answered with status 503"),
        ("/2", 403, "answered with status 403; its signature is wrong or has expired"),
        ("/manifest", 404, ""),
        ("/2", 404, ""),
    ],
)
@ensure_deferred
async def test_row_says_for_what_an_upload_waits(site: Site, path: str, status: int, reason: str) -> None:
    site.store.serve("/manifest", Reply(render_import_manifest(site.manifest)))
    serve_parts(site.store, IMAGE)
    site.store.replies[path] = [Reply(status=status)]
    compose = site.add()
    with pytest.raises(Unavailable):
        await site.look(compose)
    found = Rows(site.database).composes.find(compose.id)
    assert found
    facts: Any = found.provenance["await-upload"]
    assert bool(facts["waits_for"]) == bool(reason)
    assert reason in facts["waits_for"]
    assert SECRET not in facts["waits_for"]


def bundle_of(part: str) -> bytes:
    """Return the manifest of a bundle of one part, which nobody can decrypt."""
    keys = "".join(
        f'<{owner}_encrypted_key algorithm="AES-128-CBC">00</{owner}_encrypted_key>'
        f"<{owner}_encrypted_iv>00</{owner}_encrypted_iv>"
        for owner in ("user", "ec2")
    )
    digest = f'<digest algorithm="SHA1">{"0" * 40}</digest>'
    return (
        "<manifest><version>2007-10-10</version><machine_configuration></machine_configuration>"
        f"<image>{digest}<size>512</size><bundled_size>512</bundled_size>{keys}"
        f'<parts count="1"><part index="0"><filename>{part}</filename>{digest}</part></parts></image>'
        "<signature>00</signature></manifest>"
    ).encode()


@pytest.mark.parametrize("status", [401, 403])
@ensure_deferred
async def test_bundle_with_private_parts_says_how_to_make_them_readable(site: Site, status: int) -> None:
    site.store.serve("/manifest", Reply(bundle_of("image.part.0")))
    site.store.replies["/image.part.0"] = [Reply(status=status)]
    site.has_bundle_key = True
    compose = site.add()
    with pytest.raises(Unavailable):
        await site.look(compose)
    found = Rows(site.database).composes.find(compose.id)
    assert found
    assert f"status {status}; the parts of a bundle are read without a signature" in str(found.provenance)
    assert "--acl public-read" in str(found.provenance)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": "VMDK"}, "file-format is raw, but that of the request is vmdk"),
        ({"bytes": 512}, f"size is {len(IMAGE)}, but that of the request is 512"),
        ({"volume_bytes": GIB // 2}, "volume-size is 1 GiB, but the volume of the request has 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@ensure_deferred
async def test_manifest_of_another_disk_than_the_request_is_refused(
    site: Site, changes: dict[str, Any], reason: str
) -> None:
    site.store.serve("/manifest", Reply(render_import_manifest(site.manifest)))
    result = await site.look(site.add(attrs.evolve(DISK, **changes)))
    assert result.error
    assert reason in result.error.reason
    assert requests_of(site.store, "HEAD") == []


@pytest.mark.parametrize("kind", ["self-destruct-url", "head-url", "get-url", "delete-url"])
@ensure_deferred
async def test_url_off_the_list_is_refused_before_any_request_to_a_part(site: Site, kind: str) -> None:
    before, element, after = render_import_manifest(site.manifest).rpartition(f"<{kind}>".encode())
    changed = after.replace(site.store.url("").encode(), site.foreign.url("").encode(), 1)
    reason = await site.refused(before + element + changed)
    assert kind in reason
    assert f"is at {site.foreign.url('')}, which EC2_OBJECT_STORES does not list" in reason


BOMB = b"".join(b'<!ENTITY l%d "%s">' % (depth + 1, (b"&l%d;" % depth) * 10) for depth in range(9))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (b"?>", b'?><!DOCTYPE m [<!ENTITY l0 "lol">' + BOMB + b"]>", "document type declaration"),
        (b"?>", b'?><!DOCTYPE m SYSTEM "http://127.0.0.1:9/m.dtd">', "document type declaration"),
        (b'start="65536"', b'start="65537"', "it must begin at 65536"),
        (b'start="65536"', b'start="65535"', "it must begin at 65536"),
        (b'count="3"', b'count="1000000"', "count of 1000000 is not from 1 to 10000"),
    ],
    ids=["laughs", "external", "gap", "overlap", "million parts"],
)
@ensure_deferred
async def test_hostile_manifest_is_refused(site: Site, before: bytes, after: bytes, reason: str) -> None:
    text = render_import_manifest(site.manifest)
    assert before in text
    assert reason in await site.refused(text.replace(before, after, 1))


@ensure_deferred
async def test_manifest_without_end_is_refused(site: Site) -> None:
    assert "has more than 16777216 bytes" in await site.refused(bytes(17 << 20))


@ensure_deferred
async def test_part_of_another_length_is_refused(site: Site) -> None:
    site.store.serve("/manifest", Reply(render_import_manifest(site.manifest)))
    serve_parts(site.store, IMAGE)
    site.store.replies["/1"] = [Reply(b"short")]
    result = await site.look(site.add())
    assert result.error
    assert "part 1 has 5 bytes, instead of the 65536 that its manifest says" in result.error.reason


@pytest.mark.parametrize("path", ["/manifest", "/1"])
@ensure_deferred
async def test_redirect_is_refused_and_not_followed(site: Site, path: str) -> None:
    site.store.serve("/manifest", Reply(render_import_manifest(site.manifest)))
    serve_parts(site.store, IMAGE)
    site.store.replies[path] = [Reply(status=302, headers={"Location": site.foreign.url("/x")})]
    result = await site.look(site.add())
    assert result.error
    assert "redirects are not followed" in result.error.reason
    assert site.foreign.requests == []


BUNDLE = b"<manifest><version>2007-10-10</version><machine_configuration></machine_configuration></manifest>"


@ensure_deferred
async def test_bundle_needs_a_key(site: Site) -> None:
    reason = await site.refused(BUNDLE)
    assert reason.endswith("an image bundle, which cannot be decrypted here: BUNDLE_KEY_FILE is not set")


@ensure_deferred
async def test_bundle_is_checked_where_there_is_a_key(site: Site) -> None:
    site.has_bundle_key = True
    assert "no machine_configuration or no image" in await site.refused(BUNDLE)


def test_looks_of_one_tenant_leave_threads_to_others(site: Site) -> None:
    begun: list[Deferred[Any]] = []

    def in_thread(_: object) -> Deferred[Any]:
        begun.append(Deferred())
        return begun[-1]

    actions = attrs.evolve(site.actions, in_thread=in_thread)
    compose = site.add()
    step = compose.plan.steps[0]
    other = attrs.evolve(compose, tenant="org-2")
    looks = [
        Deferred.fromCoroutine(actions.await_upload(each, step))
        for each in [compose] * (MOST_OF_TENANT + 1) + [other] * (THREADS - MOST_OF_TENANT)
    ]
    assert len(begun) == THREADS
    assert isinstance(looks[MOST_OF_TENANT].result, Failure)
    looks[MOST_OF_TENANT].addErrback(lambda failure: failure.trap(Unavailable))
    for each in begun:
        each.callback(None)
    looks.append(Deferred.fromCoroutine(actions.await_upload(compose, step)))
    assert len(begun) == THREADS + 1


@ensure_deferred
async def test_upload_is_deleted_with_the_manifest_last(site: Site) -> None:
    compose = site.add()
    site.store.serve("/manifest", Reply(render_import_manifest(site.manifest)))
    serve_parts(site.store, IMAGE)
    await site.look(compose)
    assert (await site.actions.delete_upload(compose, compose.plan.steps[-1])).error is None
    deleted = requests_of(site.store, "DELETE")
    assert [target.partition("?")[0] for target in deleted] == ["/0", "/1", "/2", "/manifest"]


@ensure_deferred
async def test_upload_that_cannot_be_deleted_fails_nothing(site: Site) -> None:
    compose = site.add()
    site.store.serve("/manifest", Reply(render_import_manifest(site.manifest)))
    serve_parts(site.store, IMAGE)
    await site.look(compose)
    site.store.replies["/1"] = [Reply(status=403)]
    assert (await site.actions.delete_upload(compose, compose.plan.steps[-1])).error is None
    assert len(requests_of(site.store, "DELETE")) == 4
    site.store.replies["/0"] = [Reply(status=503)]
    assert (await site.actions.delete_upload(compose, compose.plan.steps[-1])).error is None
    assert len(requests_of(site.store, "DELETE")) == 4 + QUICK.attempts


@ensure_deferred
async def test_import_that_has_ended_has_no_upload(site: Site) -> None:
    compose = site.add()
    Rows(site.database).composes.finish(compose.id, compose.state.CANCELLED)
    with pytest.raises(NotFound):
        await site.look(compose)
