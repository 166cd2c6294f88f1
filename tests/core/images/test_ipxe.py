"""iPXE scripts."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import KernelArgumentInvalid, NotFound
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.images.ipxe import check_architecture, netboot_arguments, render_ipxe_script
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.core.images.building import base_image

ROOTFS = "http://images.test/boot-artifacts/4.20/x86_64/rootfs.img"


def append(value: str) -> KernelArgument:
    return KernelArgument(Operation.APPEND, value)


def test_arguments_are_those_of_the_base_with_another_root_file_system() -> None:
    with base_image(build_live_iso()) as base:
        kargs = base.coreos.kernel_arguments
        assert kargs is not None
        assert "coreos.liveiso=" in kargs.default
        words = netboot_arguments(base, ROOTFS, [append("a=1"), append('b="2 3"')]).split()
        kept = [word for word in kargs.default.split() if not word.startswith("coreos.liveiso=")]
    assert words == [*kept, f"coreos.live.rootfs_url={ROOTFS}", "a=1", 'b="2', '3"']


def test_arguments_of_the_base_can_be_deleted_and_replaced() -> None:
    with base_image(build_live_iso()) as base:
        edits = [
            KernelArgument(Operation.DELETE, "ignition.firstboot"),
            KernelArgument(Operation.REPLACE, "ignition.platform.id=metal=qemu"),
        ]
        words = netboot_arguments(base, ROOTFS, edits).split()
    assert "ignition.firstboot" not in words
    assert "ignition.platform.id=qemu" in words


def test_base_without_areas_has_the_arguments_that_ignition_needs() -> None:
    with base_image(build_live_iso()) as base:
        bare = attrs.evolve(base, iso=attrs.evolve(base.coreos, kernel_arguments=None))
        arguments = netboot_arguments(bare, ROOTFS, [])
    assert arguments == f"ignition.firstboot ignition.platform.id=metal coreos.live.rootfs_url={ROOTFS}"


@pytest.mark.parametrize("value", ['a="b && c"', 'a="b || c"', 'a="b ; c"', 'a="b #c"', "a=$b", "a b; c"])
def test_arguments_that_ipxe_would_interpret_are_refused(value: str) -> None:
    with base_image(build_live_iso()) as base, pytest.raises(KernelArgumentInvalid):
        netboot_arguments(base, ROOTFS, [append(value)])


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40))
def test_accepted_arguments_are_one_line_that_ipxe_only_splits(value: str) -> None:
    with base_image(build_live_iso()) as base:
        try:
            arguments = netboot_arguments(base, ROOTFS, [append(value)])
        except KernelArgumentInvalid:
            return
    *_, kernel, boot = render_ipxe_script("K", "I", arguments).decode().splitlines()
    words = kernel.split()
    assert boot == "boot"
    assert words[:3] == ["kernel", "K", "initrd=initrd"]
    assert not {"&&", "||", ";"} & set(words)
    assert "${" not in kernel
    assert not any(word.startswith("#") for word in words)
    assert set(value.split()) <= set(words)


def test_script_names_the_initrd_for_uefi() -> None:
    assert render_ipxe_script("http://k", "http://i", "a b") == (
        b"#!ipxe\ninitrd --name initrd http://i\nkernel http://k initrd=initrd a b\nboot\n"
    )


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_ipxe_boots(architecture: str) -> None:
    check_architecture(architecture)


@pytest.mark.parametrize("architecture", ["s390x", "ppc64le", "x" * 1000])
def test_ipxe_does_not_boot(architecture: str) -> None:
    with pytest.raises(NotFound) as error:
        check_architecture(architecture)
    assert len(error.value.detail) < 200
