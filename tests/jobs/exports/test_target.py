from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.jobs.ec2.errors import Ec2Error
from image_service.jobs.exports.target import ExportTarget, parse_export_target

TASK = "export-i-0123456789abcdef0"


def parse(environment: str = "vmware", **members: Any) -> ExportTarget:
    return parse_export_target(environment, {"S3Bucket": "images", **members})


@pytest.mark.parametrize(
    ("environment", "members", "key"),
    [
        ("vmware", {}, f"{TASK}.vmdk"),
        ("microsoft", {}, f"{TASK}.vhd"),
        ("citrix", {}, f"{TASK}.vhd"),
        ("vmware", {"ContainerFormat": "ova"}, f"{TASK}.ova"),
        ("vmware", {"DiskImageFormat": "RAW", "S3Prefix": "exports/"}, f"exports/{TASK}.raw"),
        ("Microsoft", {"DiskImageFormat": "vhd", "S3Prefix": "a/b-"}, f"a/b-{TASK}.vhd"),
        ("citrix", {"DiskImageFormat": "VMDK", "ContainerFormat": "OVA"}, f"{TASK}.ova"),
    ],
)
def test_key_is_prefix_task_and_format(environment: str, members: dict[str, str], key: str) -> None:
    assert parse(environment, **members).key(TASK) == key


@pytest.mark.parametrize(
    ("environment", "members", "named"),
    [
        ("xen", {}, "TargetEnvironment must be one of vmware, microsoft, citrix"),
        ("vmware", {"DiskImageFormat": "VHDX"}, "DiskImageFormat must be one of VMDK, VHD, RAW"),
        ("vmware", {"ContainerFormat": "zip"}, "ContainerFormat must be one of ova"),
        ("vmware", {"ContainerFormat": "ova", "DiskImageFormat": "RAW"}, "needs DiskImageFormat VMDK"),
        ("microsoft", {"ContainerFormat": "ova"}, "needs DiskImageFormat VMDK"),
        ("vmware", {"S3Bucket": "No_Bucket"}, "S3Bucket must be the name of a bucket"),
        ("vmware", {"S3Bucket": "a/../b"}, "S3Bucket must be"),
        ("vmware", {"S3Prefix": "../"}, "S3Prefix must have"),
        ("vmware", {"S3Prefix": "/a"}, "S3Prefix must have"),
        ("vmware", {"S3Prefix": "a\n"}, "S3Prefix must have"),
        ("vmware", {"S3Prefix": "a" * 901}, "S3Prefix must have"),
    ],
)
def test_invalid_parameter_is_named(environment: str, members: dict[str, str], named: str) -> None:
    with pytest.raises(Ec2Error) as caught:
        parse(environment, **members)
    assert caught.value.error_code == "InvalidParameterValue"
    assert named in caught.value.detail


def test_bucket_is_required() -> None:
    with pytest.raises(Ec2Error) as caught:
        parse(S3Bucket="")
    assert caught.value.error_code == "MissingParameter"


@given(st.text(max_size=40))
def test_key_has_no_part_that_names_another_place(prefix: str) -> None:
    try:
        key = parse(S3Prefix=prefix).key(TASK)
    except Ec2Error:
        return
    assert key == f"{prefix}{TASK}.vmdk"
    assert not {"", ".", ".."} & set(key.split("/"))
    assert key.isprintable()
