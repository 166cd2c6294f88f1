"""A composer API on a Unix socket, which answers as a test says, and records requests."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingUnixStreamServer
from typing import TYPE_CHECKING, Any

import attrs

from tests.server.catalog.origin import ReceivedRequest, Reply, Resource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BASE = "/api/image-builder-composer/v2"
ID = "11111111-2222-3333-4444-555555555555"


def status_of(state: str, **members: Any) -> dict[str, Any]:
    """Return a ``ComposeStatus``."""
    overall = state if state in {"success", "failure"} else "pending"
    upload = {"status": "pending", "type": "local", "options": {"artifact_path": "/download"}}
    image = {"status": state, "upload_status": upload, "upload_statuses": [upload], **members}
    return {
        "id": ID,
        "kind": "ComposeStatus",
        "href": f"{BASE}/composes/{ID}",
        "status": overall,
        "image_status": image,
        "image_statuses": [image],
        "distribution": "sample",
        "architecture": "x86_64",
        "image_type": "vsphere-ova",
        "created_at": "2026-01-01T12:00:00+00:00",
    }


@attrs.define
class Composer:
    """The server.

    Args:
        statuses: of the compose, one after the other; the last one repeatedly.
        image: content of the download; its digest is sent.
        digest: ``Repr-Digest`` of the image.
        refusals: replies to the next requests.
    """

    socket_path: Path
    statuses: list[dict[str, Any]] = attrs.field(factory=lambda: [status_of("success")])
    image: Resource = attrs.field(factory=lambda: Resource(b"image"))
    digest: str = ""
    refusals: list[Reply] = attrs.field(factory=list)
    requests: list[tuple[str, str, Any]] = attrs.field(factory=list)

    @property
    def server(self) -> str:
        """The value of ``--server``."""
        return f"unix:{self.socket_path}"

    def reply(self, method: str, target: str, body: bytes, received: ReceivedRequest) -> Reply:
        """Return the reply to a request."""
        self.requests.append((method, target.removeprefix(BASE), json.loads(body or b"null")))
        if self.refusals:
            return self.refusals.pop(0)
        if target.endswith("/download"):
            reply = self.image(received)
            return attrs.evolve(reply, headers={**reply.headers, "Repr-Digest": self.digest})
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if method == "POST":
            return _json({"id": ID, "kind": "ComposeId"}, 201)
        return _json({"items": [status]} if "?" in target else status)


def refusal(status: int, reason: str, details: str = "", **headers: str) -> Reply:
    """Return an error."""
    document = {"code": "IMAGE-BUILDER-COMPOSER-15", "reason": reason, "details": details}
    return attrs.evolve(_json(document, status), headers=headers)


def _json(document: object, status: int = 200) -> Reply:
    return Reply(json.dumps(document).encode(), status)


@contextmanager
def running(socket_path: Path) -> Iterator[Composer]:
    """Run a server within the block."""
    composer = Composer(socket_path)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            received = ReceivedRequest(self.path, self.headers)
            reply = composer.reply(self.command, self.path, body, received)
            self.send_response_only(reply.status)
            promised = len(reply.body) if reply.promised is None else reply.promised
            for name, value in {**reply.headers, "Content-Length": str(promised)}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingUnixStreamServer(str(socket_path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield composer
        finally:
            server.shutdown()
            thread.join()
