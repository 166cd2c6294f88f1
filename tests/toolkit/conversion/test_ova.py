"""OVA, by the rules of DSP0243 1.1: members of the archive, the manifest, and the OVF descriptor."""

from __future__ import annotations

import hashlib
import re
import tarfile
from typing import TYPE_CHECKING

import pytest
from defusedxml import ElementTree

from image_service.core.errors import Unprocessable
from image_service.toolkit.conversion import ova
from image_service.toolkit.conversion.ovf import FIRMWARES, GUESTS, Appliance, render_ovf
from tests.acceptance.clients import run_client
from tests.toolkit.conversion.converting import SIZE, Form, convert_file, write_disk

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from xml.etree.ElementTree import Element

MIB = 1 << 20
OVF = "{http://schemas.dmtf.org/ovf/envelope/1}"
RASD = "{http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData}"
VSSD = "{http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_VirtualSystemSettingData}"
VMW = "{http://www.vmware.com/schema/ovf}"
STREAM_OPTIMIZED = "http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"


@pytest.fixture(scope="module")
def appliance_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ova")
    raw = write_disk(directory / "disk.raw")
    convert_file(raw, directory / "vm.ova", Form("ova"), digests=False)
    return directory / "vm.ova"


@pytest.fixture(scope="module")
def unpacked(appliance_file: Path) -> Path:
    """The members, unpacked by GNU tar."""
    directory = appliance_file.with_suffix("")
    directory.mkdir()
    run_client("tar", "-C", directory, "-xf", appliance_file)
    return directory


@pytest.fixture
def envelope(unpacked: Path) -> Element:
    element: Element = ElementTree.fromstring((unpacked / "vm.ovf").read_bytes())
    return element


def names(parent: Element | None) -> Sequence[str]:
    assert parent is not None
    return [re.sub("{.*}", "", child.tag) for child in parent]


def find(parent: Element, *path: str) -> Element:
    for name in path:
        found = parent.find(f"{OVF}{name}")
        assert found is not None, name
        parent = found
    return parent


def attribute(element: Element, name: str, namespace: str = OVF) -> str:
    return element.attrib[f"{namespace}{name}"]


def items(envelope: Element) -> dict[str, dict[str, str]]:
    """Return the virtual hardware by resource type: texts by element."""
    found = {}
    for item in find(envelope, "VirtualSystem", "VirtualHardwareSection").iter(f"{OVF}Item"):
        texts = {child.tag.removeprefix(RASD): child.text or "" for child in item}
        assert texts["ResourceType"] not in found
        found[texts["ResourceType"]] = texts
    return found


def test_archive_is_ustar_with_the_descriptor_first(appliance_file: Path) -> None:
    # Section 5.3: the descriptor, then the manifest, then the files in the order of References; USTAR.
    listed = run_client("tar", "-tf", appliance_file).decode().split()
    assert listed == ["vm.ovf", "vm.mf", "vm-disk1.vmdk"]
    content = appliance_file.read_bytes()
    assert len(content) % 10240 == 0
    with tarfile.open(appliance_file) as archive:
        for member in archive:
            assert member.isreg()
            assert content[member.offset + 257 : member.offset + 265] == b"ustar\x0000"
            assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (0, 0, 0, "", "")
            assert member.offset_data == member.offset + 512  # one header: neither GNU's nor pax extensions


def test_manifest_has_the_digest_of_each_other_file(unpacked: Path) -> None:
    # Section 5.1: a line for the descriptor, and one for each file of References.
    lines = (unpacked / "vm.mf").read_text().splitlines()
    matches = [re.fullmatch(r"SHA256\((.+)\)= (\w+)", line) for line in lines]
    found = {match[1]: match[2] for match in matches if match}
    assert len(matches) == len(found)
    assert found == {
        name: hashlib.sha256((unpacked / name).read_bytes()).hexdigest()
        for name in ("vm.ovf", "vm-disk1.vmdk")
    }
    printed = run_client("sha256sum", unpacked / "vm-disk1.vmdk").decode()
    assert printed.startswith(found["vm-disk1.vmdk"] + " ")


def test_envelope_has_its_sections_in_order(envelope: Element) -> None:
    # Section 7 and DSP8023: References, the sections, and then the content.
    assert envelope.tag == f"{OVF}Envelope"
    assert names(envelope) == ["References", "DiskSection", "NetworkSection", "VirtualSystem"]
    system = find(envelope, "VirtualSystem")
    assert names(system) == [
        "Info",
        "Name",
        "ProductSection",
        "OperatingSystemSection",
        "VirtualHardwareSection",
    ]
    for section in (*envelope[1:], *system[2:]):
        assert names(section)[0] == "Info"
    assert attribute(system, "id") == find(system, "Name").text == "vm"


def test_references_name_the_disk_and_its_bytes(envelope: Element, unpacked: Path) -> None:
    # Section 7.1: id and href are required; size is that of the file.
    (file,) = find(envelope, "References")
    assert attribute(file, "href") == "vm-disk1.vmdk"
    assert int(attribute(file, "size")) == (unpacked / "vm-disk1.vmdk").stat().st_size
    (disk,) = find(envelope, "DiskSection").iter(f"{OVF}Disk")
    # Section 9.1: diskId, capacity and format are required.
    assert attribute(disk, "fileRef") == attribute(file, "id")
    assert (attribute(disk, "capacity"), attribute(disk, "capacityAllocationUnits")) == (str(SIZE), "byte")
    assert attribute(disk, "format") == STREAM_OPTIMIZED


def test_hardware_is_described_as_the_schemas_order_it(envelope: Element) -> None:
    # Section 8: System, then Items; elements of both are those of CIM, sorted by name.
    hardware = find(envelope, "VirtualSystem", "VirtualHardwareSection")
    assert names(hardware) == ["Info", "System", *["Item"] * 5, "Config"]
    for element in hardware[1:-1]:
        assert list(names(element)) == sorted(names(element))
        assert {"ElementName", "InstanceID"} <= set(names(element))
    identifiers = [item.findtext(f"{RASD}InstanceID") for item in hardware.iter(f"{OVF}Item")]
    assert len(set(identifiers)) == len(identifiers)
    assert find(hardware, "System").findtext(f"{VSSD}VirtualSystemType") == "vmx-15"


def test_hardware_is_what_vsphere_and_coreos_need(envelope: Element) -> None:
    found = items(envelope)
    assert found["3"]["VirtualQuantity"] == "2"
    assert (found["4"]["VirtualQuantity"], found["4"]["AllocationUnits"]) == ("4096", "byte * 2^20")
    assert found["6"]["ResourceSubType"] == "VirtualSCSI"
    (disk,) = find(envelope, "DiskSection").iter(f"{OVF}Disk")
    assert found["17"]["HostResource"] == f"ovf:/disk/{attribute(disk, 'diskId')}"
    assert found["17"]["Parent"] == found["6"]["InstanceID"]
    (network,) = find(envelope, "NetworkSection").iter(f"{OVF}Network")
    assert (found["10"]["ResourceSubType"], found["10"]["Connection"]) == (
        "VmxNet3",
        attribute(network, "name"),
    )
    (config,) = find(envelope, "VirtualSystem", "VirtualHardwareSection").iter(f"{VMW}Config")
    assert (attribute(config, "key", VMW), attribute(config, "value", VMW)) == ("firmware", "efi")
    guest = find(envelope, "VirtualSystem", "OperatingSystemSection")
    assert (attribute(guest, "id"), attribute(guest, "osType", VMW)) == ("80", "rhel8_64Guest")
    properties = find(envelope, "VirtualSystem", "ProductSection").iter(f"{OVF}Property")
    assert [attribute(item, "key") for item in properties] == [
        "guestinfo.ignition.config.data",
        "guestinfo.ignition.config.data.encoding",
    ]


def test_disk_has_an_adapter_and_a_hardware_version_that_vsphere_imports(unpacked: Path) -> None:
    head = (unpacked / "vm-disk1.vmdk").read_bytes()[512 : 20 * 512].rstrip(b"\0").decode()
    assert 'ddb.adapterType = "lsilogic"' in head
    assert 'ddb.virtualHWVersion = "15"' in head
    assert 'createType="streamOptimized"' in head
    assert f'RW {SIZE // 512} SPARSE "disk.vmdk"' in head
    assert "CID=fffffffe" in head


@pytest.mark.parametrize("guest", GUESTS)
@pytest.mark.parametrize("firmware", FIRMWARES)
def test_any_appliance_is_well_formed(guest: str, firmware: str) -> None:
    appliance = Appliance("a.b_c-1", 7, 3 * MIB, guest, firmware)
    envelope = ElementTree.fromstring(render_ovf(appliance, "disk.vmdk", 1, 512))
    found = items(envelope)
    assert (found["3"]["VirtualQuantity"], found["4"]["VirtualQuantity"]) == ("7", "3")
    system = find(envelope, "VirtualSystem")
    assert attribute(system, "id") == "a.b_c-1"
    assert ("ProductSection" in names(system)) == (guest == "coreos")


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": ""},
        {"name": "../vm"},
        {"name": ".hidden"},
        {"name": "a<b"},
        {"name": "x" * 65},
        {"name": "vm", "cpus": 0},
        {"name": "vm", "cpus": 769},
        {"name": "vm", "memory_bytes": MIB + 1},
        {"name": "vm", "memory_bytes": 25 << 40},
        {"name": "vm", "guest": "plan9"},
        {"name": "vm", "firmware": "openfirmware"},
    ],
    ids=str,
)
def test_impossible_appliance_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(Unprocessable):
        Appliance(**arguments)  # type: ignore[arg-type] # wrong ones


def test_disk_too_large_for_ustar_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ova, "LARGEST_MEMBER_BYTES", 65536)
    raw = write_disk(tmp_path / "disk.raw")
    with pytest.raises(Unprocessable, match="65536 at most"):
        convert_file(raw, tmp_path / "vm.ova", Form("ova"), digests=False)
    assert not (tmp_path / "vm.ova").exists()
