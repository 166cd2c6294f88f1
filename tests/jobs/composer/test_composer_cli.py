"""The calls of composer-cli (weldr-client of 2026-01), as a recording server saw them, over a Unix socket.

`tests/jobs/test_composer_cli.py` drives the program itself, where it is installed.
"""

from __future__ import annotations

import json
import re
import socket
from contextlib import asynccontextmanager, closing
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import maybeDeferred
from twisted.internet.threads import deferToThread

from image_service.jobs.api.front import ApiFront
from image_service.jobs.model import Artifact, ComposeState, ImageType
from image_service.jobs.principal import Principal
from image_service.jobs.tenants.authenticator import OpenAuthenticator
from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.resource import ApiSite
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from tests.jobs.composer.composing import Composer

MAX_BODY_BYTES = 1024 * 1024
IMAGE = Artifact("disk.qcow2", 7, "ab" * 32, "jobs/a/1/disk.qcow2")
IGNITION = {"embedded": {"config": "eyJpZ25pdGlvbiI6IHsidmVyc2lvbiI6ICIzLjQuMCJ9fQ=="}}
BLUEPRINT = {
    "name": "template",
    "description": "",
    "version": "0.0.1",
    "packages": [],
    "modules": [],
    "groups": [],
    "customizations": {"ignition": IGNITION, "kernel": {"append": "console=ttyS0"}},
}


class UnixConnection(HTTPConnection):
    """Connects to a socket; the Host is ``localhost``."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._socket_path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._socket_path)


@attrs.frozen
class ComposerCli:
    """The behaviour of composer-cli, which stops at the same errors."""

    path: Path

    def call(
        self, method: str, path: str, document: object = None, media_type: str = "application/json"
    ) -> tuple[int, Any, bytes]:
        body = None if document is None else json.dumps(document)
        fields = {"Content-Type": media_type}  # on GET, too
        with closing(UnixConnection(self.path)) as connection:
            connection.request(method, f"/api/image-builder-composer/v2{path}", body, fields)
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def get(self, path: str) -> Any:
        status, _, body = self.call("GET", path)
        assert status == 200, body
        return json.loads(body)

    def start(self, image_type: str, size_mib: int, distribution: str) -> str:
        image = {
            "architecture": "x86_64",
            "image_type": image_type,
            "repositories": [],
            "size": size_mib * 1024 * 1024,
            "upload_targets": [{"type": "local", "upload_options": {}}],
        }
        request = {"distribution": distribution, "blueprint": BLUEPRINT, "image_requests": [image]}
        status, _, body = self.call("POST", "/compose", request)
        document = json.loads(body)
        assert (status in {200, 201}, document["kind"]) == (True, "ComposeId"), document
        return str(document["id"])

    def list_types(self, distribution: str) -> list[str]:
        return sorted(self.get("/distributions")[distribution]["x86_64"])

    def is_pending(self, compose_id: str) -> bool:
        return bool(self.get(f"/composes/{compose_id}")["status"] == "pending")

    def list_composes(self) -> list[tuple[str, str, str, str, int]]:
        rows = []
        for compose in self.get("/composes/"):
            request = self.get(f"/composes/{compose['id']}/metadata")["request"]
            blueprint, image = request["blueprint"], request["image_requests"][0]
            rows.append(
                (
                    compose["status"],
                    blueprint["name"],
                    blueprint["version"],
                    image["image_type"],
                    image["size"],
                )
            )
        return rows

    def delete(self, compose_id: str) -> tuple[int, Any]:
        status, _, body = self.call("DELETE", f"/composes/{compose_id}")
        return status, json.loads(body)


@asynccontextmanager
async def serving(reactor: EPollReactor, composer: Composer, directory: Path) -> AsyncIterator[ComposerCli]:
    front = ApiFront(OpenAuthenticator("worker"), [composer.api])
    site = ApiSite(front.resource(RequestGuard()), reactor, MAX_BODY_BYTES)
    port = reactor.listenUNIX(str(directory / "api.socket"), site)
    yield ComposerCli(directory / "api.socket")
    await maybeDeferred(port.stopListening)


@ensure_deferred
async def test_image_is_started_listed_downloaded_and_deleted(
    reactor: EPollReactor, composer: Composer, tmp_path: Path
) -> None:
    async with serving(reactor, composer, tmp_path) as cli:
        assert "guest-image" in await deferToThread(cli.list_types, "debian-12")
        compose_id = await deferToThread(cli.start, "guest-image", 20480, "debian-12")
        assert await deferToThread(cli.is_pending, compose_id)
        composer.rows.composes.finish(compose_id, ComposeState.SUCCESS, image=IMAGE)
        assert not await deferToThread(cli.is_pending, compose_id)
        rows = await deferToThread(cli.list_composes)
        assert rows == [("success", "template", "0.0.1", "guest-image", 20480 * 1024 * 1024)]
        status, _, body = await deferToThread(cli.call, "GET", f"/composes/{compose_id}/download")
        assert (status, body) == (200, compose_id.encode())
        assert (await deferToThread(cli.delete, compose_id))[0] == 200
        status, error = await deferToThread(cli.delete, compose_id)
        assert (status, error["kind"]) == (404, "Error")
        assert "job does not exist" in error["reason"] + error["details"]


@ensure_deferred
async def test_socket_is_of_the_default_tenant(
    reactor: EPollReactor, composer: Composer, tmp_path: Path
) -> None:
    composer.compose(ImageType.VSPHERE)
    async with serving(reactor, composer, tmp_path) as cli:
        assert await deferToThread(cli.get, "/composes/") == []
        compose_id = await deferToThread(cli.start, "live-installer", 0, "rhcos-4.19")
    assert composer("GET", f"/composes/{compose_id}", principal=Principal("")).status == 200


@ensure_deferred
async def test_status_shows_name_and_version(
    reactor: EPollReactor, composer: Composer, tmp_path: Path
) -> None:
    async with serving(reactor, composer, tmp_path) as cli:
        info = (await deferToThread(cli.get, "/openapi"))["info"]
    assert re.fullmatch("[0-9]+", info["version"])
    assert info["title"]


@ensure_deferred
async def test_content_that_http_refuses_is_an_error_object(
    reactor: EPollReactor, composer: Composer, tmp_path: Path
) -> None:
    large = {"blueprint_id": "a" * MAX_BODY_BYTES}
    async with serving(reactor, composer, tmp_path) as cli:
        for document, media_type, expected in (
            ({}, "application/json; charset=utf-8", (400, "25")),
            ({}, "text/plain", (415, "3")),
            (large, "application/json", (413, "413")),
        ):
            status, _, body = await deferToThread(cli.call, "POST", "/compose", document, media_type)
            assert (status, json.loads(body)["id"]) == expected


@ensure_deferred
async def test_answer_to_head_has_no_content(
    reactor: EPollReactor, composer: Composer, tmp_path: Path
) -> None:
    async with serving(reactor, composer, tmp_path) as cli:
        status, fields, body = await deferToThread(cli.call, "HEAD", "/errors/9999")
    assert (status, body) == (404, b"")
    assert int(fields["Content-Length"]) > 0
