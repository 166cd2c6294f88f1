from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from image_service.catalog.download.configured_http import ConfiguredHttp
from image_service.concurrency.interruption import Interruption
from image_service.settings.settings import Settings
from tests.catalog.origin import Answer, Origin, running

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

IMAGE = {"openshift_version": "4.20", "cpu_architecture": "x86_64", "version": "1"}


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def http(directory: Path, environ: Mapping[str, str]) -> ConfiguredHttp:
    credentials = {
        "OS_IMAGES_REQUEST_HEADERS": '{"Authorization": "Basic top-secret"}',
        "OS_IMAGES_REQUEST_QUERY_PARAMS": '{"token": "top-secret"}',
    }
    environ = {"DATA_DIR": str(directory), **credentials, **environ}
    settings = Settings.from_environment(environ, standalone=True)
    return ConfiguredHttp.configured(settings.download, settings.source_urls)


def asked(asker: ConfiguredHttp, origin: Origin) -> tuple[str, str | None]:
    """Target and credentials of a request as they arrive."""
    with asker.ask(origin.serve("/a", Answer(b"")), {}, Interruption()) as answer:
        assert answer.status == 200
    last = origin.asked[-1]
    return last.target, last.headers["Authorization"]


@pytest.mark.parametrize("by", ["OS_IMAGES", "COREOS_STREAMS"])
def test_credentials_are_for_origins_of_the_configuration(by: str, origin: Origin, tmp_path: Path) -> None:
    configured = {
        "OS_IMAGES": {**IMAGE, "url": origin.url("/x.iso")},
        "COREOS_STREAMS": {"stream": "a", "url": origin.url("/x.json"), "architectures": ["x86_64"]},
    }
    asker = http(tmp_path, {by: json.dumps([configured[by]])})
    with running() as other:
        assert asked(asker, origin) == ("/a?token=top-secret", "Basic top-secret")
        assert asked(asker, other) == ("/a", None)


def test_another_port_or_scheme_is_another_origin(origin: Origin, tmp_path: Path) -> None:
    for url in (f"https://127.0.0.1:{origin.port}/x.iso", "http://127.0.0.1/x.iso", "file:///x.iso"):
        asker = http(tmp_path, {"OS_IMAGES": json.dumps([{**IMAGE, "url": url}])})
        assert asked(asker, origin) == ("/a", None)


def test_the_rest_is_as_it_is_configured(origin: Origin, tmp_path: Path) -> None:
    asker = http(tmp_path, {"DOWNLOAD_STALL_TIMEOUT": "7"})
    assert asker.stall_seconds == 7
    assert asked(asker, origin) == ("/a", None)
