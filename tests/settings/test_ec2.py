from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate_ec_key
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from image_service.core.errors import ConfigurationError
from image_service.settings.jobs.ec2 import Ec2Credential, Ec2Settings, read_ec2_credentials
from image_service.settings.variables import read_group

if TYPE_CHECKING:
    from pathlib import Path

ENTRY: dict[str, Any] = {
    "access_key": "AKIDEXAMPLE",
    "secret_key": "a-secret-of-16-characters",
    "tenant": "42",
    "operations": ["Describe*", "ImportVolume"],
    "buckets": ["exports-*"],
}


def read(**environ: str) -> Ec2Settings:
    faults: list[str] = []
    settings = read_group(Ec2Settings, environ, faults)
    faults += settings.contradictions(environ)
    if faults:
        raise ConfigurationError("\n".join(faults))
    return settings


def write(directory: Path, *entries: object, mode: int = 0o600) -> Path:
    path = directory / "credentials.json"
    path.write_text(json.dumps(entries))
    path.chmod(mode)
    return path


def test_defaults() -> None:
    settings = read()
    assert (settings.credentials_file, settings.bundle_key_file) == (None, None)
    assert settings.object_stores == frozenset()
    assert (settings.poll_seconds, settings.max_tasks, settings.max_bytes) == (30, 100, 2**40)
    assert settings.image_retention_seconds == 0


def test_origins_of_object_stores_are_normal() -> None:
    settings = read(EC2_OBJECT_STORES="https://s3.example.com/, http://[::1]:7070")
    assert settings.object_stores == {"https://s3.example.com", "http://[::1]:7070"}


@pytest.mark.parametrize(
    "text", ["s3.example.com", "ftp://a", "https://a/bucket", "https://u@a", "http://a,,"]
)
def test_other_text_is_no_origin(text: str) -> None:
    with pytest.raises(ConfigurationError, match="must be SCHEME://HOST"):
        read(EC2_OBJECT_STORES=text)


def test_credentials(tmp_path: Path) -> None:
    path = write(tmp_path, ENTRY, {**ENTRY, "access_key": "other", "tenant": "", "buckets": []}, mode=0o640)
    assert read(EC2_CREDENTIALS_FILE=str(path)).credentials_file == path
    first, second = read_ec2_credentials(path)
    assert first == Ec2Credential(
        "AKIDEXAMPLE", ENTRY["secret_key"], "42", ("Describe*", "ImportVolume"), ("exports-*",)
    )
    assert (second.access_key, second.tenant, second.buckets) == ("other", "", ())
    assert ENTRY["secret_key"] not in repr(first)


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("key", "entry 1: must be an object"),
        ({**ENTRY, "acces_key": "A"}, "entry 1: has the unknown member 'acces_key'"),
        ({**ENTRY, "access_key": "with space"}, "entry 1: access_key must be"),
        ({**ENTRY, "access_key": 5}, "entry 1: access_key must be"),
        ({**ENTRY, "secret_key": "short-secret"}, "entry 1: secret_key must be"),
        ({**ENTRY, "tenant": None}, "entry 1: tenant must be a string"),
        ({**ENTRY, "operations": "*"}, "entry 1: operations must list"),
        ({**ENTRY, "operations": ["RunInstances"]}, "entry 1: operations must list"),
        ({**ENTRY, "operations": [["*"]]}, "entry 1: operations must list"),
        ({**ENTRY, "buckets": ["A bucket"]}, "entry 1: buckets must list"),
        (ENTRY, "entry 1: access_key 'AKIDEXAMPLE' is that of an earlier entry"),
    ],
    ids=[
        "text",
        "unknown",
        "key",
        "number",
        "secret",
        "tenant",
        "text-list",
        "operation",
        "list",
        "bucket",
        "twice",
    ],
)
def test_faults_of_credentials_name_entry_and_member(entry: object, fault: str, tmp_path: Path) -> None:
    path = write(tmp_path, ENTRY, entry)
    with pytest.raises(ConfigurationError, match=fault) as caught:
        read(EC2_CREDENTIALS_FILE=str(path))
    assert "secret-" not in caught.value.detail
    assert "EC2_CREDENTIALS_FILE" in caught.value.detail


def test_a_file_of_secrets_is_refused_if_others_can_read_it(tmp_path: Path) -> None:
    path = str(write(tmp_path, ENTRY, mode=0o604))
    with pytest.raises(ConfigurationError) as caught:
        read(EC2_CREDENTIALS_FILE=path, BUNDLE_KEY_FILE=path)
    assert caught.value.detail.count("has mode 0604: every user has access to it") == 2


def test_the_api_needs_credentials_only_if_it_is_named() -> None:
    read(JOBS_APIS="composer,worker")
    with pytest.raises(ConfigurationError, match="EC2_CREDENTIALS_FILE must be set then"):
        read(JOBS_APIS="composer, ec2")


def test_the_key_of_bundles_is_an_rsa_key(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for text, fits in (
        (generate_rsa_key(65537, 2048).private_bytes(*form), True),
        (generate_ec_key(SECP256R1()).private_bytes(*form), False),
        (b"no key", False),
    ):
        path.write_bytes(text)
        path.chmod(0o600)
        if fits:
            assert read(BUNDLE_KEY_FILE=str(path)).bundle_key_file == path
        else:
            with pytest.raises(ConfigurationError, match="RSA private key in PEM form"):
                read(BUNDLE_KEY_FILE=str(path))
