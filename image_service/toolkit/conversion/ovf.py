"""The OVF descriptor of an appliance with one disk: DSP0243, versions 1.1 and 2.1, as vSphere reads it."""

from __future__ import annotations

import re
from html import escape

import attrs

from image_service.core.errors import Unprocessable

_MIB = 1 << 20
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # short enough for USTAR, and the same in XML
_MOST_CPUS, _MOST_MEMORY_BYTES = 768, 24 << 40  # what VMware documents for one virtual machine
FIRMWARES = ("efi", "bios")


@attrs.frozen
class _Guest:
    """An operating system: its CIM number (CIM_OperatingSystem.OsType), and VMware's name for it."""

    cim_id: int
    vmware_type: str


GUESTS = {
    "coreos": _Guest(80, "rhel8_64Guest"),
    "rhel": _Guest(80, "rhel8_64Guest"),
    "fedora": _Guest(101, "fedora64Guest"),
    "debian": _Guest(96, "debian10_64Guest"),
    "ubuntu": _Guest(94, "ubuntu64Guest"),
    "linux": _Guest(101, "other4xLinux64Guest"),
    "windows": _Guest(103, "windows9Server64Guest"),
    "other": _Guest(102, "otherGuest64"),
}
"""The operating systems of appliances; vSphere knows the names since 6.7 at the latest, as it does vmx-15."""


@attrs.frozen
class Appliance:
    """The virtual machine that an OVA describes.

    Args:
        name: of the virtual machine, and of the files in the archive.
        memory_bytes: a multiple of 1 MiB.
        guest: a name of `GUESTS`.
        firmware: one of `FIRMWARES`.
    """

    name: str
    cpus: int = 2
    memory_bytes: int = 4096 * _MIB
    guest: str = "coreos"
    firmware: str = "efi"

    def __attrs_post_init__(self) -> None:
        """Raise Unprocessable if it cannot be described."""
        if not _NAME.fullmatch(self.name):
            raise Unprocessable(
                f"{self.name!r} is not the name of an appliance:"
                " 1 to 64 ASCII letters, digits, dots, hyphens and underscores"
            )
        if not 0 < self.cpus <= _MOST_CPUS:
            raise Unprocessable(f"an appliance has 1 to {_MOST_CPUS} CPUs, not {self.cpus}")
        if not 0 < self.memory_bytes <= _MOST_MEMORY_BYTES or self.memory_bytes % _MIB:
            raise Unprocessable(
                f"an appliance has whole MiB of memory, {_MOST_MEMORY_BYTES // _MIB} at most,"
                f" not {self.memory_bytes} bytes"
            )
        if self.guest not in GUESTS or self.firmware not in FIRMWARES:
            raise Unprocessable(f"no appliance is known with {self.guest} and {self.firmware}")


def render_ovf(appliance: Appliance, disk_file: str, file_bytes: int, capacity_bytes: int) -> bytes:
    """Return the descriptor; equal arguments give equal bytes.

    Args:
        disk_file: name of the streamOptimized VMDK.
        file_bytes: of the VMDK.
        capacity_bytes: of the disk in it.
    """
    guest = GUESTS[appliance.guest]
    return _ENVELOPE.format(
        name=escape(appliance.name),
        disk_file=escape(disk_file),
        file_bytes=file_bytes,
        capacity_bytes=capacity_bytes,
        cim_id=guest.cim_id,
        vmware_type=guest.vmware_type,
        cpus=appliance.cpus,
        memory_mib=appliance.memory_bytes // _MIB,
        firmware=appliance.firmware,
        product=_IGNITION_PROPERTIES if appliance.guest == "coreos" else "",
    ).encode()


# Ignition reads these; vSphere asks for them when the appliance is deployed.
_IGNITION_PROPERTIES = """\
    <ProductSection>
      <Info>Settings of the first boot</Info>
      <Category>Ignition</Category>
      <Property ovf:key="guestinfo.ignition.config.data" ovf:type="string"
                ovf:userConfigurable="true" ovf:value="">
        <Label>Ignition config</Label>
        <Description>The config, encoded as the next property says</Description>
      </Property>
      <Property ovf:key="guestinfo.ignition.config.data.encoding" ovf:type="string"
                ovf:userConfigurable="true" ovf:value="">
        <Label>Encoding of the Ignition config</Label>
        <Description>base64, or gzip+base64; empty: it is not encoded</Description>
      </Property>
    </ProductSection>
"""

# The order of elements is that of the schemas: DSP8023 for the envelope and its sections, and for System and
# Item the CIM schemas, which sort by name.
_ENVELOPE = """\
<?xml version="1.0" encoding="UTF-8"?>
<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1"
          xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"
          xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData"
          xmlns:vssd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_VirtualSystemSettingData"
          xmlns:vmw="http://www.vmware.com/schema/ovf">
  <References>
    <File ovf:href="{disk_file}" ovf:id="file1" ovf:size="{file_bytes}"/>
  </References>
  <DiskSection>
    <Info>The disk</Info>
    <Disk ovf:capacity="{capacity_bytes}" ovf:capacityAllocationUnits="byte"
          ovf:diskId="vmdisk1" ovf:fileRef="file1"
          ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"/>
  </DiskSection>
  <NetworkSection>
    <Info>The network</Info>
    <Network ovf:name="VM Network">
      <Description>The network of the first interface</Description>
    </Network>
  </NetworkSection>
  <VirtualSystem ovf:id="{name}">
    <Info>The virtual machine</Info>
    <Name>{name}</Name>
{product}    <OperatingSystemSection ovf:id="{cim_id}" vmw:osType="{vmware_type}">
      <Info>The operating system</Info>
    </OperatingSystemSection>
    <VirtualHardwareSection ovf:transport="com.vmware.guestInfo">
      <Info>The virtual hardware</Info>
      <System>
        <vssd:ElementName>Virtual Hardware Family</vssd:ElementName>
        <vssd:InstanceID>0</vssd:InstanceID>
        <vssd:VirtualSystemIdentifier>{name}</vssd:VirtualSystemIdentifier>
        <vssd:VirtualSystemType>vmx-15</vssd:VirtualSystemType>
      </System>
      <Item>
        <rasd:AllocationUnits>hertz * 10^6</rasd:AllocationUnits>
        <rasd:Description>Number of virtual CPUs</rasd:Description>
        <rasd:ElementName>{cpus} virtual CPUs</rasd:ElementName>
        <rasd:InstanceID>1</rasd:InstanceID>
        <rasd:ResourceType>3</rasd:ResourceType>
        <rasd:VirtualQuantity>{cpus}</rasd:VirtualQuantity>
      </Item>
      <Item>
        <rasd:AllocationUnits>byte * 2^20</rasd:AllocationUnits>
        <rasd:Description>Size of the memory</rasd:Description>
        <rasd:ElementName>{memory_mib} MiB of memory</rasd:ElementName>
        <rasd:InstanceID>2</rasd:InstanceID>
        <rasd:ResourceType>4</rasd:ResourceType>
        <rasd:VirtualQuantity>{memory_mib}</rasd:VirtualQuantity>
      </Item>
      <Item>
        <rasd:Address>0</rasd:Address>
        <rasd:Description>SCSI controller</rasd:Description>
        <rasd:ElementName>SCSI controller 0</rasd:ElementName>
        <rasd:InstanceID>3</rasd:InstanceID>
        <rasd:ResourceSubType>VirtualSCSI</rasd:ResourceSubType>
        <rasd:ResourceType>6</rasd:ResourceType>
      </Item>
      <Item>
        <rasd:AddressOnParent>0</rasd:AddressOnParent>
        <rasd:ElementName>Hard disk 1</rasd:ElementName>
        <rasd:HostResource>ovf:/disk/vmdisk1</rasd:HostResource>
        <rasd:InstanceID>4</rasd:InstanceID>
        <rasd:Parent>3</rasd:Parent>
        <rasd:ResourceType>17</rasd:ResourceType>
      </Item>
      <Item>
        <rasd:AddressOnParent>7</rasd:AddressOnParent>
        <rasd:AutomaticAllocation>true</rasd:AutomaticAllocation>
        <rasd:Connection>VM Network</rasd:Connection>
        <rasd:Description>VMXNET3 network adapter</rasd:Description>
        <rasd:ElementName>Network adapter 1</rasd:ElementName>
        <rasd:InstanceID>5</rasd:InstanceID>
        <rasd:ResourceSubType>VmxNet3</rasd:ResourceSubType>
        <rasd:ResourceType>10</rasd:ResourceType>
      </Item>
      <vmw:Config ovf:required="false" vmw:key="firmware" vmw:value="{firmware}"/>
    </VirtualHardwareSection>
  </VirtualSystem>
</Envelope>
"""
