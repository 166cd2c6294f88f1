"""Uploads through EC2's API: hostile ones, which leave no files; bundles; progress."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from botocore.exceptions import ClientError

from image_service.common.transfer.manifest import render_import_manifest
from tests.common.transfer.manifests import QUERY, SECRET, make_manifest, serve_parts
from tests.jobs.ec2_clients import ec2_client, import_settings, raw_sha256, wait_for_import
from tests.jobs.running_role import RunningRole, running_role, wait_until
from tests.server.catalog.origin import Origin, Reply, running
from tests.toolkit.corpus.qcow2 import backing_file
from tests.toolkit.transfer.bundles import BundleMaker, RsaKey, tar_of
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

BODY = b"a disk of the test".ljust(512, b".") * 300
BOMB = b"".join(b'<!ENTITY l%d "%s">' % (depth + 1, (b"&l%d;" % depth) * 10) for depth in range(9))
URLS = ("self-destruct-url", "head-url", "get-url", "delete-url")
SECRETS_OF_HOST = b"bytes of the host" * 100


@attrs.frozen
class Attack:
    """An upload that is refused.

    Args:
        reason: a part of it.
        changes: pairs of texts in the manifest.
        manifest: the answer to the request for it; None: as changed.
        part: the answer to requests for the second part; None: as it is.
    """

    reason: str
    changes: tuple[tuple[bytes, bytes], ...] = ()
    manifest: Reply | None = None
    part: Reply | None = None


@attrs.frozen
class Site:
    """A role with its worker, the object store that it may use, and one that it must not use."""

    role: RunningRole
    store: Origin
    foreign: Origin
    keys: BundleMaker

    def import_volume(self, name: str, size: int, image_format: str = "RAW") -> str:
        """Begin an import whose manifest is at a path, and return the id of its task."""
        task = ec2_client(self.role.url).import_volume(
            AvailabilityZone="here",
            Image={
                "Format": image_format,
                "Bytes": size,
                "ImportManifestUrl": self.store.url(f"/{name}/manifest{QUERY}"),
            },
            Volume={"Size": 1},
        )
        return str(task["ConversionTask"]["ConversionTaskId"])

    def messages(self, task_ids: list[str]) -> list[str]:
        """Return how tasks were cancelled, when they are."""
        ec2 = ec2_client(self.role.url)

        def tasks() -> list[dict[str, Any]]:
            return list(ec2.describe_conversion_tasks(ConversionTaskIds=task_ids)["ConversionTasks"])

        wait_until(lambda: {task["State"] for task in tasks()} == {"cancelled"}, lambda: f"{tasks()}")
        by_id = {task["ConversionTaskId"]: task["StatusMessage"] for task in tasks()}
        return [by_id[task_id] for task_id in task_ids]

    def check_no_trace(self) -> None:
        """Check that nothing stayed behind, and that no request left the list."""
        scratch = self.role.data_dir / "worker" / "scratch"
        wait_until(lambda: not files_below(scratch), lambda: self.role.log)
        assert self.foreign.requests == []
        assert SECRET not in self.role.log
        assert list((self.role.data_dir / "store").rglob("disk.qcow2")) == []


def files_below(directory: Path) -> list[str]:
    """Return the names of the files below a directory, from which some are removed meanwhile."""
    return [name for _, _, names in os.walk(directory) for name in names]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("jobs")
    keys = BundleMaker(RsaKey.make(directory, "user"), RsaKey.make(directory, "service"))
    key_file = directory / "bundle.pem"
    key_file.touch(mode=0o600)
    key_file.write_bytes(keys.service.key.read_bytes() + keys.user.certificate.read_bytes())
    with running() as store, running() as foreign:
        settings = {
            **import_settings(directory, store.url("")),
            "BUNDLE_KEY_FILE": str(key_file),
            "JOBS_WORKER_SLOTS": "2",
            "JOBS_HEARTBEAT_TIMEOUT": "15",  # heartbeats, with progress, come each 5 s
        }
        with running_role(directory, **settings) as role:
            yield Site(role, store, foreign, keys)


def attacks_on_manifests(foreign: str) -> dict[str, Attack]:
    """Return attacks by their names.

    Args:
        foreign: origin of the server that is on no list.
    """
    million = b'<parts count="1000000">' + b"<part/>" * 1_000_000
    redirect = Reply(status=302, headers={"Location": f"{foreign}/x"})
    doctype = b'<!DOCTYPE m [<!ENTITY l0 "lol">' + BOMB + b"]>"
    external = f'<!DOCTYPE m SYSTEM "{foreign}/m.dtd">'.encode()
    return {
        "gap": Attack("it must begin at 65536", ((b'start="65536"', b'start="65537"'),)),
        "overlap": Attack("it must begin at 65536", ((b'start="65536"', b'start="65535"'),)),
        "size": Attack("but its size is 512", ((b"<size>153600<", b"<size>512<"),)),
        "volume": Attack("volume-size is 2 GiB", ((b"<volume-size>1<", b"<volume-size>2<"),)),
        "length": Attack("part 1 has 5 bytes, instead of the 65536", part=Reply(b"short")),
        "laughs": Attack("document type declaration or entities", ((b"?>", b"?>" + doctype),)),
        "external": Attack("document type declaration or entities", ((b"?>", b"?>" + external),)),
        "million": Attack("more than 60064 elements", ((b'<parts count="3">', million),)),
        "redirect": Attack("redirects are not followed", manifest=redirect),
        "redirect-of-part": Attack("redirects are not followed", part=redirect),
    }


@pytest.mark.parametrize(
    "names",
    [("million", "redirect-of-part", "get-url"), soaked(None)],
    ids=["few", "all"],
)
def test_hostile_manifests_are_refused_with_the_reason(site: Site, names: Collection[str] | None) -> None:
    store, foreign = site.store.url(""), site.foreign.url("")
    attacks = attacks_on_manifests(foreign) | {kind: Attack(kind) for kind in URLS}
    if names is not None:
        attacks = {name: attacks[name] for name in names}
    task_ids = []
    for name, attack in attacks.items():
        text = render_import_manifest(make_manifest(f"{store}/{name}", len(BODY)))
        for before, after in attack.changes:
            assert before in text
            text = text.replace(before, after, 1)
        if name in URLS:
            start, element, end = text.rpartition(f"<{name}>".encode())
            text = start + element + end.replace(store.encode(), foreign.encode(), 1)
        serve_upload(site.store, name, BODY)
        site.store.serve(f"/{name}/manifest", attack.manifest or Reply(text))
        if attack.part:
            site.store.replies[f"/{name}/1"] = [attack.part]
        task_ids.append(site.import_volume(name, len(BODY)))
    messages = site.messages(task_ids)
    for attack, message in zip(attacks.values(), messages, strict=True):
        assert attack.reason in message
    off_the_list = f"is at {foreign}, which EC2_OBJECT_STORES does not list"
    assert sum(off_the_list in message for message in messages) == len(attacks.keys() & set(URLS))
    site.check_no_trace()


def serve_upload(store: Origin, name: str, body: bytes) -> None:
    """Serve the parts of an image below a name."""
    for index, part in enumerate(serve_parts(store, body)):
        store.replies.pop(f"/{index}")
        store.serve(f"/{name}/{index}", part)


def test_unsafe_image_is_refused_with_the_reason(site: Site, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"bytes of the host" * 100)
    body = backing_file(tmp_path, secret).read_bytes()
    serve_upload(site.store, "unsafe", body)
    manifest = attrs.evolve(make_manifest(site.store.url("/unsafe"), len(body)), format_name="QCOW2")
    site.store.serve("/unsafe/manifest", Reply(render_import_manifest(manifest)))
    (message,) = site.messages([site.import_volume("unsafe", len(body), "QCOW2")])
    assert "backing" in message
    site.check_no_trace()


def test_bundle_of_another_user_is_refused(site: Site, tmp_path: Path) -> None:
    serve_bundle(site.store, "stranger", attrs.evolve(site.keys, user=site.keys.service), tmp_path)
    (message,) = site.messages([site.import_volume("stranger", len(BODY))])
    assert "the signature of the bundle's manifest is invalid" in message
    site.check_no_trace()


def test_manifest_at_another_server_is_refused_at_once(site: Site) -> None:
    image = {"Format": "RAW", "Bytes": 512, "ImportManifestUrl": site.foreign.url(f"/manifest{QUERY}")}
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        ec2_client(site.role.url).import_volume(AvailabilityZone="here", Image=image, Volume={"Size": 1})
    site.check_no_trace()


def test_converted_bytes_are_seen_to_rise(site: Site) -> None:
    """It and the next are the last tests: their images stay in the store."""
    ec2 = ec2_client(site.role.url)
    serve_upload(site.store, "slow", BODY)
    (part,) = site.store.replies["/slow/1"]
    held = Reply(BODY[:100], promised=65536, hold=True)
    site.store.replies["/slow/1"] = [part, held, part]  # the first is for the look for the upload
    manifest = render_import_manifest(make_manifest(site.store.url("/slow"), len(BODY)))
    site.store.serve("/slow/manifest", Reply(manifest))
    task_id = site.import_volume("slow", len(BODY))
    seen = set()

    def follow() -> bool:
        (task,) = ec2.describe_conversion_tasks(ConversionTaskIds=[task_id])["ConversionTasks"]
        seen.add(task["ImportVolume"]["BytesConverted"])
        if len(seen) > 1:
            site.store.released.set()
        assert task["State"] in {"active", "completed"}, task
        return bool(task["State"] == "completed")

    wait_until(follow, lambda: f"{seen} {site.role.log}")
    assert {0, len(BODY)} < seen


def test_bundle_becomes_an_image(site: Site, tmp_path: Path) -> None:
    serve_bundle(site.store, "bundle", site.keys, tmp_path)
    (task,) = wait_for_import(ec2_client(site.role.url), site.import_volume("bundle", len(BODY)))
    image = site.role.get(f"/images/{task['ImportVolume']['Volume']['Id']}/download").body
    (tmp_path / "image.qcow2").write_bytes(image)
    assert raw_sha256(tmp_path / "image.qcow2", "qcow2") == hashlib.sha256(BODY).hexdigest()
    scratch = site.role.data_dir / "worker" / "scratch"
    wait_until(lambda: not files_below(scratch), lambda: site.role.log)


def serve_bundle(store: Origin, name: str, keys: BundleMaker, directory: Path) -> None:
    """Serve a bundle of `BODY`; its manifest is at ``/NAME/manifest``."""
    raw = directory / "disk.raw"
    raw.write_bytes(BODY)
    manifest = keys.make(directory / "bundle", tar_of(raw), len(BODY))
    for path in manifest.parent.iterdir():
        file_name = "manifest" if path == manifest else path.name
        store.serve(f"/{name}/{file_name}", Reply(path.read_bytes()))
