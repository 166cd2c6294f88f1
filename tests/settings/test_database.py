from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import ConfigurationError
from image_service.settings.database import DatabaseSettings, read_secrets
from image_service.settings.variables import read_group

if TYPE_CHECKING:
    from pathlib import Path

URL = "postgresql+psycopg://images:top-secret@db.example.com:5432/images?sslmode=verify-full"
DIGITS, OTHER_DIGITS = "5" * 64, "AB" * 32


def read(environ: dict[str, str]) -> DatabaseSettings:
    """Return the group; raises ConfigurationError with all faults."""
    faults: list[str] = []
    settings = read_group(DatabaseSettings, environ, faults)
    faults += settings.contradictions(environ)
    if faults:
        raise ConfigurationError("\n".join(faults))
    return settings


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(f"{DIGITS}\n{OTHER_DIGITS}\n")
    return str(path)


def test_nothing_is_shared_by_default() -> None:
    settings = read({})
    assert (settings.url, settings.listen_url, settings.secrets) == (None, None, ())


def test_secrets_are_read_in_order(secret_file: str) -> None:
    assert read({"INSTANCE_SECRET_FILE": secret_file}).secrets == (b"\x55" * 32, b"\xab" * 32)


@pytest.mark.parametrize(
    "url",
    [
        URL,
        URL.replace("+psycopg", ""),
        "postgresql+psycopg:///images?host=/run/pg",
        "postgresql+psycopg://images:top-secret@a.example.com,b.example.com/images",
    ],
)
def test_url_names_the_driver(url: str, secret_file: str) -> None:
    settings = read({"DATABASE_URL": url, "INSTANCE_SECRET_FILE": secret_file})
    assert settings.url == url.replace("postgresql:", "postgresql+psycopg:")
    assert "top-secret" not in repr(settings)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///top-secret",
        "top-secret",
        "postgresql+psycopg://images:top-secret@db.example.com",
        "postgresql+psycopg://images:top-secret@db.example.com:0/images",
        "postgresql+psycopg://images:top-secret@db.example.com:port/images",
        "postgresql+asyncpg://images:top-secret@db.example.com/images",
        "postgresql+psycopg://images:p@top-secret@db.example.com/images",
        "postgresql+psycopg://images:1/2@top-secret@db.example.com/images",
    ],
)
@pytest.mark.parametrize("name", ["DATABASE_URL", "DATABASE_LISTEN_URL"])
def test_other_urls_are_refused_without_their_text(name: str, url: str, secret_file: str) -> None:
    environ = {"DATABASE_URL": URL, "INSTANCE_SECRET_FILE": secret_file, name: url}
    with pytest.raises(ConfigurationError, match=rf"{name}: must be postgresql\+psycopg://") as raised:
        read(environ)
    assert "top-secret" not in raised.value.detail


@pytest.mark.parametrize(
    "content", ["", "\n", "5" * 63, "5" * 65, "g" * 64, f"{DIGITS}\nshort", DIGITS * 100]
)
def test_other_secrets_are_refused_without_their_text(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secret"
    path.write_text(content)
    with pytest.raises(ValueError, match="64 hexadecimal digits") as raised:
        read_secrets(path)
    assert "5555" not in str(raised.value)


def test_missing_secret_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="INSTANCE_SECRET_FILE must be set"):
        read({"DATABASE_URL": URL})
    with pytest.raises(ConfigurationError, match="readable file"):
        read({"DATABASE_URL": URL, "INSTANCE_SECRET_FILE": "/nowhere"})


def test_address_to_listen_at_needs_a_database() -> None:
    with pytest.raises(ConfigurationError, match="without DATABASE_URL"):
        read({"DATABASE_LISTEN_URL": URL})
