from __future__ import annotations

import hashlib

import pytest

from image_service.core.errors import FormatError
from image_service.core.formats.disk.ova import read_ova
from image_service.core.formats.disk.ova_manifest import check_ova_manifest, parse_ova_manifest
from tests.core.formats.disk.test_ova import make_tar
from tests.core.formats.reading import reader

DISK = b"KDMV" * 3_000_000
OVF = b"<Envelope/>"


def check(manifest: str, *, disk: str = "vm-disk1.vmdk", content: bytes = DISK, name: str = "vm.mf") -> None:
    tar = make_tar([("vm.ovf", OVF), (name, manifest.encode()), (disk, content)])
    check_ova_manifest(reader(tar), read_ova(reader(tar), len(tar)))


def line(algorithm: str, name: str = "vm-disk1.vmdk", content: bytes = DISK, form: str = "{}({})= {}") -> str:
    digest = hashlib.new(algorithm.lower().replace("-", ""), content).hexdigest()
    return form.format(algorithm, name, digest) + "\n"


@pytest.mark.parametrize("algorithm", ["SHA1", "SHA256", "SHA512", "SHA-256", "sha384"])
@pytest.mark.parametrize("form", ["{}({})= {}", "{} ({}) = {}", " {}( {} )={} \r", "\n{}({})= {}\n"])
def test_manifest_with_the_right_digests_is_accepted(algorithm: str, form: str) -> None:
    check(line(algorithm, form=form) + line(algorithm, "vm.ovf", OVF, form))


@pytest.mark.parametrize("algorithm", ["SHA1", "SHA256", "SHA512"])
@pytest.mark.parametrize(
    ("disk", "content"),
    [
        ("vm-disk1.vmdk", DISK[:-1] + b"W"),
        ("my disk (1).vmdk", DISK[:-4]),
        ("./vm-disk1.vmdk", b"\0" + DISK),
    ],
)
def test_other_digest_is_refused_with_the_name(algorithm: str, disk: str, content: bytes) -> None:
    manifest = line(algorithm, "vm.ovf", OVF) + line(algorithm, disk)
    check(manifest, disk=disk)
    with pytest.raises(FormatError, match=r"has the SHA.*vm\.mf has .*: the file is damaged or") as refused:
        check(manifest, disk=disk, content=content)
    assert refused.value.detail.startswith(disk.removeprefix("./"))


def test_changed_descriptor_is_refused() -> None:
    with pytest.raises(FormatError, match=r"^vm\.ovf in the OVA has the SHA1"):
        check(line("SHA1") + line("SHA1", "vm.ovf", OVF + b" "))


def test_digest_may_be_in_capitals_and_the_manifest_of_any_case() -> None:
    digest = hashlib.sha256(DISK).hexdigest().upper()
    check(f"SHA256(vm-disk1.vmdk)= {digest}", name="VM.MF")


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ("SHA256(gone.vmdk)= 00", "lists 'gone.vmdk', which is not in it"),
        ("MD5(vm.ovf)= 00", "line 1 of vm.mf in the OVA is not a digest by SHA1, SHA224"),
        ("\nno digest", "line 2 of vm.mf"),
        ("x" * (1 << 20) + "x", "more than 1048576"),
    ],
)
def test_manifest_that_cannot_be_followed_is_refused(manifest: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        check(manifest)


def test_file_is_read_once_for_each_algorithm() -> None:
    manifest = (line("SHA256") + line("SHA-256") + line("SHA1")) * 50
    tar = make_tar([("vm.ovf", OVF), ("vm.mf", manifest.encode()), ("vm-disk1.vmdk", DISK)])
    layout, read = read_ova(reader(tar), len(tar)), []

    def read_at(offset: int, length: int) -> bytes:
        read.append(length)
        return tar[offset : offset + length]

    check_ova_manifest(read_at, layout)
    assert sum(read) == len(manifest) + 2 * len(DISK)


def test_ova_without_a_manifest_is_accepted() -> None:
    check("no manifest", name="readme.txt")
    assert list(parse_ova_manifest("x", b"\xef\xbb\xbf\r\n")) == []
