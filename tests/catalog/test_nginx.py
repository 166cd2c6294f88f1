"""Downloads from nginx, an origin that we did not write."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.catalog.download.downloader import download_file
from image_service.catalog.download.origin_client import OriginClient
from image_service.concurrency.interruption import Interruption
from image_service.errors import Unavailable
from image_service.settings.base_images import DownloadSettings
from tests.acceptance.clients import needs_client
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTENT = bytes(range(256)) * 8192
LOG = "$status $http_range|$http_if_match|$http_if_unmodified_since|$sent_http_content_range"
CONFIG = """
daemon off;
master_process off;
pid {directory}/pid;
error_log stderr;
events {{ }}
http {{
    log_format asked '{log}';
    access_log {directory}/asked asked;
    client_body_temp_path {directory}/temp;
    proxy_temp_path {directory}/temp;
    fastcgi_temp_path {directory}/temp;
    uwsgi_temp_path {directory}/temp;
    scgi_temp_path {directory}/temp;
    server {{
        listen 127.0.0.1:{port};
        root {directory}/files;
        location /untagged/ {{ etag off; alias {directory}/files/; }}
        location /whole/ {{ max_ranges 0; alias {directory}/files/; }}
        location /elsewhere/ {{ return 302 /a.iso; }}
        location /busy/ {{ add_header Retry-After 7 always; return 503; }}
    }}
}}
"""


@attrs.frozen
class Nginx:
    """The server.

    Args:
        port: on loopback.
        directory: where its files are, and its log.
    """

    port: int
    directory: Path

    @property
    def file(self) -> Path:
        """The file that it serves."""
        return self.directory / "files" / "a.iso"

    def url(self, path: str) -> str:
        """The URL of a path."""
        return f"http://127.0.0.1:{self.port}{path}"

    def asked(self) -> list[str]:
        """The log lines of the requests."""
        return (self.directory / "asked").read_text().splitlines()


@pytest.fixture
def nginx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nginx]:
    """An nginx with one file."""
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    program = needs_client("nginx")
    port = free_port()
    server = Nginx(port, tmp_path)
    server.file.parent.mkdir()
    server.file.write_bytes(CONTENT)
    os.utime(server.file, (1_700_000_000, 1_700_000_000))
    (tmp_path / "nginx.conf").write_text(CONFIG.format(directory=tmp_path, port=port, log=LOG))
    with _running([program, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]):
        _wait_for(port)
        yield server


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def _wait_for(port: int) -> None:
    """Wait until the port accepts connections."""
    while True:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        select.select([], [], [], 0.01)


def fetch(url: str, partial: Path, progress: Callable[[int, int | None], None] = lambda *_: None) -> bytes:
    client = OriginClient.from_settings(DownloadSettings())
    download_file(client, url, partial, Interruption(), progress)
    return partial.read_bytes()


def interrupt_download(url: str, partial: Path) -> int:
    """Fetch a part; return its length."""
    parts = []

    def progress(done: int, total: int | None) -> None:
        assert total == len(CONTENT)
        if done:
            parts.append(done)
            raise Unavailable("enough")

    with pytest.raises(Unavailable, match="enough"):
        fetch(url, partial, progress)
    return parts[0]


@pytest.mark.parametrize("path", ["/a.iso", "/untagged/a.iso", "/elsewhere/a.iso"])
def test_interrupted_download_from_nginx_is_resumed(nginx: Nginx, tmp_path: Path, path: str) -> None:
    part = interrupt_download(nginx.url(path), tmp_path / "part")
    assert 0 < part < len(CONTENT)
    assert fetch(nginx.url(path), tmp_path / "part") == CONTENT
    assert fetch(nginx.url(path), tmp_path / "part") == CONTENT
    status, *_ = nginx.asked()[-1].split()
    assert status == "206"
    assert f"bytes={part}-|" in nginx.asked()[-1]
    assert nginx.asked()[-1].endswith(f"bytes {part}-{len(CONTENT) - 1}/{len(CONTENT)}")


@pytest.mark.parametrize("path", ["/a.iso", "/untagged/a.iso"])
def test_changed_file_on_nginx_restarts(nginx: Nginx, tmp_path: Path, path: str) -> None:
    interrupt_download(nginx.url(path), tmp_path / "part")
    nginx.file.write_bytes(CONTENT[::-1])
    assert fetch(nginx.url(path), tmp_path / "part") == CONTENT[::-1]
    assert [line.split()[0] for line in nginx.asked()[1:]] == ["412", "200"]


def test_nginx_without_ranges_sends_the_whole_file(nginx: Nginx, tmp_path: Path) -> None:
    interrupt_download(nginx.url("/whole/a.iso"), tmp_path / "part")
    assert fetch(nginx.url("/whole/a.iso"), tmp_path / "part") == CONTENT
    assert [line.split()[0] for line in nginx.asked()[1:]] == ["200"]


def test_retry_after_of_nginx_is_kept(nginx: Nginx, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="answered with status 503") as refusal:
        fetch(nginx.url("/busy/"), tmp_path / "part")
    assert refusal.value.retry_after_seconds == 7
