"""The profile ``composer`` against a server that answers as the composer API, well or badly."""

from __future__ import annotations

import json
import re
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tests import forks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLIENTS = 3
MOST_SECONDS = 30
BASE = "/api/image-builder-composer/v2"


@contextmanager
def running(final: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Run an API whose composes end as `final` at the second question; yield its URL and the requests."""
    requests: list[tuple[str, str]] = []
    asked: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            path = self.path.removeprefix(BASE)
            requests.append((self.command, re.sub("/[0-9]+", "/ID", path)))
            status, document = self.result(path, body)
            content = json.dumps(document).encode()
            self.send_response_only(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def result(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
            if self.command == "POST":
                return (201, {"id": len(requests)}) if json.loads(body)["distribution"] else (400, {})
            state = final if path in asked else "pending"
            asked.add(path)
            error = {"error": {"reason": "no room"}} if state == "failure" else {}
            return 200, {"status": state, "image_status": error}

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{BASE}", requests
        finally:
            server.shutdown()
            thread.join()


def load(url: str, directory: Path, *arguments: str, seconds: int = 3) -> tuple[int, dict[str, Any]]:
    """Run a load test of some seconds, of more on a busy machine; return its status and report."""
    command = [sys.executable, "-m", "image_service.cli", "loadtest", url, "--profile", "composer"]
    options = [f"--clients={CLIENTS}", f"--duration={seconds}s", f"--report={directory}", *arguments]
    ran = forks.run([*command, *options])
    assert ran.returncode in {0, 1}, ran.stderr
    report = json.loads((directory / "report.json").read_text())
    ended = report["timings"]["compose"]["count"] + sum(report["counts"]["errors"].values())
    if ended < CLIENTS and seconds < MOST_SECONDS:
        return load(url, directory, *arguments, seconds=4 * seconds)
    return ran.returncode, report


@pytest.mark.acceptance
def test_composes_are_followed_to_their_end(tmp_path: Path) -> None:
    with running("success") as (url, requests):
        status, report = load(url, tmp_path, "--slo=errors<=0", "--slo=compose.max<1m")
    assert status == 0
    assert report["timings"]["compose"]["count"] >= CLIENTS
    assert set(requests) == {
        ("POST", "/compose"),
        ("GET", "/composes/ID"),
        ("GET", "/composes/ID/download"),
        ("GET", "/composes/ID/metadata"),
        ("GET", "/composes/?size=20"),
        ("DELETE", "/composes/ID"),
    }


@pytest.mark.acceptance
def test_failed_composes_are_errors(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text('{"distribution": "other"}')
    with running("failure") as (url, requests):
        status, report = load(url, tmp_path, "--slo=errors<5%", f"--compose={request}")
    assert status == 1
    assert report["counts"]["errors"]["compose-failed"] >= CLIENTS
    assert report["counts"]["details"] == {"compose-failed": "no room"}
    assert ("GET", "/composes/ID/download") not in requests
