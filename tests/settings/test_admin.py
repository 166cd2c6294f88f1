"""Settings of the administrative listener."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import ConfigurationError
from image_service.settings.admin import read_token
from image_service.settings.parsers import ListenAddress
from image_service.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "Az09.-_~+/123456=="


def read(tmp_path: Path, **environ: str) -> Settings:
    return Settings.from_environment({"DATA_DIR": str(tmp_path), **environ}, standalone=True)


def faults(tmp_path: Path, **environ: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, **environ)
    return refused.value.detail


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"\n{TOKEN}\n")
    return file


def test_without_variables_there_is_no_listener(tmp_path: Path) -> None:
    assert not read(tmp_path).admin.is_enabled


@pytest.mark.parametrize("address", ["127.0.0.1:8081", "localhost:8081", "[::1]:8081", "127.1.2.3:0"])
def test_loopback_needs_no_token(tmp_path: Path, address: str) -> None:
    admin = read(tmp_path, ADMIN_LISTEN=address).admin
    assert admin.is_enabled
    assert admin.token_file is None


@pytest.mark.parametrize("address", ["0.0.0.0:8081", "[::]:8081", "192.0.2.1:8081"])
def test_other_addresses_need_a_token(tmp_path: Path, token_file: Path, address: str) -> None:
    fault = "ADMIN_LISTEN is not on loopback; ADMIN_TOKEN_FILE must be set then"
    assert faults(tmp_path, ADMIN_LISTEN=address) == fault
    admin = read(tmp_path, ADMIN_LISTEN=address, ADMIN_TOKEN_FILE=str(token_file)).admin
    assert [each.port for each in admin.listen] == [8081]


def test_address_needs_a_port(tmp_path: Path) -> None:
    fault = "ADMIN_LISTEN='127.0.0.1': '127.0.0.1' must be an IP"
    assert faults(tmp_path, ADMIN_LISTEN="127.0.0.1").startswith(fault)
    assert read(tmp_path, ADMIN_LISTEN="[::1]:1").admin.listen == (ListenAddress("::1", 1),)


@pytest.mark.parametrize("pod", ["192.0.2.1:8081", "2001:db8::1:8081", "[2001:db8::1]:8081"])
def test_addresses_are_separated_by_commas(tmp_path: Path, token_file: Path, pod: str) -> None:
    """Kubernetes gives a pod's IPv6 address without brackets."""
    listen = f"127.0.0.1:8081, {pod}"
    fault = "ADMIN_LISTEN is not on loopback; ADMIN_TOKEN_FILE must be set then"
    assert faults(tmp_path, ADMIN_LISTEN=listen) == fault
    admin = read(tmp_path, ADMIN_LISTEN=listen, ADMIN_TOKEN_FILE=str(token_file)).admin
    host = pod.removesuffix(":8081").strip("[]")
    assert admin.listen == (ListenAddress("127.0.0.1", 8081), ListenAddress(host, 8081))


def test_loopback_addresses_need_no_token(tmp_path: Path) -> None:
    assert not read(tmp_path, ADMIN_LISTEN="127.0.0.1:8081,[::1]:8081").admin.is_public


@pytest.mark.parametrize("listen", ["127.0.0.1:8081,nowhere", "127.0.0.1:8081,", "host:1,127.0.0.1:8081"])
def test_fault_names_its_address(tmp_path: Path, listen: str) -> None:
    (wrong,) = (each for each in listen.split(",") if each != "127.0.0.1:8081")
    assert faults(tmp_path, ADMIN_LISTEN=listen).startswith(
        f"ADMIN_LISTEN={listen!r}: {wrong!r} must be an IP"
    )


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:8081", "http://127.0.0.1:8081/"),
        ("127.0.0.1:0", None),
        ("192.0.2.1:1,[::1]:2", "http://[::1]:2/"),
        ("0.0.0.0:8081", "https://127.0.0.1:8081/"),
        ("[::]:8081", "https://[::1]:8081/"),
    ],
)
def test_page_is_reached_from_this_machine(
    tmp_path: Path, token_file: Path, listen: str, url: str | None
) -> None:
    admin = read(tmp_path, ADMIN_LISTEN=listen, ADMIN_TOKEN_FILE=str(token_file)).admin
    assert admin.local_url(has_certificate=True) == url
    assert not read(tmp_path).admin.local_url(has_certificate=True)


def test_token_without_listener_is_refused(tmp_path: Path, token_file: Path) -> None:
    expected = "ADMIN_TOKEN_FILE is set without ADMIN_LISTEN; the token would protect nothing"
    assert faults(tmp_path, ADMIN_TOKEN_FILE=str(token_file)) == expected


def test_token_is_read_without_white_space_around_it(token_file: Path) -> None:
    assert read_token(token_file) == TOKEN


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"fifteen-letters",
        b"two tokens of sixteen",
        b"first-line-of-token\nsecond",
        b"s\xc3\xa4chsisches-gehe\xc3\xafmnis",
        b"=padding-first-is-wrong",
        b"x" * 4097,
        b"null\0null\0null\0null",
    ],
)
def test_other_content_is_refused_and_not_repeated(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    detail = faults(tmp_path, ADMIN_LISTEN="127.0.0.1:0", ADMIN_TOKEN_FILE=str(file))
    assert detail.startswith(f"ADMIN_TOKEN_FILE={str(file)!r}: must be a file of one token, of at least 16")
    for word in content.split():
        assert len(word) < 7 or word.decode(errors="replace") not in detail


def test_absent_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "absent"
    detail = faults(tmp_path, ADMIN_LISTEN="0.0.0.0:0", ADMIN_TOKEN_FILE=str(file))
    assert detail == f"ADMIN_TOKEN_FILE={str(file)!r}: must be a readable file: No such file or directory"


def test_webhook_is_a_url_and_the_origins_that_may_be_inner(tmp_path: Path) -> None:
    url, origin = "https://chat.lab:8443/hooks/a?b=c", "https://chat.lab:8443"
    webhook = read(tmp_path, WEBHOOK_URL=url, WEBHOOK_ALLOW_HOST=f"{origin}, http://10.0.0.1").webhook
    assert (webhook.url, [str(each) for each in webhook.allowed_origins]) == (
        url,
        [origin, "http://10.0.0.1"],
    )
    assert read(tmp_path).webhook.url is None
    file = tmp_path / "url"
    file.write_text(url)
    assert read(tmp_path, WEBHOOK_URL=f"@{file}").webhook.url == url


@pytest.mark.parametrize("url", ["ftp://chat.lab/s3cret", "chat.lab/s3cret", "https://u:s3cret@chat.lab/"])
def test_webhook_that_is_no_url_is_refused_without_its_text(tmp_path: Path, url: str) -> None:
    fault = faults(tmp_path, WEBHOOK_URL=url)
    assert fault.startswith("WEBHOOK_URL: must be an http or https URL")
    assert "s3cret" not in fault


def test_allowed_origin_has_no_path(tmp_path: Path) -> None:
    assert "must be SCHEME://HOST[:PORT]" in faults(tmp_path, WEBHOOK_ALLOW_HOST="https://chat.lab/hooks")
