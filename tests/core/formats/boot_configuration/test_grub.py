"""GRUB's configuration, edited; the words that it passes are read by the evaluator of GRUB's scripts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import KernelArgumentInvalid, KernelArgumentsTooLarge, Unprocessable
from image_service.core.formats.boot_configuration import grub
from image_service.core.formats.boot_configuration.boot_edit import MAX_ARGUMENTS_BYTES, BootEdit
from tests.acceptance.clients import run_client
from tests.core.formats.boot_configuration.media import MEDIA
from tests.core.formats.boot_configuration.oracle import edited, edits, grub_commands

if TYPE_CHECKING:
    from pathlib import Path

CONFIGS = [
    (family, path, content.encode())
    for family, files in MEDIA.items()
    for path, content in files.items()
    if path.endswith("grub.cfg")
]
EDIT = BootEdit(
    append=("auto=true", "ds=nocloud;s=/x/", "a=$b c"),
    delete=("quiet", "rd.live.check", "rd.live.check="),
    replace=(("console=tty0", "console=ttyS0"),),
    initrds=("extra/config.img",),
)
# All that GRUB passes as it is, but for backslashes.
PASSED = "".join(map(chr, range(0x20, 0x7F))).translate({ord(each): None for each in "\"'\\"})
WORDS = ["quiet", "ro", "a;b", "console=tty0", "x y", "--", "---", "{a}", "#no", "$x", "key=", "k=v=w", "\\"]


@pytest.mark.parametrize(("family", "path", "content"), CONFIGS)
def test_kernels_get_the_old_words_with_the_edit(
    family: str, path: str, content: bytes, tmp_path: Path
) -> None:
    after = grub.edit(content, EDIT, path)
    expected = []
    for name, words in grub_commands(content):
        if name.startswith("initrd"):
            device = re.match(r"(\(.*\))?", words[0])
            expected.append((name, [*words, f"{device[0] if device else ''}/extra/config.img"]))
        elif "memtest" in words[0]:
            expected.append((name, words))
        else:
            expected.append((name, [words[0], *edited(words[1:], EDIT)]))
    assert grub_commands(after) == expected, family
    assert grub.edit(after, BootEdit(delete=EDIT.append), path).count(b"auto=true") == 0
    (tmp_path / "grub.cfg").write_bytes(after)
    run_client("grub-script-check", tmp_path / "grub.cfg")


@pytest.mark.parametrize(("family", "path", "content"), CONFIGS)
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_other_lines_stay(family: str, path: str, content: bytes, ending: bytes) -> None:
    before = content.replace(b"\n", ending)
    after = grub.edit(before, EDIT, path)
    is_booting = re.compile(rb".*(?:linux|initrd)\S*\s+\(?[/$]")
    lines = before.split(b"\n")
    assert [line for line in after.split(b"\n") if not is_booting.match(line)] == [
        line for line in lines if not is_booting.match(line)
    ], family
    assert after.count(b"\n") == before.count(b"\n")
    assert after.count(b"\r") == before.count(b"\r")
    no_effect = BootEdit(delete=("absent", "absent="), replace=(("absent", "x"),), timeout_seconds=None)
    assert grub.edit(before, no_effect, path) == before


def test_edit_of_a_menu_entry() -> None:
    content = b"""\
menuentry 'a' {\r
\tlinuxefi ($root)/v  quiet\t"a b" \\\r
\t  x=1  --- splash # quiet\r
\tinitrdefi ($root)/i1 ($root)/i2 \r
}\r
"""
    edit = BootEdit(("k=v", "a b"), ("quiet", "a b"), (("x=1", "y;z"),), ("new.img",))
    assert (
        grub.edit(content, edit, "grub.cfg")
        == b"""\
menuentry 'a' {\r
\tlinuxefi ($root)/v \\\r
\t  'y;z' k=v 'a b'  --- splash # quiet\r
\tinitrdefi ($root)/i1 ($root)/i2 ($root)/new.img \r
}\r
"""
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"linux /v qui\\\r\net x", b"linux /v x y"),
        (b"linux /v\\\n quiet\\\r\n x\\\n", b"linux /v\\\r\n x y\\\n"),
        (b"linux /v 'qui'\"e\"\\t{x}", b"linux /v y{x}"),
        (b'linux /v "qui\\\net"', b"linux /v y"),
        (b"linux /v 'quiet", b"linux /v ' y"),
    ],
)
def test_words_that_continue(content: bytes, expected: bytes) -> None:
    assert grub.edit(content, BootEdit(("y",), ("quiet",)), "grub.cfg") == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("linux /v quiet", "linux /v quiet; initrd /a /b"),
        ("linux16 /v # none", "linux16 /v; initrd16 /a /b # none"),
        ("$linux /v quiet --- x", "$linux /v quiet --- x; $initrd /a /b"),
        ("linux /v; initrd /a", "linux /v; initrd /a /b"),
        ("linux /v; initrd (hd0)/a", "linux /v; initrd (hd0)/a (hd0)/b"),
        ("if x; then linux /v; else linuxefi /v; fi; initrd /i", None),
        ("linux /memtest86+.bin", "linux /memtest86+.bin"),
        ("linux", "linux"),
        ("echo linux /v", "echo linux /v"),
        ("chainloader /x.efi", "chainloader /x.efi"),
    ],
)
def test_initrds_follow_those_of_the_entry(command: str, expected: str | None) -> None:
    expected = expected or f"{command} /a /b"
    content = f"menuentry z {{ {command}\n}}\nmenuentry y {{ initrd /b /a\n}}\n"
    after = grub.edit(content.encode(), BootEdit(initrds=("/a", "b")), "grub.cfg").decode()
    assert after == content.replace(command, expected, 1)
    assert grub.edit(after.encode(), BootEdit(initrds=("/a", "b")), "grub.cfg").decode() == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("set timeout=-1\nmenuentry a {\n}\n", "set timeout=7\nmenuentry a {\n}\n"),
        ("timeout='-1'\n", "timeout=7\n"),
        ("if x; then set timeout=\nfi\n", "if x; then set timeout=7\nfi\n"),
        ("set timeout=0\nmenuentry a {\n}\n", None),
        ("set timeout=$later\nmenuentry a {\n}\n", None),
        ("menuentry a {\n}\nset timeout=9\n", None),
        ("menuentry a {\nset timeout=9\n}\n", "set timeout=7\nmenuentry a {\nset timeout=9\n}\n"),
        ("menuentry a {\r\n}\r\n", "set timeout=7\r\nmenuentry a {\r\n}\r\n"),
        (
            "if x; then timeout=10; fi\nmenuentry a {\n}\n",
            "set timeout=7\nif x; then timeout=10; fi\nmenuentry a {\n}\n",
        ),
        ("configfile /other.cfg\n", None),
        ("set timeout_style=menu\n", None),
    ],
)
def test_menu_that_waits_for_ever_gets_a_timeout(before: str, after: str | None) -> None:
    edit = BootEdit(timeout_seconds=7)
    assert grub.edit(before.encode(), edit, "boot/grub/grub.cfg").decode() == (after or before)
    assert grub.edit((after or before).encode(), edit, "boot/grub/grub.cfg").decode() == (after or before)


def test_included_file_gets_no_timeout() -> None:
    content = b"menuentry a {\n}\n"
    assert grub.edit(content, BootEdit(timeout_seconds=7), "boot/grub/install.cfg") == content


@pytest.mark.parametrize(
    "argument", ['a"b', "it's", "a\\b", "\\x20", "a\tb", "a\nb", "\0", "é", "", "---", "--"]
)
def test_argument_that_grub_would_change_is_refused(argument: str) -> None:
    for edit in (BootEdit(append=("fine", argument)), BootEdit(replace=(("fine", "x"), ("quiet", argument)))):
        with pytest.raises(
            KernelArgumentInvalid, match=r"^kernel argument 2 to (append|replace) (has .* GRUB|is empty)"
        ):
            grub.edit(b"linux /v quiet", edit, "grub.cfg")
        assert grub.edit(b"echo quiet", edit, "grub.cfg") == b"echo quiet"


def test_refusal_does_not_show_the_argument() -> None:
    with pytest.raises(KernelArgumentInvalid) as refusal:
        grub.edit(b"linux /v", BootEdit(append=("password=it's",)), "grub.cfg")
    assert "password" not in str(refusal.value)
    assert "password" not in repr(BootEdit(append=("password=x",)))


def test_hexadecimal_character_is_passed_by_a_grub_that_reads_some() -> None:
    content = b"linux /v inst.stage2=hd:LABEL=A\\x20B \"a\\x20\" 'b\\x20'"
    edit = BootEdit(
        ("inst.ks=hd:LABEL=A\\x20B:/ks.cfg", "a;\\x20"),
        ("inst.stage2=hd:LABEL=A\\x20B", "a\\x20", "b\\x20"),
    )
    expected = b"linux /v inst.ks=hd:LABEL=A\\x20B:/ks.cfg 'a;\\x20'"
    assert grub.edit(content, edit, "grub.cfg") == expected
    with pytest.raises(KernelArgumentInvalid, match=r"1 to append has .* at position 18, which GRUB"):
        grub.edit(b"linux /v", edit, "grub.cfg")


def test_more_arguments_than_the_kernel_takes_are_refused() -> None:
    content = b"linux /v " + b"x" * 1000
    fits = BootEdit(append=("y" * (MAX_ARGUMENTS_BYTES - 1002),))
    assert len(grub.edit(content, fits, "grub.cfg")) == len(content) + MAX_ARGUMENTS_BYTES - 1001
    with pytest.raises(KernelArgumentsTooLarge, match=r"in a/grub.cfg would have 2048 bytes"):
        grub.edit(
            content, BootEdit(append=(*fits.append[:0], "y" * (MAX_ARGUMENTS_BYTES - 1001))), "a/grub.cfg"
        )
    too_long = b"linux /v ab" + b" x" * 2000
    assert grub.edit(too_long, BootEdit(delete=("ab",)), "grub.cfg") == b"linux /v" + b" x" * 2000


@pytest.mark.parametrize("path", ["a b", "a,b", "é", "", "a\n", "a;b", "$a"])
def test_path_of_an_initrd_that_needs_quotes_is_refused(path: str) -> None:
    with pytest.raises(Unprocessable, match="the path of an initrd"):
        BootEdit(initrds=(path,))


@st.composite
def written(draw: st.DrawFn, word: str) -> str:
    """A word in one of the ways to write it in GRUB's language; ``$x`` stands for a variable."""
    if word == "$x":
        return draw(st.sampled_from(["$x", "${x}", '"$x"']))
    ways = [
        f"'{word}'",
        '"' + re.sub(r'(["\\$])', r"\\\1", word) + '"',
        re.sub(r"([^\w])", r"\\\1", word),
        "'" + word[:1] + "'" + re.sub(r"([^\w])", r"\\\1", word[1:]),
    ]
    return draw(st.sampled_from(ways))


@given(st.data(), st.lists(st.sampled_from(WORDS), max_size=6))
def test_words_in_any_quotes_are_edited(data: st.DataObject, words: list[str]) -> None:
    gaps = st.sampled_from([" ", "\t", "   ", " \\\n\t"])
    text = "".join(data.draw(gaps) + data.draw(written(word)) for word in words)
    end = data.draw(st.sampled_from(["\n", " \n", " # quiet 'ro\n", "; echo quiet\n", "\t;\n"]))
    head, tail = "# quiet\nmenuentry 'linux' {\n\tlinux /v", 'initrd /i\n}\necho ro "quiet"\n'
    before = f"{head}{text}{end}{tail}".replace("\n", data.draw(st.sampled_from(["\n", "\r\n"]))).encode()
    edit = data.draw(edits(PASSED, WORDS))
    after = grub.edit(before, edit, "x.cfg")
    assert grub_commands(before) == [("linux", ["/v", *words]), ("initrd", ["/i"])]
    assert grub_commands(after) == [
        ("linux", ["/v", *edited(words, edit)]),
        ("initrd", ["/i", "/extra/a.img"]),
    ]
    assert after.startswith(before[: before.index(b"linux /v")])
    assert after.endswith(before[before.index(b"\n}") :])
    assert grub.edit(after, edit, "x.cfg") == after


@given(st.binary(max_size=200), edits(PASSED, ["quiet", "\\", "a"]))
def test_any_bytes_are_edited(content: bytes, edit: BootEdit) -> None:
    nothing = BootEdit()
    assert grub.edit(content, nothing, "grub.cfg") == content
    assert grub.edit(b"x\n" + content, edit, "y").startswith(b"x\n")


@given(
    st.lists(
        st.sampled_from(
            ["linux /v", " quiet", "\n", ";", "{", "}", "'", '"', "\\", "$", "${", "#", "\r", " "]
        )
    )
)
def test_any_script_without_an_edit_is_the_same(parts: list[str]) -> None:
    content = "".join(parts).encode()
    assert grub.edit(content, BootEdit(delete=("none",), timeout_seconds=5), "x.cfg") == content


MIB = 1024 * 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        b"linux " + b"'" * MIB + b"'",
        b'linux /v "' + b'\\"' * (MIB // 2),
        b"linux /v " + b"${" * (MIB // 2),
        b"linux /v " + b"\\\r" * (MIB // 2),
        b"linux /v " + b"\\" + b"\r" * MIB,
        b"linux /v " + b"a'" * (MIB // 2),
        b"linux /v " + b"'\\'\"" * (MIB // 4),
        b"linux /v " + b"$x" * (MIB // 2),
        b"linux /v" + b" quiet" * (MIB // 6),
        b"{" * MIB,
        b"initrd (" + b"(" * MIB,
        b"if\n" * (MIB // 3),
        b"set timeout=" + b"\\\n" * (MIB // 2),
        b" " * MIB + b"\\",
        b"#" * MIB,
        b"linux /v a\n" * 20_000,
    ],
    ids=range(16),
)
def test_a_mebibyte_takes_linear_time(content: bytes) -> None:
    """Quadratic time would take hours."""
    edit = BootEdit(delete=("quiet", "x="), initrds=("a",), timeout_seconds=5)
    after = grub.edit(content, edit, "grub.cfg")
    assert len(after) < 3 * len(content)
