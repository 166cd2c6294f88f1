"""The plans of imports and exports."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from image_service.jobs.catalog_image import DiskLayout
from image_service.jobs.model import ComposeBase, JobType
from image_service.jobs.plans.export_plan import make_export_plan
from image_service.jobs.plans.import_plan import ImportedDisk, make_import_plan
from tests.jobs.database.composing import make_image

if TYPE_CHECKING:
    from image_service.jobs.model import ComposePlan

STORES = {"https://b.example", "https://a.example"}
EXPIRES = datetime(2026, 12, 1, tzinfo=UTC)


def import_plan(number: int) -> ComposePlan:
    disks = [ImportedDisk("VMDK", 10 * each, 2**30, {"id": f"image-{each}"}) for each in range(1, number + 1)]
    return make_import_plan(disks, STORES, EXPIRES)


def test_import_waits_converts_registers_and_deletes() -> None:
    made = import_plan(1)
    wait, convert, register, delete = made.steps
    assert (wait.action, wait.after) == ("await-upload", ())
    assert wait.arguments == {
        "expires_at": EXPIRES.timestamp(),
        "disks": [{"format": "VMDK", "bytes": 10, "volume_bytes": 2**30}],
    }
    assert (convert.action, convert.after) == (JobType.IMPORT, ("await-upload",))
    assert convert.arguments == {
        "object_stores": ["https://a.example", "https://b.example"],
        "format": "qcow2",
        "output": "disk.qcow2",
        "fetched_bytes": 10,
        "volume_bytes": 2**30,
    }
    assert convert.inputs == {"manifest": "manifest:0", "manifest-url": "manifest-url:0"}
    images = [{"id": "image-1", "format": "qcow2", "artifact": "import/disk.qcow2"}]
    assert (register.arguments, register.after) == ({"images": images}, ("import",))
    assert (delete.action, delete.after) == ("delete-upload", ("register",))
    assert made.result == "import/disk.qcow2"


def test_disks_of_an_instance_are_imported_side_by_side() -> None:
    steps = import_plan(3).steps
    assert [step.name for step in steps] == [
        "await-upload",
        "import",
        "import-2",
        "import-3",
        "register",
        "delete-upload",
    ]
    assert steps[4].after == ("import", "import-2", "import-3")
    assert [step.inputs["manifest"] for step in steps[1:4]] == ["manifest:0", "manifest:1", "manifest:2"]


@pytest.mark.parametrize("layout", list(DiskLayout))
def test_stored_image_is_converted_and_uploaded(layout: DiskLayout) -> None:
    image = make_image(1, layout=layout)
    made = make_export_plan(image, file_format="ova", bucket="b", key="exports/export-i-1.ova")
    convert, upload = made.steps
    assert convert.inputs == {"image": f"image:{image.id}"}
    assert convert.after == ()
    assert convert.arguments.get("wrap_partition", False) is (layout is DiskLayout.PARTITION)
    assert (convert.arguments["input_format"], convert.arguments["output"]) == ("vmdk", "disk.ova")
    assert upload.inputs == {"image": "convert/disk.ova"}
    assert (upload.arguments["bucket"], upload.arguments["key"]) == ("b", "exports/export-i-1.ova")
    assert upload.after == ("convert",)
    assert made.result is None


def test_base_disk_is_fetched_before_its_export() -> None:
    base = ComposeBase("419.1", "x86_64", "metal", "raw")
    fetch, convert, _ = make_export_plan(base, file_format="vhd", bucket="b", key="k").steps
    assert ComposeBase.from_arguments(fetch.arguments) == base
    assert (convert.inputs, convert.after) == ({"image": "base"}, ("fetch",))
