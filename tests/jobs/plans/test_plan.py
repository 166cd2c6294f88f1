from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.jobs.model import (
    ComposeBase,
    ComposeRequest,
    ImageCustomization,
    ImageType,
    UploadTarget,
)
from image_service.jobs.plans.plan import (
    CHECK_IMAGE,
    FETCH_BASE,
    FILE_NAMES,
    REGISTER_IMAGE,
    UploadPlace,
    make_plan,
)

if TYPE_CHECKING:
    from image_service.jobs.model import ComposePlan, Step

DISKS = [each for each in ImageType if each.is_disk]
PLACE = UploadPlace.parse("s3://images/made/here/")
S3 = UploadTarget("aws.s3", region="eu-west-1")
LOCAL = UploadTarget("local")
SECRET = ImageCustomization(b'{"secret": "s3cr3t"}', "https://s3cr3t/", ("s3cr3t",))


def request(
    image_type: ImageType = ImageType.VSPHERE,
    customization: ImageCustomization = SECRET,
    size: int | None = None,
    uploads: tuple[UploadTarget, ...] = (LOCAL,),
) -> ComposeRequest:
    return ComposeRequest("rhcos-4.19", "x86_64", image_type, customization, size, uploads, {})


def disk_base(platform: str = "metal", format_: str = "raw") -> ComposeBase:
    return ComposeBase("419.1", "x86_64", platform, format_)


def plan(wanted: ComposeRequest, base: ComposeBase | None = None) -> ComposePlan:
    return make_plan("c0ffee", wanted, base or disk_base(), PLACE)


def named(made: ComposePlan, name: str) -> Step:
    return next(step for step in made.steps if step.name == name)


def test_disk_is_fetched_customized_converted_and_registered() -> None:
    made = plan(request())
    assert [step.name for step in made.steps] == ["fetch", "customize", "convert", "register"]
    assert named(made, "fetch").arguments == {
        "version": "419.1",
        "architecture": "x86_64",
        "platform": "metal",
        "format": "raw",
    }
    customize = named(made, "customize")
    assert customize.arguments == {
        "input": "base",
        "input_format": "raw",
        "output": "customized.raw",
        "platform": "vmware",
    }
    assert customize.inputs == {
        "base": "base",
        "ignition": "ignition",
        "kernel-arguments": "kernel-arguments",
    }
    convert = named(made, "convert")
    assert convert.arguments == {
        "input": "image",
        "input_format": "raw",
        "format": "vmdk",
        "output": "disk.vmdk",
        "size": None,
    }
    assert convert.inputs == {"image": "customize/customized.raw"}
    image = {
        "id": "c0ffee",
        "name": "rhcos-4.19 vsphere",
        "architecture": "x86_64",
        "format": "vmdk",
        "artifact": "convert/disk.vmdk",
        "source": "compose:c0ffee",
    }
    assert named(made, "register").arguments == {"images": [image]}
    assert (made.result, made.file_name) == ("convert/disk.vmdk", "disk.vmdk")


@pytest.mark.parametrize(
    ("image_type", "base", "size", "steps"),
    [
        (ImageType.MINIMAL_RAW, disk_base(), None, ["customize"]),
        (ImageType.MINIMAL_RAW, disk_base(), 1 << 34, ["customize", "convert"]),
        (ImageType.GUEST_IMAGE, disk_base("qemu", "qcow2"), None, ["customize"]),
        (ImageType.GUEST_IMAGE, disk_base(), None, ["customize", "convert"]),
        (ImageType.VSPHERE_OVA, disk_base("vmware", "ova"), None, ["unpack", "customize", "convert"]),
        (ImageType.AWS, disk_base("aws", "vmdk"), None, ["unpack", "customize"]),
    ],
)
def test_no_step_is_superfluous(
    image_type: ImageType, base: ComposeBase, size: int | None, steps: list[str]
) -> None:
    made = plan(request(image_type, size=size), base)
    assert [step.name for step in made.steps if step.is_job] == steps


@pytest.mark.parametrize(
    ("platform", "expected"),
    [("qemu", None), ("metal", "qemu")],
)
def test_platform_is_set_where_the_base_has_another(platform: str, expected: str | None) -> None:
    made = plan(request(ImageType.GUEST_IMAGE), disk_base(platform))
    assert named(made, "customize").arguments["platform"] == expected


def test_without_customization_only_the_base_is_read() -> None:
    assert named(plan(request(customization=ImageCustomization())), "customize").inputs == {"base": "base"}


def test_composed_image_is_checked_and_not_stored() -> None:
    made = plan(request(ImageType.LIVE_INSTALLER), ComposeBase("419.1", "x86_64"))
    assert [(step.name, step.action) for step in made.steps] == [("compose", "check-image")]
    assert (made.result, made.file_name) == (None, "live-installer.iso")


def test_each_s3_target_is_an_upload_of_its_own() -> None:
    public = UploadTarget("aws.s3", public=True)
    made = plan(request(ImageType.LIVE_INSTALLER, uploads=(LOCAL, S3, public)))
    first, second = made.steps[1:]
    assert (first.name, second.name) == ("upload", "upload-2")
    assert first.inputs == second.inputs == {"image": "image"}
    assert first.arguments == {
        "input": "image",
        "bucket": "images",
        "key": "made/here/c0ffee/live-installer.iso",
        "region": "eu-west-1",
        "public": False,
        "content_type": "application/octet-stream",
    }
    assert second.arguments["key"] == "made/here/c0ffee-2/live-installer.iso"
    assert second.arguments["public"] is True


@pytest.mark.parametrize("type_", ["oci", "container"])
def test_target_in_a_registry_has_the_compose_as_its_tag(type_: str) -> None:
    target = UploadTarget(type_, name="team/rhcos", form="container-disk")
    asked = request(ImageType.GUEST_IMAGE, uploads=(target,))
    made = make_plan("c0ffee", asked, disk_base("metal"), None, "oci://host/made")
    assert named(made, "upload").arguments == {
        "input": "image",
        "reference": "oci://host/made/team/rhcos:c0ffee",
        "name": "disk.qcow2",
        "format": "qcow2",
        "form": "container-disk",
        "architecture": "x86_64",
    }


def test_disk_is_registered_after_its_uploads() -> None:
    made = plan(request(uploads=(S3,)))
    assert [step.name for step in made.steps][-2:] == ["upload", "register"]
    assert named(made, "upload").inputs == {"image": made.result}


@pytest.mark.parametrize(
    ("url", "key"),
    [("s3://b", "c/f"), ("s3://b/", "c/f"), ("s3://b/p/q", "p/q/c/f"), ("s3://b/p/", "p/c/f")],
)
def test_key_is_below_the_prefix(url: str, key: str) -> None:
    assert UploadPlace.parse(url).key("c", "f") == key


@given(
    st.sampled_from(DISKS),
    st.sampled_from(["raw", "qcow2", "vmdk", "vhd", "ova"]),
    st.none() | st.integers(1, 1 << 40),
    st.lists(st.sampled_from([LOCAL, S3]), min_size=1, max_size=4),
)
def test_steps_follow_their_inputs_and_have_no_secret(
    image_type: ImageType, format_: str, size: int | None, uploads: list[UploadTarget]
) -> None:
    made = plan(request(image_type, size=size, uploads=tuple(uploads)), disk_base(format_=format_))
    outputs: set[object] = {"base", "ignition", "kernel-arguments"}
    done: set[str] = set()
    for step in made.steps:
        assert step.name not in done
        assert done >= set(step.after)
        assert outputs >= set(step.inputs.values())
        assert step.is_job or step.action in {FETCH_BASE, CHECK_IMAGE, REGISTER_IMAGE}
        done.add(step.name)
        outputs.add(f"{step.name}/{step.arguments.get('output')}")
    assert made.result in outputs
    assert str(made.result).endswith("/" + FILE_NAMES[image_type])
    assert "s3cr3t" not in str(made)
