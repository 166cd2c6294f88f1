"""``image-service images``: on a directory, and against a server that responds as the service does."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.server.catalog.storage.data_dir import DataDir
from tests.core.families.coreos.streams import stream, text
from tests.server.catalog.origin import Origin, Reply, Resource, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import CommandResult, Run
    from tests.server.catalog.origin import Responder

NAME = "rhcos-full-iso-9.6.1-x86_64.iso"


@pytest.fixture
def origin() -> Iterator[Origin]:
    with running() as server:
        yield server


@attrs.frozen
class Directory:
    """A data directory with a configuration."""

    path: Path
    origin: Origin
    run: Run
    monkeypatch: pytest.MonkeyPatch
    content: bytes

    def configure(self, answer: Responder, **members: str) -> None:
        """Configure an image whose URL has this response."""
        self.origin.replies.clear()
        entry = {
            "version": "9.6.1",
            "openshift_version": "4.17",
            "cpu_architecture": "x86_64",
            "url": self.origin.serve("/base.iso", answer) + "?token=top-secret",
            **members,
        }
        self.monkeypatch.setenv("DATA_DIR", str(self.path))
        self.monkeypatch.setenv("OS_IMAGES", json.dumps([entry]))

    def images(self, *arguments: object) -> CommandResult:
        """Run a verb."""
        return self.run("images", *arguments)

    def listed(self) -> dict[str, object]:
        """The listed state of the only image."""
        document = json.loads(self.images("list", "--json").output)
        (image,) = document["images"]
        assert isinstance(image, dict)
        return image


@pytest.fixture
def directory(
    tmp_path: Path, origin: Origin, run: Run, monkeypatch: pytest.MonkeyPatch, live_iso: bytes
) -> Directory:
    made = Directory(tmp_path / "data", origin, run, monkeypatch, live_iso)
    made.path.mkdir()
    made.configure(Reply(live_iso))
    return made


def test_configured_image_is_fetched_verified_and_listed(directory: Directory) -> None:
    digest = hashlib.sha256(directory.content).hexdigest()
    before = directory.listed()
    assert (before["state"], before["reason"], before["bytes_done"]) == ("waiting", "not downloaded", 0)

    fetched = directory.images("fetch")
    assert (fetched.status, fetched.errors) == (0, "")
    assert fetched.output == f"{NAME}: SHA-256 {digest}\n".encode()
    assert (directory.path / NAME).read_bytes() == directory.content

    after = directory.listed()
    assert (after["state"], after["sha256"], after["size"]) == ("ready", digest, len(directory.content))
    assert "top-secret" not in str(after)
    assert directory.images("fetch", "9.6.1").status == 0
    assert len(directory.origin.requests) == 1


def test_each_verb_works_in_the_environment_of_a_service(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSISTED_SERVICE_HOST", "assisted.example:8090")
    for verb in ("fetch", "list", "verify"):
        assert (directory.images(verb).status, directory.images(verb).errors) == (0, "")
    assert directory.images("remove", "9.6.1").status == 0


def test_list_prints_a_table(directory: Directory) -> None:
    directory.images("fetch")
    head, line = directory.images("list").output.decode().splitlines()
    columns = ("VERSION", "CPU ARCHITECTURE", "TYPE", "STATE", "PROGRESS", "SHA256", "RETRY AT", "REASON")
    assert re.split(" {2,}", head) == list(columns)
    assert line.split()[:4] == ["9.6.1", "x86_64", "full-iso", "ready"]
    assert "100% of" in line


def test_remote_image_is_listed_as_such(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {
        "openshift_version": "4.20",
        "version": "9.6.1",
        "cpu_architecture": "x86_64",
        "url": "https://mirror.example/live.iso",
        "remote": True,
    }
    monkeypatch.setenv("OS_IMAGES", json.dumps([entry]))
    listed = directory.listed()
    assert (listed["state"], listed["reason"]) == ("waiting", "stays at its origin; --admin asks a service")


def test_interrupted_fetch_is_resumed(directory: Directory) -> None:
    directory.configure(Resource(directory.content, cuts=[4096]))
    fetched = directory.images("fetch")
    assert fetched.status == 1
    assert fetched.errors.startswith(f"{NAME}: cannot fetch")
    assert "top-secret" not in fetched.errors
    listed = directory.listed()
    assert (listed["state"], listed["reason"], listed["bytes_done"]) == ("waiting", "partly downloaded", 4096)
    assert directory.images("fetch").status == 0
    assert directory.origin.requests[-1].headers["Range"] == "bytes=4096-"


def test_refused_image_is_listed_with_the_reason(directory: Directory) -> None:
    directory.configure(Reply(directory.content), sha256="ab" * 32)
    assert "its SHA-256 is" in directory.images("fetch").errors
    listed = directory.listed()
    assert listed["state"] == "refused"
    assert "its SHA-256 is" in str(listed["reason"])


def test_verify_reads_each_byte_and_changes_nothing(directory: Directory) -> None:
    directory.images("fetch")
    assert directory.images("verify").status == 0
    path = directory.path / NAME
    status, content = path.stat(), bytearray(directory.content)
    content[-100] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    before = {each.name: each.read_bytes() for each in directory.path.iterdir()}
    directory.configure(Reply(b""), sha256=hashlib.sha256(directory.content).hexdigest())
    verified = directory.images("verify")
    assert verified.status == 1
    assert verified.errors.startswith(f"{NAME}: its SHA-256 is ")
    assert {each.name: each.read_bytes() for each in directory.path.iterdir()} == before


def change_one_byte(path: Path) -> None:
    """Change a file, and put its modification time back."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("restored", [True, False])
def test_changed_download_fails_verify_until_it_is_fetched_again(
    directory: Directory, *, restored: bool
) -> None:
    digest = hashlib.sha256(directory.content).hexdigest()
    directory.images("fetch")
    verified = directory.images("verify").output.decode()
    assert verified == f"{NAME}: SHA-256 {digest}, as in the record of its download\n"
    change_one_byte(directory.path / NAME)
    if not restored:
        os.utime(directory.path / NAME, ns=(0, 0))
    for _ in range(2):
        changed = directory.images("verify")
        assert changed.status == 1
        assert f"it must be {digest} by the record of its download" in changed.errors
        fetched = directory.images("fetch")  # opens it as a start of the service does
        assert fetched.status == 1
        assert f"it was {digest} when it was downloaded; remove it with --force" in fetched.errors
    assert directory.images("remove", "--force", "9.6.1").status == 0
    assert directory.images("fetch").status == 0
    assert directory.images("verify").status == 0


def test_verify_names_os_images_if_they_have_the_digest(directory: Directory) -> None:
    digest = hashlib.sha256(directory.content).hexdigest()
    directory.configure(Reply(directory.content), sha256=digest)
    directory.images("fetch")
    assert directory.images("verify").output.decode() == f"{NAME}: SHA-256 {digest}, as in OS_IMAGES\n"
    change_one_byte(directory.path / NAME)
    verified = directory.images("verify")
    assert verified.status == 1
    assert verified.errors.endswith(f"; it must be {digest} by OS_IMAGES\n")


def test_verify_compares_a_local_file_with_its_last_verification(
    directory: Directory, tmp_path: Path
) -> None:
    local = tmp_path / "live.iso"
    local.write_bytes(directory.content)
    digest = hashlib.sha256(directory.content).hexdigest()
    directory.configure(Reply(b""), url=local.as_uri())
    verified = directory.images("verify").output.decode()
    assert verified == f"{NAME}: SHA-256 {digest}, compared with nothing: no digest is known\n"
    directory.images("fetch")
    assert "as in the record of its last verification" in directory.images("verify").output.decode()
    change_one_byte(local)
    verified_again = directory.images("verify")
    assert verified_again.status == 1
    assert f"it must be {digest} by the record of its last verification" in verified_again.errors
    removed = directory.images("remove", "9.6.1").output.decode()
    assert removed == f"{NAME}: removed, except {local}, which is used in place\n"
    assert local.exists()


def test_verify_of_an_empty_directory_fails(directory: Directory) -> None:
    verified = directory.images("verify")
    assert verified.status == 1
    assert "nothing to verify: there is no base image in " in verified.errors


def test_remove_keeps_images_that_were_put_there_by_hand_unless_forced(directory: Directory) -> None:
    directory.images("fetch")
    by_hand = directory.path / "rhcos-full-iso-1-x86_64.iso"
    by_hand.write_bytes(directory.content)
    kept = directory.images("remove", "1")
    assert kept.status == 1
    assert "it was not downloaded here; --force removes it all the same" in kept.errors
    assert by_hand.exists()
    assert directory.images("remove", "9.6.1").status == 0
    assert [path.name for path in directory.path.glob("*rhcos*")] == [by_hand.name]
    assert directory.images("remove", "--force", "1").status == 0
    assert not [*directory.path.glob("*rhcos*")]


def test_remove_keeps_a_changed_image_with_its_files_unless_forced(directory: Directory) -> None:
    directory.images("fetch")
    os.utime(directory.path / NAME, ns=(0, 0))
    before = {path.name for path in directory.path.iterdir()}
    kept = directory.images("remove", "9.6.1")
    assert kept.status == 1
    assert kept.errors.startswith(f"{NAME}: not removed: it was changed after its download;")
    assert {path.name for path in directory.path.iterdir()} == before
    assert directory.images("remove", "9.6.1", "--force").status == 0
    assert not [*directory.path.glob("*rhcos*")]


def test_remove_keeps_an_image_in_use_though_forced(directory: Directory) -> None:
    directory.images("fetch")
    with DataDir(directory.path).lock(NAME, Interruption()):
        kept = directory.images("remove", "--force", "9.6.1")
    assert kept.status == 1
    assert "another process or thread is working on it" in kept.errors
    assert (directory.path / NAME).exists()


def follow_stream(directory: Directory, *replies: Responder) -> str:
    """Configure a stream, and no images; return the name of its release's file."""
    told = stream("9.6.2", origin=directory.origin.url(""))
    disk = told["architectures"]["x86_64"]["artifacts"]["metal"]["formats"]["iso"]["disk"]
    disk["sha256"] = hashlib.sha256(directory.content).hexdigest()
    directory.origin.serve(disk["location"].removeprefix(directory.origin.url("")), Reply(directory.content))
    url = directory.origin.serve("/stable.json", *replies, Reply(text(told)))
    source = {"stream": "stable", "url": url, "architectures": ["x86_64"]}
    directory.monkeypatch.delenv("OS_IMAGES")
    directory.monkeypatch.setenv("COREOS_STREAMS", json.dumps([source]))
    return "rhcos-full-iso-9.6.2-x86_64.iso"


def test_fetch_takes_the_release_of_a_stream(directory: Directory) -> None:
    name, digest = follow_stream(directory), hashlib.sha256(directory.content).hexdigest()
    fetched = directory.images("fetch")
    assert (fetched.status, fetched.output.decode()) == (0, f"{name}: SHA-256 {digest}\n")
    listed = directory.listed()
    assert (listed["version"], listed["openshift_version"], listed["state"]) == ("9.6.2", "stable", "ready")
    verified = directory.images("verify").output.decode()
    assert verified == f"{name}: SHA-256 {digest}, as in the metadata of the stream stable\n"
    change_one_byte(directory.path / name)
    assert directory.images("verify").status == 1


def test_fetch_of_a_stream_that_fails_is_told_and_stored_releases_are_fetched(directory: Directory) -> None:
    name = follow_stream(directory, Reply(status=503))
    failed = directory.images("fetch")
    assert failed.status == 1
    assert failed.errors == (
        f"stream stable: cannot fetch {directory.origin.url('/stable.json')}: answered with status 503\n"
    )
    assert directory.images("fetch").status == 0
    directory.images("remove", "9.6.2")
    directory.origin.replies["/stable.json"] = [Reply(status=503)]
    again = directory.images("fetch")
    assert (again.status, again.output.decode().split(":")[0]) == (1, name)


def test_fetch_without_configuration_fails_and_makes_nothing(directory: Directory) -> None:
    directory.monkeypatch.delenv("OS_IMAGES")
    fetched = directory.images("fetch")
    assert fetched.status == 1
    assert fetched.errors == "image-service: nothing to fetch: neither OS_IMAGES nor COREOS_STREAMS is set\n"
    assert not [*directory.path.iterdir()]
    listed = directory.images("list")
    assert listed.status == 0
    assert "there is no base image in " in listed.errors
    assert "; --admin http://127.0.0.1:8081 lists those of a running service" in listed.errors


def test_unknown_version_is_an_error(directory: Directory) -> None:
    for verb in ("verify", "fetch", "remove"):
        ran = directory.images(verb, "1\x1b[2J")
        assert ran.status == 1
        assert ran.errors == "1\\x1b[2J: there is no such image\n"


RETRY_AT = "2026-11-22T21:00:00Z"


def test_list_asks_a_running_service(run: Run, origin: Origin) -> None:
    image = {
        **dict.fromkeys(("bytes_total", "size", "sha256")),
        "retry_at": RETRY_AT,
        "version": "9",
        "openshift_version": "4",
        "cpu_architecture": "x86_64",
        "type": "full-iso",
        "state": "failed",
        "reason": "cable\x1bcut",
        "bytes_done": 2097152,
        "url": "http://h/",
    }
    kept = {
        "version": "8",
        "cpu_architecture": "x86_64",
        "type": "full-iso",
        "sha256": "ab" * 32,
        "size": 1048576,
        "mounts": 3,
        "is_kept_at_restart": True,
    }
    body = json.dumps({"images": [image], "superseded": [kept]}).encode()
    url = origin.serve("/base/images", Reply(body)).removesuffix("images")
    for option in ("--admin", "--url"):
        listed = run("images", "list", option, url)
        assert listed.status == 0
        assert listed.output.decode().splitlines()[2].split() == [
            *("8", "x86_64", "full-iso", "superseded", "100%", "of", "1.0", "MiB", "ab" * 6),
            *("kept", "for", "3", "mounts"),
        ]
        assert listed.output.decode().splitlines()[1].split() == [
            *("9", "x86_64", "full-iso", "failed", "2.0", "MiB", RETRY_AT, "cable\\x1bcut")
        ]
    assert run("images", "list", "--admin", url, "--json").output == body


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"images": 1}', b'{"images": [{}]}'])
def test_images_list_refuses_the_answer_of_another_server(run: Run, origin: Origin, body: bytes) -> None:
    url = origin.serve("/images", Reply(body)).removesuffix("/images")
    listed = run("images", "list", "--url", url)
    assert (listed.status, listed.output) == (1, b"")
    assert "is not that of an image service" in listed.errors


def test_list_without_a_service_is_an_error(run: Run) -> None:
    listed = run("images", "list", "--url", "http://127.0.0.1:1")
    assert listed.status == 1
    assert "cannot fetch http://127.0.0.1:1/images: " in listed.errors


def test_list_without_a_response_asks_for_the_scheme(run: Run) -> None:
    """The listener of a service that speaks HTTPS closes a connection on which plain HTTP arrives."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_after_the_request() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)

        with ThreadPoolExecutor() as threads:
            threads.submit(close_after_the_request)
            listed = run("images", "list", "--admin", f"http://127.0.0.1:{server.getsockname()[1]}")
    assert listed.status == 1
    assert "if the port speaks HTTPS, write https://" in listed.errors


@pytest.mark.parametrize("url", ["foo", "localhost:8080", "ftp://localhost", "http://", "http://[::1"])
def test_list_refuses_what_is_no_http_url(run: Run, url: str) -> None:
    refused = run("images", "list", "--url", url)
    assert (refused.status, refused.output) == (2, b"")
    assert refused.errors.startswith(
        "image-service images list: argument --admin/--url: must be an http or https URL, such as "
    )
