"""Settings of EC2's API: access keys, imports, exports, and limits of a tenant."""

from __future__ import annotations

import re
from contextlib import suppress
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from image_service.common.files.exposure import describe_exposure
from image_service.core.formats.hosts import host_fault
from image_service.settings import parsers
from image_service.settings.variables import setting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

OPERATIONS = (
    "ImportVolume",
    "ImportInstance",
    "DescribeConversionTasks",
    "CancelConversionTask",
    "CreateInstanceExportTask",
    "DescribeExportTasks",
    "CancelExportTask",
    "ImportImage",
    "DescribeImportImageTasks",
    "ImportSnapshot",
    "DescribeImportSnapshotTasks",
    "CancelImportTask",
    "ExportImage",
    "DescribeExportImageTasks",
)

_MEMBERS = ("access_key", "secret_key", "tenant", "operations", "buckets")
_ACCESS_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SECRET_KEY = re.compile(r"[!-~]{16,256}")
_BUCKET_PATTERN = re.compile(r"[a-z0-9.*-]{1,63}")


@attrs.frozen
class Ec2Credential:
    """An entry of the credentials file.

    Args:
        access_key: the name of the key, by which requests refer to it.
        secret_key: signs requests.
        tenant: as tokens name it; "": the default tenant.
        operations: that the key may call; ``*`` stands for any characters.
        buckets: from which it may import objects, and to which it may export; ``*`` likewise.
    """

    access_key: str
    secret_key: str = attrs.field(repr=False)
    tenant: str
    operations: tuple[str, ...]
    buckets: tuple[str, ...]


def read_ec2_credentials(path: Path) -> tuple[Ec2Credential, ...]:
    """Return the entries of a credentials file.

    Raises:
        ValueError: the file cannot be read, or others can read it too; or one argument per fault, each naming
            entry and member. No fault repeats a secret key.
    """
    entries = parsers.json_entries(_read_private(path), _faults_of_credential)
    access_keys = [entry["access_key"] for entry in entries]
    parsers.raise_faults(
        f"entry {index}: access_key {key!r} is that of an earlier entry"
        for index, key in enumerate(access_keys)
        if key in access_keys[:index]
    )
    return tuple(
        Ec2Credential(
            entry["access_key"],
            entry["secret_key"],
            entry["tenant"],
            tuple(entry["operations"]),
            tuple(entry["buckets"]),
        )
        for entry in entries
    )


def _read_private(path: Path) -> str:
    """Return the content of a file of secrets."""
    text = parsers.file_content(str(path.absolute()))
    parsers.raise_faults(describe_exposure(path))
    return text


def _faults_of_credential(entry: object) -> Iterable[str]:
    if not isinstance(entry, dict):
        yield f"must be an object with the members {', '.join(_MEMBERS)}"
        return
    if unknown := sorted(set(entry).difference(_MEMBERS)):
        yield f"has the unknown member {unknown[0]!r}; the members are {', '.join(_MEMBERS)}"
    if not _fits(_ACCESS_KEY, entry.get("access_key")):
        yield "access_key must be a string of 1 to 128 letters, digits, _ and -"
    if not _fits(_SECRET_KEY, entry.get("secret_key")):
        yield "secret_key must be a string of 16 to 256 visible ASCII characters"
    if not isinstance(entry.get("tenant"), str):
        yield 'tenant must be a string; "" is the default tenant'
    operations = entry.get("operations")
    if not isinstance(operations, list) or not all(map(_matches_an_operation, operations)):
        yield f'operations must list names, or patterns such as "Describe*", of {", ".join(OPERATIONS)}'
    buckets = entry.get("buckets")
    if not isinstance(buckets, list) or not all(_fits(_BUCKET_PATTERN, each) for each in buckets):
        yield 'buckets must list names of buckets, or patterns such as "exports-*"'


def _fits(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _matches_an_operation(pattern: object) -> bool:
    if not isinstance(pattern, str) or not re.fullmatch(r"[A-Za-z0-9*]+", pattern):
        return False
    return any(fnmatchcase(operation, pattern) for operation in OPERATIONS)


def _parse_credentials_file(value: str) -> Path:
    read_ec2_credentials(Path(value))
    return Path(value)


def _parse_object_stores(value: str) -> frozenset[str]:
    found, faults = set(), []
    for entry in map(str.strip, value.split(",")):
        try:
            origin = parsers.base_url(entry)
        except ValueError:
            origin = ""
        if not origin or urlsplit(origin).path:
            form = "must be SCHEME://HOST or SCHEME://HOST:PORT, by http or https"
            faults.append(f"{entry!r} {host_fault(entry) or form}")
        found.add(origin)
    parsers.raise_faults(faults)
    return frozenset(found)


def _parse_bundle_key(value: str) -> Path:
    text = _read_private(Path(value))
    with suppress(ValueError, TypeError, UnsupportedAlgorithm):
        if isinstance(load_pem_private_key(text.encode(), None), RSAPrivateKey):
            return Path(value)
    raise ValueError("must be a file of an RSA private key in PEM form, without a passphrase")


@attrs.frozen(kw_only=True)
class Ec2Settings:
    """Jobs: EC2's API."""

    credentials_file: Path | None = setting("EC2_CREDENTIALS_FILE", parse=_parse_credentials_file)
    """File of the access keys of EC2's API, re-read when it has changed: a JSON list of objects with
    `access_key`; `secret_key`, of at least 16 characters; `tenant`, as tokens name it, `""` for the default
    tenant; `operations`, a list of names that may have `*`, such as `["Describe*"]`; and `buckets`, a list of
    those from which the key may import objects and to which it may export, with `*` likewise. No other user
    may have access to the file. When not set: the API is not served."""
    object_stores: frozenset[str] = setting(
        "EC2_OBJECT_STORES", parse=_parse_object_stores, absent=frozenset()
    )
    """The origins from which images are imported, separated by commas: `SCHEME://HOST[:PORT]`, such as
    `https://s3.example.com`. Every URL of a manifest must be at one of them. When not set: imports are
    refused."""
    poll_seconds: int = setting("IMPORT_POLL_INTERVAL", parse=parsers.whole_number(1), default="30")
    """Seconds between two looks for the manifest and the parts of an import that are not uploaded yet."""
    max_tasks: int = setting("EC2_MAX_TASKS", parse=parsers.whole_number(1), default="100")
    """Imports and exports of one tenant that have not ended; more are refused."""
    max_bytes: int = setting("EC2_MAX_BYTES", parse=parsers.whole_number(1), default="1099511627776")
    """Bytes of one tenant's imported images, and of the volumes that it is importing; more are refused. The
    default is 1 TiB."""
    bundle_key_file: Path | None = setting("BUNDLE_KEY_FILE", parse=_parse_bundle_key)
    """PEM file of the RSA private key, without passphrase, that decrypts image bundles, and behind it the
    certificates of the users who may sign them; without any, the key itself must have signed. Workers need
    the file too. No other user may have access to it. When not set: bundles are refused."""
    image_retention_seconds: int = setting("IMAGE_RETENTION", parse=parsers.whole_number(0), default="0")
    """Seconds after which an imported image is deleted; `0`: it is kept until a client deletes it."""

    def contradictions(self, environ: Mapping[str, str]) -> Iterator[str]:
        """The variables that are missing, and those that are valid but not together."""
        names = map(str.strip, environ.get("JOBS_APIS", "").split(","))
        if "ec2" in names and not environ.get("EC2_CREDENTIALS_FILE"):
            yield "JOBS_APIS names ec2; EC2_CREDENTIALS_FILE must be set then"
        if environ.get("EC2_CREDENTIALS_FILE") and find_spec("botocore") is None:
            yield "EC2_CREDENTIALS_FILE needs botocore; install the wheel with its extra jobs"
