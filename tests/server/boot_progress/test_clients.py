from __future__ import annotations

import pytest

from image_service.server.boot_progress.clients import recognize_client

KIB = 1024


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("curl/7.88.1", "curl"),
        ("iPXE/1.21.1+git-20220113", "iPXE"),
        ("UefiHttpBoot/1.0", "UEFI HTTP Boot (OVMF, EDK2)"),
        ("httpfs2.c 0.1.4", "httpfs2"),
        ("Wget/1.21.3", "Wget"),
        ("aria2/1.36.0", "aria2"),
        ("python-requests/2.28.1", "Python requests"),
        ("Dell iDRAC9", "iDRAC"),
        ("HPE-iLO-Client/2.0", "iLO"),
        ("Lenovo XCC", "XCC"),
        ("Supermicro BMC", "Supermicro"),
        ("AMI MegaRAC", "AMI"),
        ("Mozilla/5.0 (X11; Linux x86_64)", "browser"),
        ("image-service-doctor", "image-service doctor"),
        ("image-service-loadtest", "image-service"),
        ("something else", None),
        ("a\nb", None),
    ],
)
def test_user_agent_names_the_client(user_agent: str, name: str | None) -> None:
    assert recognize_client(user_agent, "*/*", 0) == name


@pytest.mark.parametrize(
    ("accept", "range_bytes", "name"),
    [
        ("*/*", 256 * KIB + 2048, "qemu"),
        ("*/*", 256 * KIB + 32 * KIB, "qemu"),
        ("*/*", 64 * KIB, None),
        ("*/*", 0, None),
        ("*/*", 256 * KIB + 1, None),
        ("", 256 * KIB + 2048, None),
    ],
)
def test_qemu_is_known_by_its_read_ahead(accept: str, range_bytes: int, name: str | None) -> None:
    assert recognize_client("", accept, range_bytes) == name
