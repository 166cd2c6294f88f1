"""Entries of systemd-boot and ESXi's boot.cfg, edited."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import KernelArgumentInvalid
from image_service.core.formats.boot_configuration.boot_edit import BootEdit, ConfigFile, Dialect
from image_service.core.formats.boot_configuration.editing import edit_config
from tests.core.formats.boot_configuration.media import ESXI, SYSTEMD_BOOT
from tests.core.formats.boot_configuration.oracle import edited, edits

ENTRY = "loader/entries/01-archiso.conf"
EDIT = BootEdit(("ds=nocloud;s=/x/", "y"), ("quiet", "cdromBoot"), (("a=1", "a=2"),), ("new.gz",), 5)
PASSED = "".join(map(chr, range(0x21, 0x7F))).translate({ord(each): None for each in "\"'\\"})
WORDS = ["quiet", "ro", "a;b", "console=tty0", "k=v=w"]


def edit_text(text: str, edit: BootEdit, path: str, dialect: Dialect) -> str:
    edited_config = edit_config(ConfigFile(path, dialect, text.encode()), edit)
    assert (edited_config.path, edited_config.dialect) == (path, dialect)
    return edited_config.content.decode()


def edit_entry(text: str, edit: BootEdit, path: str = ENTRY) -> str:
    return edit_text(text, edit, path, Dialect.SYSTEMD_BOOT)


def edit_boot_cfg(text: str, edit: BootEdit) -> str:
    return edit_text(text, edit, "BOOT.CFG", Dialect.ESXI)


def test_entry_of_archiso() -> None:
    text = SYSTEMD_BOOT[ENTRY]
    assert edit_entry(text, EDIT) == text.replace("linux.img\n", "linux.img\ninitrd /new.gz\n").replace(
        "05-01\n", "05-01 ds=nocloud;s=/x/ y\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("linux /v\r\n", "linux /v\r\noptions ds=nocloud;s=/x/ y\r\ninitrd /new.gz\r\n"),
        ("  linux\t/v", "  linux\t/v\n  options ds=nocloud;s=/x/ y\n  initrd /new.gz"),
        (
            "options quiet a=1 --- z\nlinux /v\noptions q \ninitrd /a\ninitrd /b\n#options quiet\n",
            (
                "options a=2 ds=nocloud;s=/x/ y --- z\nlinux /v\noptions q \ninitrd /a\ninitrd /b\n"
                "initrd /new.gz\n#options quiet\n"
            ),
        ),
        (
            "linux /v\noptions a\noptions quiet\n",
            "linux /v\ninitrd /new.gz\noptions a ds=nocloud;s=/x/ y\noptions\n",
        ),
        ("efi /x.efi\noptions quiet\n", None),
        ("title linux\n", None),
    ],
)
def test_entries(before: str, after: str | None) -> None:
    assert edit_entry(before, EDIT) == (after or before)
    again = BootEdit(EDIT.append, (*EDIT.delete, *EDIT.append), EDIT.replace, EDIT.initrds)
    assert edit_entry(after or before, again) == (after or before)
    assert edit_entry(before, BootEdit(delete=("none",))) == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SYSTEMD_BOOT["loader/loader.conf"], "timeout 5\ndefault arch*\n"),
        ("timeout 0\n", None),
        ("timeout menu-hidden\n", None),
        ("#timeout menu-force\nlinux /v\n", None),
    ],
)
def test_loader_conf(before: str, after: str | None) -> None:
    assert edit_entry(before, EDIT, "loader/loader.conf") == (after or before)
    assert edit_entry(before, BootEdit(), "loader/loader.conf") == before


def test_esxi() -> None:
    text = ESXI["BOOT.CFG"]
    assert edit_boot_cfg(text, EDIT) == text.replace(" cdromBoot\n", " ds=nocloud;s=/x/ y\n").replace(
        "imgpayld.tgz\n", "imgpayld.tgz --- /new.gz\n"
    )
    assert edit_boot_cfg(ESXI["EFI/BOOT/BOOT.CFG"], EDIT) == (
        "kernel=/b.b00\r\nkernelopt=runweasel ds=nocloud;s=/x/ y\r\nmodules=/jumpstrt.gz --- /new.gz\r\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "kernel=/b\r\nmodules=/a\r\n",
            "kernel=/b\r\nkernelopt=ds=nocloud;s=/x/ y\r\nmodules=/a --- /new.gz\r\n",
        ),
        ("kernelopt=\n", "kernelopt=ds=nocloud;s=/x/ y\n"),
        ("kernelopt = cdromBoot\n", "kernelopt = ds=nocloud;s=/x/ y\n"),
        ("kernelopt=a=1 cdromBoot  z ", "kernelopt=a=2  z ds=nocloud;s=/x/ y "),
        ("modules=/new.gz --- /a\n", "modules=/new.gz --- /a\n"),
        ("#kernelopt=cdromBoot\ntitle=kernel\n", "#kernelopt=cdromBoot\ntitle=kernel\n"),
    ],
)
def test_boot_cfg(before: str, after: str) -> None:
    assert edit_boot_cfg(before, EDIT) == after
    again = BootEdit(EDIT.append, (*EDIT.delete, *EDIT.append), EDIT.replace, EDIT.initrds)
    assert edit_boot_cfg(after, again) == after
    assert edit_boot_cfg(before, BootEdit(delete=("none",), timeout_seconds=5)) == before


@pytest.mark.parametrize(
    ("text", "dialect", "refused"),
    [
        ("linux /v\n", Dialect.SYSTEMD_BOOT, ["a b", 'a"b', "a\nb", "\0", "é", "", "---"]),
        ("kernelopt=a\n", Dialect.ESXI, ["a b", 'a"b', "it's", "a\\b", "a\nb", "é", "", "---"]),
    ],
)
def test_argument_that_the_loader_would_change_is_refused(
    text: str, dialect: Dialect, refused: list[str]
) -> None:
    for argument in refused:
        with pytest.raises(KernelArgumentInvalid, match=r"^kernel argument 1 to append (has .*boot|is )"):
            edit_text(text, BootEdit(append=(argument,)), "x", dialect)


@given(st.data(), st.lists(st.sampled_from(WORDS), max_size=6), edits(PASSED, WORDS))
def test_words_are_edited(data: st.DataObject, words: list[str], edit: BootEdit) -> None:
    text = "".join(data.draw(st.sampled_from([" ", "\t", "  "])) + word for word in words)
    entry = f"title quiet\nlinux /v\ninitrd /i\noptions{text}\n# quiet\n"
    after = edit_entry(entry, edit)
    head, tail = "title quiet\nlinux /v\ninitrd /i\ninitrd /extra/a.img\noptions", "\n# quiet\n"
    assert after.startswith(head)
    assert after.endswith(tail)
    assert after.removeprefix(head).removesuffix(tail).split() == edited(words, edit)
    assert edit_entry(after, edit) == after
    boot_cfg = f"title=quiet\nkernelopt={text.strip()}\nbuild=1\n"
    after = edit_boot_cfg(boot_cfg, edit)
    assert after.startswith("title=quiet\nkernelopt=")
    assert after.endswith("\nbuild=1\n")
    assert after.split("\n")[1].removeprefix("kernelopt=").split() == edited(words, edit)
    assert edit_boot_cfg(after, edit) == after


@given(st.binary(max_size=200), st.sampled_from(["loader/loader.conf", ENTRY]))
def test_any_bytes_without_an_edit_are_the_same(content: bytes, path: str) -> None:
    edit = BootEdit(delete=("none",))
    for dialect in (Dialect.SYSTEMD_BOOT, Dialect.ESXI):
        assert edit_config(ConfigFile(path, dialect, content), edit).content == content


@pytest.mark.parametrize(
    "line", [b"options" + b" quiet" * 150_000, b"linux /v\n" * 100_000, b"kernelopt" + b" " * 1_000_000]
)
def test_a_mebibyte_takes_linear_time(line: bytes) -> None:
    """Quadratic time would take hours."""
    for dialect in (Dialect.SYSTEMD_BOOT, Dialect.ESXI):
        config = ConfigFile(ENTRY, dialect, b"linux /v\n" + line)
        assert len(edit_config(config, BootEdit(delete=("quiet",), initrds=("a",))).content) < 2 * len(line)
