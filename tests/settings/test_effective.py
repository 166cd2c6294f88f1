from __future__ import annotations

import json
from typing import TYPE_CHECKING

from image_service.settings.effective import render_settings
from image_service.settings.settings import Settings, variables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SECRET = "top-secret"
IMAGE = {
    "openshift_version": "4.19",
    "cpu_architecture": "x86_64",
    "version": "9.6.1-0",
    "url": f"https://mirror.example/rhcos.iso?token={SECRET}",
}
STREAM = {
    "stream": "stable",
    "url": f"https://builds.example/stable.json?token={SECRET}",
    "architectures": ["x86_64", "aarch64"],
}


def lines(environ: Mapping[str, str], *, standalone: bool = True) -> list[str]:
    settings = Settings.from_environment(environ, standalone=standalone)
    return list(render_settings(settings, environ))


def test_every_setting_is_shown_once(tmp_path: Path) -> None:
    shown = [line.split(maxsplit=1) for line in lines({"DATA_DIR": str(tmp_path)})]
    assert {origin for origin, _ in shown} == {"environment", "default", "unset"}
    names = [text.partition("=")[0] for _, text in shown]
    assert names == [variable.names[0] for variable in variables()]


def test_origin_and_value_of_settings(tmp_path: Path) -> None:
    (tmp_path / "level").write_text("warning\n")
    shown = lines(
        {
            "DATA_DIR": str(tmp_path),
            "LISTEN_PORT": "8443",
            "LOG_LEVEL": f"@{tmp_path / 'level'}",
            "MAX_CONNECTIONS": "",
        }
    )
    assert "environment  LISTEN_PORT=8443" in shown
    assert "default      LISTEN_ADDRESS=127.0.0.1" in shown  # of standalone mode
    assert "unset        HTTP_LISTEN_PORT=" in shown
    assert "unset        TRUSTED_PROXIES=" in shown
    assert "default      READY_WHEN=all" in shown
    level = shown.index(f"file         LOG_LEVEL=@{tmp_path / 'level'}")
    assert shown[level + 1] == "             warn"
    (connections,) = (line for line in shown if " MAX_CONNECTIONS=" in line)
    assert connections.startswith("default      MAX_CONNECTIONS=")
    assert int(connections.partition("=")[2]) > 0


def test_images_and_streams_are_listed_without_queries(tmp_path: Path) -> None:
    (tmp_path / "streams").write_text(json.dumps([STREAM]))
    second = {**IMAGE, "openshift_version": "4.20", "url": "file:///images/rhcos.iso", "version": "9.8"}
    shown = lines(
        {
            "DATA_DIR": str(tmp_path),
            "OS_IMAGES": json.dumps([IMAGE, {**IMAGE, "openshift_version": "4.18"}, second]),
            "COREOS_STREAMS": f"@{tmp_path / 'streams'}",
        }
    )
    images = shown.index("environment  OS_IMAGES=***")
    assert shown[images + 1 : images + 3] == [
        "             4.19, 4.18 (9.6.1-0 x86_64 full-iso): https://mirror.example/rhcos.iso?***",
        "             4.20 (9.8 x86_64 full-iso): file:///images/rhcos.iso",
    ]
    streams = shown.index(f"file         COREOS_STREAMS=@{tmp_path / 'streams'}")
    assert shown[streams + 1] == (
        "             stable (x86_64, aarch64; 2 releases): https://builds.example/stable.json?***"
    )


def test_secrets_are_masked(tmp_path: Path) -> None:
    shown = lines(
        {
            "DATA_DIR": str(tmp_path),
            "OS_IMAGES": json.dumps([IMAGE]),
            "COREOS_STREAMS": json.dumps([STREAM]),
            "OS_IMAGES_REQUEST_HEADERS": json.dumps({"Authorization": SECRET, "X-Key": SECRET}),
            "OS_IMAGES_REQUEST_QUERY_PARAMS": json.dumps({"key": SECRET}),
            "STANDALONE_TOKEN": SECRET,
            "HTTPS_PROXY": f"http://user:{SECRET}@proxy.example:3128/",
            "http_proxy": "proxy.example:3129",
            "NO_PROXY": "localhost,.example.com",
        }
    )
    assert SECRET not in "\n".join(shown)
    for expected in (
        "environment  OS_IMAGES_REQUEST_HEADERS=Authorization=***, X-Key=***",
        "environment  OS_IMAGES_REQUEST_QUERY_PARAMS=key=***",
        "environment  STANDALONE_TOKEN=***",
        "environment  HTTPS_PROXY=http://***@proxy.example:3128",
        "environment  http_proxy=http://proxy.example:3129",
        "environment  NO_PROXY=localhost,.example.com",
    ):
        assert expected in shown
