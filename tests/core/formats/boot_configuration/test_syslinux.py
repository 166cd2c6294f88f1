"""SYSLINUX's configuration, edited."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import KernelArgumentInvalid
from image_service.core.formats.boot_configuration import syslinux
from image_service.core.formats.boot_configuration.boot_edit import BootEdit
from tests.core.formats.boot_configuration.media import (
    ALPINE,
    DEBIAN_INSTALLER,
    LIVE_BUILD,
    MEDIA,
    NIXOS,
    RHEL,
)
from tests.core.formats.boot_configuration.oracle import edited, edits

EDIT = BootEdit(
    append=("ds=nocloud;s=/x/", "it's\\x20$b"),
    delete=("quiet", "rd.live.check"),
    replace=(("vga=788", "vga=normal"),),
    initrds=("/a.img", "b.img"),
)
PASSED = "".join(map(chr, range(0x21, 0x7F))).replace('"', "")
WORDS = ["quiet", "ro", "a;b", "console=tty0", "---", "--", "'x'", "\\", "k=v=w"]


def edit_text(text: str, edit: BootEdit, path: str = "isolinux.cfg") -> str:
    return syslinux.edit(text.encode(), edit, path).decode()


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (
            DEBIAN_INSTALLER["isolinux/gtk.cfg"],
            "append vga=788 initrd=/install.amd/gtk/initrd.gz --- quiet ",
            (
                "append vga=normal initrd=/install.amd/gtk/initrd.gz,/a.img,/b.img"
                " ds=nocloud;s=/x/ it's\\x20$b --- "
            ),
        ),
        (
            RHEL["isolinux/isolinux.cfg"].partition("menu begin")[0].partition("label check")[2],
            "initrd=initrd.img inst.stage2=hd:LABEL=CentOS\\x207\\x20x86_64 rd.live.check quiet",
            (
                "initrd=initrd.img,/a.img,/b.img inst.stage2=hd:LABEL=CentOS\\x207\\x20x86_64"
                " ds=nocloud;s=/x/ it's\\x20$b"
            ),
        ),
        (
            MEDIA["flatcar"]["syslinux/syslinux.cfg"],
            "/cpio.gz flatcar.autologin",
            "/cpio.gz,/a.img,/b.img flatcar.autologin ds=nocloud;s=/x/ it's\\x20$b",
        ),
        (
            MEDIA["opensuse"]["boot/x86_64/loader/isolinux.cfg"],
            "initrd=initrd splash=silent showopts",
            "initrd=initrd,/a.img,/b.img splash=silent showopts ds=nocloud;s=/x/ it's\\x20$b",
        ),
    ],
)
def test_entry_with_initrd_among_its_arguments(text: str, old: str, new: str) -> None:
    text = text if text.startswith("default") else f"label check{text}"
    assert edit_text(text, EDIT) == text.replace(old, new)
    assert edit_text(text, EDIT) != text


def test_entries_with_initrd_of_its_own() -> None:
    text = LIVE_BUILD["isolinux/live.cfg"]
    assert edit_text(text, EDIT) == (
        text.replace("initrd.img\n", "initrd.img,/a.img,/b.img\n")
        .replace(" quiet", "")
        .replace("${iso_path}\n", "${iso_path} ds=nocloud;s=/x/ it's\\x20$b\n")
        .replace("noapic\n", "noapic ds=nocloud;s=/x/ it's\\x20$b\n")
    )


def test_other_programs_stay() -> None:
    text = ALPINE["boot/syslinux/syslinux.cfg"]
    lts, xen = text.split("LABEL xen")
    after = edit_text(text, EDIT)
    assert after.split("LABEL xen") == [
        lts.replace("initramfs-lts\n", "initramfs-lts,/a.img,/b.img\n").replace(
            " quiet", " ds=nocloud;s=/x/ it's\\x20$b"
        ),
        xen,
    ]
    for name in ("isolinux/isolinux.cfg",):
        assert "LINUX /boot/memtest.bin\nAPPEND console=ttyS0\n" in edit_text(NIXOS[name], EDIT)
    esxi = MEDIA["esxi"]["ISOLINUX.CFG"]
    assert edit_text(esxi, EDIT) == esxi


def test_text_of_help_stays() -> None:
    after = edit_text(RHEL["isolinux/isolinux.cfg"], EDIT)
    assert "\tappend nothing=here\n  endtext\n" in after
    assert after.count("ds=nocloud") == 3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("label a\n  kernel v\n", "label a\n  kernel v\n  append x=1 y\n  initrd /a.img\n"),
        ("LABEL a\r\nLINUX v \r\n", "LABEL a\r\nLINUX v\r\nappend x=1 y\r\ninitrd /a.img \r\n"),
        ("label a\nkernel v", "label a\nkernel v\nappend x=1 y\ninitrd /a.img"),
        ("label a\nkernel v\nappend -\n", "label a\nkernel v\ninitrd /a.img\nappend x=1 y\n"),
        ("label a\nkernel v\nappend\n", "label a\nkernel v\ninitrd /a.img\nappend x=1 y\n"),
        ("label a\nkernel v\nappend q\n", "label a\nkernel v\ninitrd /a.img\nappend q x=1 y\n"),
        ("append r\nlabel a\nkernel v\n", "append r x=1 y\nlabel a\nkernel v\ninitrd /a.img\n"),
        ("append initrd=i r\nlabel a\nkernel v\n", "append initrd=i,/a.img r x=1 y\nlabel a\nkernel v\n"),
        (
            "label a\nkernel v\ninitrd /a.img\nappend q\n",
            "label a\nkernel v\ninitrd /a.img\nappend q x=1 y\n",
        ),
        (
            "label a\nkernel v\nappend q\ntext help\nappend r\nendtext\ninitrd /i\n",
            "label a\nkernel v\nappend q x=1 y\ntext help\nappend r\nendtext\ninitrd /i,/a.img\n",
        ),
        ("label a\nkernel chain.c32\nappend hd0\n", None),
        ("label a\nkernel memdisk\ninitrd x.img\nappend iso raw\n", None),
        ("label a\nlocalboot 0\n", None),
        ("label a\nkernel vmlinuz.com\n", None),
        ("#label a\n#kernel v\n", None),
    ],
)
def test_lines_are_added(before: str, after: str | None) -> None:
    edit = BootEdit(append=("x=1", "y"), initrds=("a.img",))
    assert edit_text(before, edit) == (after or before)
    again = BootEdit(append=edit.append, delete=edit.append, initrds=edit.initrds)
    assert edit_text(after or before, again) == (after or before)
    assert edit_text(before, BootEdit(delete=("none",))) == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("prompt 0\ntimeout 0\n", "prompt 0\ntimeout 70\n"),
        ("TIMEOUT 00 \r\n", "TIMEOUT 70 \r\n"),
        ("timeout\n", "timeout 70\n"),
        ("timeout 15\n", "timeout 15\n"),
        ("ui x\r\n", "timeout 70\r\nui x\r\n"),
    ],
)
def test_menu_that_waits_for_ever_gets_a_timeout(before: str, after: str) -> None:
    edit = BootEdit(timeout_seconds=7)
    assert edit_text(before, edit) == after
    assert edit_text(after, edit) == after
    assert edit_text("menu title x\n", edit, "isolinux/menu.cfg") == "menu title x\n"
    assert edit_text(before, BootEdit(timeout_seconds=9999)) == after.replace("70", "35996")


@pytest.mark.parametrize("argument", ["a b", 'a"b', "a\tb", "a\nb", "\0", "é", "", "---", "initrd=x"])
def test_argument_that_syslinux_would_change_is_refused(argument: str) -> None:
    edit = BootEdit(append=("fine", argument))
    with pytest.raises(
        KernelArgumentInvalid, match=r"^kernel argument 2 to append (has .* SYSLINUX|is empty)"
    ):
        edit_text("label a\nkernel v\nappend q\n", edit)
    assert edit_text("menu title x\n", edit) == "menu title x\n"


@given(st.data(), st.lists(st.sampled_from(WORDS), max_size=6), edits(PASSED, WORDS))
def test_words_are_edited(data: st.DataObject, words: list[str], edit: BootEdit) -> None:
    gaps = st.sampled_from([" ", "\t", "   "])
    text = "".join(data.draw(gaps) + word for word in words)
    keyword = data.draw(st.sampled_from(["append", "APPEND", "\tAppend"]))
    end = data.draw(st.sampled_from(["\n", " \n", "\r\n"]))
    head, tail = f"default a{end}label a\n kernel v\n", "label b\nlocalboot 0\n# append quiet\n"
    before = f"{head}{keyword} initrd=i{text}{end}{tail}"
    after = edit_text(before, edit)
    assert after.startswith(f"{head}{keyword} initrd=i,/extra/a.img")
    assert after.endswith(f"{end}{tail}")
    middle = after.removeprefix(f"{head}{keyword} initrd=i,/extra/a.img").removesuffix(f"{end}{tail}")
    assert middle.split() == edited(words, edit)
    assert edit_text(after, edit) == after


@given(st.binary(max_size=200))
def test_any_bytes_without_an_edit_are_the_same(content: bytes) -> None:
    assert syslinux.edit(content, BootEdit(delete=("none",)), "isolinux.cfg") == content


MIB = 1024 * 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        b"append " + b" quiet" * (MIB // 6),
        b"label a\nkernel v\n" * 10_000,
        b"label a\nkernel v\nappend " + b" " * MIB,
        b"label a\nkernel v\nappend initrd=" + b"a," * (MIB // 2),
        b" " * MIB,
        b"\n" * MIB,
        b"a" * MIB,
        b"text help\n" * (MIB // 10),
        b"timeout 0\n" * (MIB // 10),
    ],
    ids=range(9),
)
def test_a_mebibyte_takes_linear_time(content: bytes) -> None:
    """Quadratic time would take hours."""
    edit = BootEdit(delete=("quiet",), initrds=("a",), timeout_seconds=5)
    assert len(syslinux.edit(content, edit, "isolinux.cfg")) < 3 * len(content)
