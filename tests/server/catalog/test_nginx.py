"""Downloads from nginx, an origin that we did not write."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.core.errors import Unavailable
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.settings.base_images import DownloadSettings
from tests.nginx import Nginx, running_nginx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTENT = bytes(range(256)) * 8192
LOCATIONS = """
location /untagged/ { etag off; alias %(files)s/; }
location /whole/ { max_ranges 0; alias %(files)s/; }
location /elsewhere/ { return 302 /a.iso; }
location /busy/ { add_header Retry-After 7 always; return 503; }
"""


@pytest.fixture
def nginx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nginx]:
    """An nginx with one file."""
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with running_nginx(tmp_path, LOCATIONS % {"files": tmp_path / "files"}) as server:
        file_of(server).write_bytes(CONTENT)
        os.utime(file_of(server), (1_700_000_000, 1_700_000_000))
        yield server


def file_of(nginx: Nginx) -> Path:
    """Return the file that it serves."""
    return nginx.files / "a.iso"


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
    file_of(nginx).write_bytes(CONTENT[::-1])
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
