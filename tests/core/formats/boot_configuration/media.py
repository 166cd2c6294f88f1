"""Media with the boot configurations of live images, shortened, in the form that their builders give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DEBIAN_INSTALLER = {
    "isolinux/isolinux.cfg": """\
# D-I config version 2.0
# search path for the c32 support libraries (libcom32, libutil etc.)
path\x20
include menu.cfg
default vesamenu.c32
prompt 0
timeout 0
""",
    "isolinux/menu.cfg": """\
menu hshift 7
menu title Debian GNU/Linux installer menu (BIOS mode)
include stdmenu.cfg
include gtk.cfg
menu begin advanced
\tinclude adtxt.cfg
menu end
""",
    "isolinux/stdmenu.cfg": "menu background splash.png\nmenu tabmsg Press ENTER to boot\n",
    "isolinux/gtk.cfg": """\
default installgui
label installgui
	menu label ^Graphical install
	menu default
	kernel /install.amd/vmlinuz
	append vga=788 initrd=/install.amd/gtk/initrd.gz --- quiet\x20
""",
    "isolinux/adtxt.cfg": """\
label rescue
	menu label ^Rescue mode
	kernel /install.amd/vmlinuz
	append vga=788 initrd=/install.amd/initrd.gz rescue/enable=true --- quiet\x20
""",
    "boot/grub/grub.cfg": """\
if [ x$feature_default_font_path = xy ] ; then
   font=unicode
else
   font=$prefix/font.pf2
fi

if loadfont $font ; then
  set gfxmode=800x600
  insmod gfxterm
fi
insmod play
play 960 440 1 0 4 440 1
set theme=/boot/grub/theme/1
menuentry --hotkey=g 'Graphical install' {
    set background_color=black
    linux    /install.amd/vmlinuz vga=788 --- quiet
    initrd   /install.amd/gtk/initrd.gz
}
submenu --hotkey=a 'Advanced options ...' {
    set menu_color_normal=cyan/blue
    menuentry '... Rescue mode' {
        set background_color=black
        linux    /install.amd/vmlinuz vga=788 rescue/enable=true --- quiet
        initrd   /install.amd/gtk/initrd.gz
    }
}
""",
    "boot/grub/x86_64-efi/grub.cfg": "insmod part_gpt\nsource /boot/grub/grub.cfg\n",
    "EFI/debian/grub.cfg": """\
search --file --set=root /.disk/id/0b1a
set prefix=($root)/boot/grub
source $prefix/${grub_cpu}-efi/grub.cfg
""",
}
LIVE_BUILD = {
    "isolinux/isolinux.cfg": "include menu.cfg\ndefault vesamenu.c32\nprompt 0\ntimeout 0\n",
    "isolinux/menu.cfg": "menu hshift 0\ninclude live.cfg\nmenu clear\n",
    "isolinux/live.cfg": """\
label live-amd64
	menu label ^Live system (amd64)
	menu default
	linux /live/vmlinuz
	initrd /live/initrd.img
	append boot=live components quiet splash findiso=${iso_path}

label live-amd64-failsafe
	menu label Live system (amd64 fail-safe mode)
	linux /live/vmlinuz
	initrd /live/initrd.img
	append boot=live components memtest noapic
""",
    "boot/grub/grub.cfg": """\
source /boot/grub/config.cfg

# Live boot
menuentry "Live system (amd64)" --hotkey=l {
	linux	/live/vmlinuz boot=live components quiet splash findiso=${iso_path}
	initrd	/live/initrd.img
}
submenu 'Utilities...' --hotkey=u {
	source /boot/grub/theme.cfg
	if [ "${grub_platform}" = "efi" ]; then
		menuentry "UEFI Firmware Settings" { fwsetup; }
	fi
	menuentry "Memory test" { linux16 /live/memtest.bin quiet; }
}
""",
    "boot/grub/config.cfg": "set default=0\nif loadfont $prefix/unicode.pf2 ; then insmod gfxterm; fi\n",
    "boot/grub/theme.cfg": "set color_normal=light-gray/black\n",
}
UBUNTU = {
    "boot/grub/grub.cfg": """\
set timeout=30

loadfont unicode

set menu_color_normal=white/black

menuentry "Try or Install Ubuntu Server" {
	set gfxpayload=keep
	linux	/casper/vmlinuz  ---
	initrd	/casper/initrd
}
grub_platform
if [ "$grub_platform" = "efi" ]; then
menuentry 'Boot from next volume' {
	exit 1
}
fi
""",
    "boot/grub/loopback.cfg": "menuentry x { linux /casper/vmlinuz iso-scan/filename=${iso_path} ---; }\n",
}
FEDORA = {
    "EFI/BOOT/grub.cfg": """\
set default="1"

function load_video {
  insmod all_video
}

load_video
set timeout=60
### END /etc/grub.d/00_header ###

search --no-floppy --set=root -l 'Fedora-S-dvd-x86_64-40'

### BEGIN /etc/grub.d/10_linux ###
menuentry 'Install Fedora 40' --class fedora --class os {
	linux /images/pxeboot/vmlinuz inst.stage2=hd:LABEL=Fedora-S-dvd-x86_64-40 quiet
	initrd /images/pxeboot/initrd.img
}
menuentry 'Test this media & install Fedora 40' --class fedora --class os {
	linux /images/pxeboot/vmlinuz inst.stage2=hd:LABEL=Fedora-S-dvd-x86_64-40 rd.live.check quiet
	initrd /images/pxeboot/initrd.img
}
""",
    "boot/grub2/grub.cfg": """\
set timeout=60
menuentry 'Test this media & install Fedora 40' {
	linux /images/pxeboot/vmlinuz inst.stage2=hd:LABEL=Fedora-S-dvd-x86_64-40 rd.live.check quiet
	initrd /images/pxeboot/initrd.img
}
""",
}
RHEL = {
    "isolinux/isolinux.cfg": """\
default vesamenu.c32
timeout 600

menu title CentOS 7
menu separator # insert an empty line

label linux
  menu label ^Install CentOS 7
  kernel vmlinuz
  append initrd=initrd.img inst.stage2=hd:LABEL=CentOS\\x207\\x20x86_64 quiet

label check
  menu label Test this ^media & install CentOS 7
  menu default
  kernel vmlinuz
  append initrd=initrd.img inst.stage2=hd:LABEL=CentOS\\x207\\x20x86_64 rd.live.check quiet

menu begin ^Troubleshooting
label vesa
  text help
\tTry this option out if you're having trouble.
\tappend nothing=here
  endtext
  kernel vmlinuz
  append initrd=initrd.img inst.stage2=hd:LABEL=CentOS\\x207\\x20x86_64 nomodeset quiet
label memtest
  kernel memtest
label local
  localboot 0xffff
menu end
""",
    "EFI/BOOT/grub.cfg": """\
set timeout=60
menuentry 'Install CentOS 7' --class red {
	linuxefi /images/pxeboot/vmlinuz inst.stage2=hd:LABEL=CentOS\\x207\\x20x86_64 quiet
	initrdefi /images/pxeboot/initrd.img
}
""",
}
OPENSUSE = {
    "boot/x86_64/loader/isolinux.cfg": """\
default harddisk

# install
label linux
  kernel linux
  append initrd=initrd splash=silent showopts
# hard disk
label harddisk
  localboot -2

implicit\t1
ui\t\tgfxboot bootlogo message
display\t\tmessage
prompt\t\t1
timeout\t\t600
""",
    "EFI/BOOT/grub.cfg": """\
with_fips=0
if [ -f /boot/x86_64/fips ] ; then with_fips=1 ; fi
timeout=60
default=1
if [ "${grub_platform}" = "efi" ] ; then
  set linux=linuxefi
else
  set linux=linux
fi
menuentry 'Installation' --class opensuse --class os {
  set gfxpayload=keep
  echo 'Loading kernel ...'
  $linux /boot/x86_64/loader/linux splash=silent
  echo 'Loading initial ramdisk ...'
  ${initrd} /boot/x86_64/loader/initrd
}
""",
}
PROXMOX = {
    "boot/grub/grub.cfg": """\
insmod gzio
insmod iso9660
set timeout_style=menu

if [ -f auto-installer-mode.toml ]; then
    set timeout=10
    menuentry 'Install Proxmox VE (Automated)' --class debian {
        echo        'Loading Proxmox VE Automatic Installer ...'
        linux       /boot/linux26 ro ramdisk_size=16777216 rw quiet splash=silent proxmox-start-auto-installer
        initrd      /boot/initrd.img
    }
fi
menuentry 'Install Proxmox VE (Graphical)' --class debian {
    linux	/boot/linux26 ro ramdisk_size=16777216 rw quiet splash=silent
    initrd	/boot/initrd.img
}
submenu 'Advanced Options' {
    menuentry 'Test memory (Memtest86+)' --class memtest {
        if [ "${grub_platform}" == "pc" ]; then linux16 /boot/memtest86+x64.bin; fi
        linux /boot/memtest86+x64.efi console=tty0
    }
}
""",
}
TALOS = {
    "boot/grub/grub.cfg": """\
set default=0
set timeout=3

insmod all_video

menuentry "Talos ISO" {
	set gfxmode=auto
	set gfxpayload=text
	linux /boot/vmlinuz talos.platform=metal console=tty0 init_on_alloc=1 slab_nomerge pti=on
	initrd /boot/initramfs.xz
}
""",
}
FLATCAR = {
    "isolinux/isolinux.cfg": "INCLUDE /syslinux/syslinux.cfg\n",
    "syslinux/syslinux.cfg": """\
default flatcar
prompt 1
timeout 15

label flatcar
  menu default
  kernel /flatcar/vmlinuz
  append initrd=/flatcar/cpio.gz flatcar.autologin
""",
}
ALPINE = {
    "boot/syslinux/syslinux.cfg": """\
TIMEOUT 10
PROMPT 1
DEFAULT lts

LABEL lts
	MENU LABEL Linux lts
	KERNEL /boot/vmlinuz-lts
	INITRD /boot/intel-ucode.img,/boot/initramfs-lts
	FDTDIR /boot/dtbs-lts
	APPEND modules=loop,squashfs,sd-mod,usb-storage quiet

LABEL xen
	KERNEL /boot/syslinux/mboot.c32
	APPEND /boot/xen.gz dom0_mem=256M --- /boot/vmlinuz-lts quiet --- /boot/initramfs-lts
""",
    "boot/grub/grub.cfg": """\
set timeout=1
menuentry "Linux lts" {
linux	/boot/vmlinuz-lts modules=loop,squashfs,sd-mod,usb-storage quiet
initrd	/boot/intel-ucode.img /boot/initramfs-lts
}
""",
}
NIXOS = {
    "isolinux/isolinux.cfg": """\
SERIAL 0 115200
TIMEOUT 100
UI vesamenu.c32
MENU BACKGROUND /isolinux/background.png

DEFAULT boot

LABEL boot
MENU LABEL NixOS 24.05 Installer
LINUX /boot/bzImage
APPEND init=/nix/store/abc-nixos/init root=LABEL=nixos-24.05 loglevel=4
INITRD /boot/initrd

LABEL memtest
MENU LABEL Memtest86+
LINUX /boot/memtest.bin
APPEND console=ttyS0
""",
    "EFI/BOOT/grub.cfg": """\
set with_serial=no
if serial; then set with_serial=yes ;fi
export with_serial
clear
set timeout=-1

search --set=root --file /EFI/nixos-installer-image
if [ ${iso_path} ] ; then
  set isoboot="findiso=${iso_path}"
fi
menuentry 'NixOS 24.05 Installer '  --class installer {
  # Fallback to UEFI console for boot
  terminal_output gfxterm
  linux /boot/bzImage ${isoboot} init=/nix/store/abc-nixos/init  root=LABEL=nixos-24.05 loglevel=4
  initrd /boot/initrd
}
submenu "Options" {
  submenu "" {return}
  menuentry 'NixOS' { linux /boot/bzImage ${isoboot} init=/nix/init copytoram; initrd /boot/initrd; }
}
""",
}
HARVESTER = {
    "boot/grub2/grub.cfg": """\
search --no-floppy --file --set=root /boot/kernel.xz
set default=0
set timeout=10
set linux=linux
set initrd=initrd

source (${root})/boot/grub2/harvester.cfg

if [ "${grub_cpu}" = "x86_64" -o "${grub_cpu}" = "i386" ];then
    if [ "${grub_platform}" = "efi" ]; then
        set linux=linuxefi
        set initrd=initrdefi
    fi
fi
menuentry "Harvester Installer ${harvester_version}" --class os --unrestricted {
    echo Loading kernel...
    $linux ($root)/boot/kernel cdroot root=live:CDLABEL=COS_LIVE rd.live.dir=/ console=tty1 rd.cos.disable
    echo Loading initrd...
    $initrd ($root)/boot/initrd
}
if [ "${grub_platform}" = "efi" ]; then
    hiddenentry "Text mode" --hotkey "t" {
        set textmode=true
        terminal_output console
    }
fi
""",
    "boot/grub2/harvester.cfg": "set harvester_version=v1.4.0\n",
}
ESXI = {
    "ISOLINUX.CFG": "DEFAULT menu.c32\nTIMEOUT 80\nLABEL install\n  KERNEL mboot.c32\n  APPEND -c boot.cfg\n",
    "BOOT.CFG": """\
bootstate=0
title=Loading ESXi installer
timeout=5
prefix=
kernel=/b.b00
kernelopt=runweasel cdromBoot
modules=/jumpstrt.gz --- /useropts.gz --- /imgpayld.tgz
build=8.0.3-0.0.24022510
updated=0
""",
    "EFI/BOOT/BOOT.CFG": "kernel=/b.b00\r\nkernelopt=cdromBoot runweasel\r\nmodules=/jumpstrt.gz\r\n",
}
SYSTEMD_BOOT = {
    "loader/loader.conf": "timeout menu-force\ndefault arch*\n",
    "loader/entries/01-archiso.conf": """\
title    Arch Linux install medium
sort-key 01
linux    /arch/boot/x86_64/vmlinuz-linux
initrd   /arch/boot/x86_64/initramfs-linux.img
options  archisobasedir=arch archisosearchuuid=2024-05-01
""",
    "loader/entries/uki.conf": "title Unified\nefi /EFI/Linux/x.efi\noptions quiet\n",
}

MEDIA: Mapping[str, Mapping[str, str]] = {
    "debian-installer": DEBIAN_INSTALLER,
    "live-build": LIVE_BUILD,
    "ubuntu": UBUNTU,
    "fedora": FEDORA,
    "rhel": RHEL,
    "opensuse": OPENSUSE,
    "proxmox": PROXMOX,
    "talos": TALOS,
    "flatcar": FLATCAR,
    "alpine": ALPINE,
    "nixos": NIXOS,
    "harvester": HARVESTER,
    "esxi": ESXI,
    "systemd-boot": SYSTEMD_BOOT,
}


class Files:
    """A medium of files in memory, which notes the directories that are listed."""

    def __init__(self, files: Mapping[str, str | bytes]) -> None:
        self._files = {
            path: content.encode() if isinstance(content, str) else content for path, content in files.items()
        }
        self.listed: list[str] = []

    def read(self, path: str) -> bytes | None:
        return self._files.get(path)

    def list(self, path: str) -> set[str]:
        self.listed.append(path)
        base = f"{path}/" if path else ""
        return {name[len(base) :].partition("/")[0] for name in self._files if name.startswith(base)}
