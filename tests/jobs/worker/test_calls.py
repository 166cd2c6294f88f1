from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from image_service.jobs.worker.calls import KINDS, JobFiles, JobInput, error_id

GIB = 1 << 30
LEAST = 256 << 20
IMPORT: dict[str, Any] = {
    "object_stores": ["https://a.example", "https://b.example:9000"],
    "format": "qcow2",
    "output": "disk.qcow2",
    "fetched_bytes": 10 * GIB,
    "volume_bytes": 12 * GIB,
}


@pytest.mark.parametrize(
    ("status", "number"), [(1, 10), (2, 8), (3, 17), (4, 11), (5, 10), (6, 4), (7, 10), (8, 10)]
)
def test_exit_status_of_the_toolkit_has_an_id(status: int, number: int) -> None:
    assert error_id(status) == number


@pytest.mark.parametrize(
    ("kind", "arguments", "size", "needed"),
    [
        ("convert", {}, 10, 10 + LEAST),
        ("convert", {}, GIB, 5 * GIB),
        ("convert", {}, None, None),
        ("upload", {}, GIB, GIB),
        ("import", IMPORT, 1000, 1000 + 22 * GIB),
        ("import", {**IMPORT, "fetched_bytes": GIB}, 0, 5 * GIB),
    ],
)
def test_needed_bytes_are_those_of_files_that_are_read_and_written(
    kind: str, arguments: dict[str, Any], size: int | None, needed: int | None
) -> None:
    assert KINDS[kind].needed_bytes(arguments, (JobInput("input", size, None),)) == needed


@pytest.mark.parametrize("key", [None, Path("/keys/bundle.pem")])
def test_import_fetches_from_the_listed_stores_alone_and_names_no_url(key: Path | None) -> None:
    inputs = {"manifest": Path("/job/manifest"), "manifest-url": Path("/job/manifest-url")}
    call = KINDS["import"].call(IMPORT, JobFiles(inputs, Path("/job/output"), key))
    assert call.output == Path("/job/output/disk.qcow2")
    assert call.words == (
        *("run", "fetch/convert", "/job/manifest", "/job/output/disk.qcow2"),
        *("--allow-host=https://a.example", "--allow-host=https://b.example:9000", "--format=qcow2"),
        "--outage=120",
        "--bundle-url-file=/job/manifest-url",
        *([f"--key={key}"] if key else []),
    )
