"""The requirements of each platform on a disk, with the document that states them.

ec2        VM Import/Export User Guide, "Image formats": raw, fixed and dynamic VHD and VHDX, streamOptimized
           VMDK, alone or in an OVA; "Boot modes"; EBS User Guide, "Amazon EBS volume constraints": MBR up to
           2 TiB, volumes up to 64 TiB, 512-byte sectors; EC2 User Guide, "Nitro-based instances", which all
           current types are: NVMe and ENA drivers (only types of earlier generations, on Xen, need
           xen_blkfront instead); "EC2 Serial Console": ttyS0
azure      Azure Virtual Machines, "Prepare Linux for imaging in Azure": fixed VHD, size a multiple of 1 MiB,
           drivers of Hyper-V in the initramfs, ttyS0, agent; Add-AzVhd: N MiB and a footer of 512 bytes; VHD
           specification: at most 2040 GiB, less than the 4095 GiB of an Azure disk for operating systems
vsphere    DSP0243 (OVF) and "Virtual Disk Format 5.0": streamOptimized; vSphere "Configuration Maximums":
           62 TiB; "Add a PVSCSI Controller", "Network Adapter Types": PVSCSI and VMXNET3; Open VM Tools
openstack  Glance "Disk and container formats"; Nova `vmdk_allowed_types`; Virtual Machine Image Guide, "Image
           requirements": virtio drivers, ttyS0, cloud-init
baremetal  coreos-installer's and Ironic's raw images: bytes as on the disk, of 512-byte or 4096-byte sectors

CoreOS: Ignition "Supported platforms" names `ignition.platform.id`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.formats.disk.model import DiskFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

_MIB, _GIB, _TIB = 1 << 20, 1 << 30, 1 << 40


@attrs.frozen
class Platform:
    """The requirements of a platform on a disk.

    Args:
        name: on the command line.
        title: in sentences.
        formats: that it takes, with their subformats; no subformat: all.
        size_multiple: bytes.
        max_size: bytes of the disk.
        sector_sizes: bytes; of the disks that it offers.
        architectures: by RPM's names.
        storage_drivers: of which the initrd needs one of each group.
        network_drivers: likewise, where the initrd uses the network.
        consoles: serial ports that show the console; none: it shows the screen.
        has_any_console: screen or serial port depend on the machine.
        agents: files of programs, of which one configures a machine or reports its state; none: not needed.
        ignition_id: ``ignition.platform.id``.
        windows_storage: services of drivers, one of which starts at boot.
        windows_network: services of drivers, one of which starts.
        device: of qemu, which ``--boot`` attaches the disk by.
        controller: of qemu, that the device needs; "" for none.
    """

    name: str
    title: str
    formats: Mapping[DiskFormat, frozenset[str]]
    size_multiple: int
    max_size: int
    sector_sizes: tuple[int, ...]
    architectures: frozenset[str]
    storage_drivers: tuple[tuple[str, ...], ...]
    network_drivers: tuple[tuple[str, ...], ...]
    consoles: tuple[str, ...]
    has_any_console: bool
    agents: Mapping[str, str]
    ignition_id: str
    windows_storage: tuple[str, ...]
    windows_network: tuple[str, ...]
    device: str
    controller: str = ""


_ANY: frozenset[str] = frozenset()
_SERVERS = frozenset({"x86_64", "aarch64"})
_CLOUD_INIT = {"usr/bin/cloud-init": "cloud-init"}
_AFTERBURN = {"usr/bin/afterburn": "Afterburn"}

PLATFORMS: Mapping[str, Platform] = {
    platform.name: platform
    for platform in (
        Platform(
            name="ec2",
            title="EC2",
            formats={
                DiskFormat.RAW: _ANY,
                DiskFormat.VHD: _ANY,
                DiskFormat.VHDX: _ANY,
                DiskFormat.VMDK: frozenset({"streamOptimized"}),
            },
            size_multiple=512,
            max_size=64 * _TIB,
            sector_sizes=(512,),
            architectures=_SERVERS,
            storage_drivers=(("nvme",),),
            network_drivers=(("ena",),),
            consoles=("ttyS0",),
            has_any_console=False,
            agents={**_CLOUD_INIT, **_AFTERBURN, "usr/bin/amazon-ssm-agent": "the SSM agent"},
            ignition_id="aws",
            windows_storage=("awsnvme", "stornvme", "xenvbd"),
            windows_network=("ena", "enabus", "xennet"),
            device="nvme,serial=disk",
        ),
        Platform(
            name="vsphere",
            title="vSphere",
            formats={DiskFormat.VMDK: frozenset({"streamOptimized"})},
            size_multiple=512,
            max_size=62 * _TIB,
            sector_sizes=(512,),
            architectures=frozenset({"x86_64"}),
            storage_drivers=(("vmw_pvscsi",),),
            network_drivers=(("vmxnet3",),),
            consoles=(),
            has_any_console=False,
            agents={"usr/bin/vmtoolsd": "open-vm-tools", **_CLOUD_INIT},
            ignition_id="vmware",
            windows_storage=("pvscsi", "lsi_sas", "stornvme"),
            windows_network=("vmxnet3ndis6", "e1iexpress", "e1g60"),
            device="scsi-hd",
            controller="pvscsi",
        ),
        Platform(
            name="azure",
            title="Azure",
            formats={DiskFormat.VHD: frozenset({"fixed"})},
            size_multiple=_MIB,
            max_size=2040 * _GIB,
            sector_sizes=(512,),
            architectures=_SERVERS,
            storage_drivers=(("hv_vmbus",), ("hv_storvsc",)),
            network_drivers=(("hv_vmbus",), ("hv_netvsc",)),
            consoles=("ttyS0", "ttyAMA0"),
            has_any_console=False,
            agents={"usr/sbin/waagent": "waagent", "usr/bin/waagent": "waagent", **_CLOUD_INIT, **_AFTERBURN},
            ignition_id="azure",
            windows_storage=("storvsc",),
            windows_network=("netvsc",),
            device="ide-hd",
        ),
        Platform(
            name="openstack",
            title="OpenStack",
            formats={
                DiskFormat.QCOW2: _ANY,
                DiskFormat.RAW: _ANY,
                DiskFormat.VHD: _ANY,
                DiskFormat.VHDX: _ANY,
                DiskFormat.VMDK: frozenset({"streamOptimized", "monolithicSparse"}),
            },
            size_multiple=512,
            max_size=1 << 63,
            sector_sizes=(512,),
            architectures=_SERVERS | {"ppc64le", "s390x"},
            storage_drivers=(("virtio_blk", "virtio_scsi"),),
            network_drivers=(("virtio_net",),),
            consoles=("ttyS0", "ttyAMA0", "hvc0", "ttysclp0"),
            has_any_console=False,
            agents={**_CLOUD_INIT, **_AFTERBURN},
            ignition_id="openstack",
            windows_storage=("viostor", "vioscsi"),
            windows_network=("netkvm",),
            device="virtio-blk-pci",
        ),
        Platform(
            name="baremetal",
            title="bare metal",
            formats={DiskFormat.RAW: _ANY},
            size_multiple=512,
            max_size=1 << 63,
            sector_sizes=(512, 4096),
            architectures=_SERVERS | {"ppc64le", "s390x"},
            storage_drivers=(("nvme", "ahci"),),
            network_drivers=(("e1000e", "igb", "ixgbe", "i40e", "ice", "mlx5_core", "bnxt_en", "tg3"),),
            consoles=(),
            has_any_console=True,
            agents={},
            ignition_id="metal",
            windows_storage=("stornvme", "storahci"),
            windows_network=(),
            device="nvme,serial=disk",
        ),
    )
}
"""The platforms by name."""
