"""``image-service images``: on a directory, and against a server that responds as the service does."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.catalog.storage.data_dir import DataDir
from image_service.concurrency.interruption import Interruption
from tests.catalog.origin import Origin, Reply, Resource, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.catalog.origin import Responder
    from tests.cli.conftest import CommandResult, Run

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


def test_list_prints_a_table(directory: Directory) -> None:
    directory.images("fetch")
    head, line = directory.images("list").output.decode().splitlines()
    assert head.split() == ["VERSION", "CPU", "ARCHITECTURE", "TYPE", "STATE", "PROGRESS", "SHA256", "REASON"]
    assert line.split()[:4] == ["9.6.1", "x86_64", "full-iso", "ready"]
    assert "100% of" in line


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


def test_remove_keeps_images_that_were_put_there_by_hand(directory: Directory) -> None:
    directory.images("fetch")
    by_hand = directory.path / "rhcos-full-iso-1-x86_64.iso"
    by_hand.write_bytes(directory.content)
    kept = directory.images("remove", "1")
    assert kept.status == 1
    assert "not managed here" in kept.errors
    assert by_hand.exists()
    assert directory.images("remove", "9.6.1").status == 0
    assert [path.name for path in directory.path.glob("*rhcos*")] == [by_hand.name]


def test_remove_keeps_an_image_in_use(directory: Directory) -> None:
    directory.images("fetch")
    with DataDir(directory.path).lock(NAME, Interruption()):
        assert directory.images("remove", "9.6.1").status == 1
    assert (directory.path / NAME).exists()


def test_unknown_version_is_an_error(directory: Directory) -> None:
    for verb in ("verify", "fetch", "remove"):
        ran = directory.images(verb, "1\x1b[2J")
        assert ran.status == 1
        assert ran.errors == "1\\x1b[2J: there is no such image\n"


def test_list_asks_a_running_service(run: Run, origin: Origin) -> None:
    image = {
        **dict.fromkeys(("bytes_total", "size", "sha256", "retry_at")),
        "version": "9",
        "openshift_version": "4",
        "cpu_architecture": "x86_64",
        "type": "full-iso",
        "state": "failed",
        "reason": "cable\x1bcut",
        "bytes_done": 2097152,
        "url": "http://h/",
    }
    body = json.dumps({"images": [image]}).encode()
    url = origin.serve("/base/images", Reply(body)).removesuffix("images")
    listed = run("images", "list", "--url", url)
    assert listed.status == 0
    assert listed.output.decode().splitlines()[1].split() == [
        *("9", "x86_64", "full-iso", "failed", "2.0", "MiB", "cable\\x1bcut")
    ]
    assert run("images", "list", "--url", url, "--json").output == body


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


@pytest.mark.parametrize("url", ["foo", "localhost:8080", "ftp://localhost", "http://", "http://[::1"])
def test_list_refuses_what_is_no_http_url(run: Run, url: str) -> None:
    refused = run("images", "list", "--url", url)
    assert (refused.status, refused.output) == (2, b"")
    assert refused.errors.startswith(
        "image-service images list: argument --url: must be an http or https URL, such as "
    )
