"""The record of the base images that were served, in ``DATA_DIR``, with what opens each of them again.

A stored mount names its base image by digest. When the configuration has another image of that name, the
record says what the digest stands for: the file, or the version at its origin.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from image_service.common.concurrency.interruption import Interruption
from image_service.common.files.atomic import atomic_write
from image_service.common.http.origins import public_url
from image_service.core.images.reference import Kind
from image_service.server.catalog.storage.data_dir import SUPERSEDED_SUFFIX
from image_service.settings.os_images import OsImage

if TYPE_CHECKING:
    from collections.abc import Collection

    from image_service.server.catalog.storage.data_dir import DataDir

RECORDS = "image-service-bases.json"
VERSION = 1

RecordKey: TypeAlias = tuple[str, str]
"""The name of an image in ``DATA_DIR``, and the digest of the base image in entity tags."""


def superseded_name(key: RecordKey) -> str:
    """Return the name in ``DATA_DIR`` of a downloaded image in whose place there is another one."""
    image, sha256 = key
    return f"{image}.{sha256[:16]}{SUPERSEDED_SUFFIX}"


@attrs.frozen
class Pin:
    """The version of a file that an origin has.

    Args:
        etag: with its quotes, or the digest of a layer; None: the origin gives no strong one.
        size: bytes.
        version: of the object, in a bucket that keeps versions, or the digest of a layer; such a version
            stays when it is replaced.
    """

    etag: str | None
    size: int
    version: str | None = None


@attrs.frozen
class BaseRecord:
    """What opens a base image again.

    Args:
        entry: its configuration, without credentials.
        sha256: its digest in entity tags.
        pin: the version at its origin; None: it is a file.
    """

    entry: OsImage
    sha256: str
    pin: Pin | None = None

    @classmethod
    def of(cls, entry: OsImage, sha256: str, pin: Pin | None = None) -> BaseRecord:
        """Return the record of an image that was opened."""
        without = attrs.evolve(
            entry,
            url=public_url(entry.url),
            signature_url=entry.signature_url and public_url(entry.signature_url),
            digests_url=entry.digests_url and public_url(entry.digests_url),
        )
        return cls(without, sha256, pin)

    @property
    def key(self) -> RecordKey:
        """What distinguishes it."""
        return self.entry.file_name, self.sha256


class BaseRecords:
    """The records of one directory, shared by threads and processes. The latest is the last."""

    def __init__(self, data_dir: DataDir) -> None:
        self._data_dir = data_dir
        self._path = data_dir.path / RECORDS

    def read(self) -> tuple[BaseRecord, ...]:
        """Return all records; none if there is no file of this version."""
        try:
            document = json.loads(self._path.read_bytes())
            if document["version"] != VERSION:
                return ()
            bases: list[dict[str, Any]] = list(document["bases"])
        except (OSError, ValueError, TypeError, KeyError):
            return ()
        records = []
        for members in bases:
            with suppress(ValueError, TypeError, KeyError):  # a record of another release
                records.append(_parse(members))
        return tuple(records)

    def add(self, record: BaseRecord) -> None:
        """Add a record, in the place of the one with its key."""
        self._replace({record.key}, record)

    def remove(self, keys: Collection[RecordKey]) -> None:
        """Remove the records with these keys."""
        self._replace(keys)

    def _replace(self, keys: Collection[RecordKey], *added: BaseRecord) -> None:
        with self._data_dir.lock(RECORDS, Interruption()):
            before = self.read()
            records = (*(record for record in before if record.key not in keys), *added)
            if records != before:
                with atomic_write(self._path) as file:
                    bases = [attrs.asdict(record) for record in records]
                    file.write(json.dumps({"version": VERSION, "bases": bases}, indent=1).encode())


def _parse(members: dict[str, Any]) -> BaseRecord:
    entry, pin = members["entry"], members["pin"]
    Kind(entry["image_type"])  # else a ValueError: it is of a later release
    entry["openshift_versions"] = tuple(entry["openshift_versions"])
    entry["unknown_members"] = tuple(entry["unknown_members"])
    return BaseRecord(OsImage(**entry), str(members["sha256"]), None if pin is None else Pin(**pin))
