from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from image_service.coreos.kargs import append, check_argument, render_area
from image_service.coreos.live_iso import KargsArea, KargsAreas
from image_service.errors import KernelArgumentInvalid, KernelArgumentsTooLarge

AREA = KargsArea(0, b"#", b"\n")

# The rule in another notation: words of plain characters, and quoted ones between.
LEGAL = re.compile(r"""([ !%(-:=?-\[\]^_a-z~]|"[ !#%&'(-\[\]^-_a-~]*")*""")


@pytest.mark.parametrize(
    "argument",
    [
        "quiet",
        "a=b",
        "foo=1 bar=2",
        " padded ",
        '"a b"',
        'x="a b"',
        "dyndbg=\"file drivers/usb/* +p; func a|b {c} <d> 'e' # & f\"",
        'a""b',
        '""',
        "ip=10.0.0.1::10.0.0.254:255.255.255.0:host:eno1:none",
        "rd.luks.options=discard,no-read-workqueue",
        "console=ttyS0,115200n8",
        "a=!%()*+,-./:=?@[]^_~",
    ],
)
def test_what_boot_loaders_read_alike_is_legal(argument: str) -> None:
    check_argument(argument)


@pytest.mark.parametrize("character", ";&|<>{}'#")
def test_what_ends_a_command_must_be_quoted(character: str) -> None:
    check_argument(f'x="a{character}b"')
    for argument in (f"a{character}b", f'"a"{character}"b"', character):
        with pytest.raises(KernelArgumentInvalid, match=rf"{re.escape(ascii(character))} at .*quotes"):
            check_argument(argument)


@pytest.mark.parametrize(
    "character", ["$", "`", "\\", "\0", "\t", "\n", "\r", "\x1b", "\x7f", "\x80", "ä", "\u2028", "\ud800"]
)
def test_what_is_never_legal(character: str) -> None:
    for argument in (f"a{character}b", f'"a{character}b"', f"a{character}"):
        with pytest.raises(KernelArgumentInvalid, match=re.escape(f"{character!a} at position")) as caught:
            check_argument(argument)
        caught.value.detail.encode("ascii")


@pytest.mark.parametrize("argument", ['"', 'a="b', '"a" "', 'a="b;c'])
def test_quotes_come_in_pairs(argument: str) -> None:
    with pytest.raises(KernelArgumentInvalid, match="odd number of double quotes"):
        check_argument(argument)


@pytest.mark.parametrize("argument", ["", " ", "   "])
def test_an_empty_argument_is_a_mistake(argument: str) -> None:
    with pytest.raises(KernelArgumentInvalid, match="empty"):
        check_argument(argument)


def test_a_refusal_does_not_quote_the_argument() -> None:
    with pytest.raises(KernelArgumentInvalid) as caught:
        check_argument("password=hunter2;")
    assert caught.value.detail == "a kernel argument has ';' at position 16, outside double quotes"


def is_legal(argument: str) -> bool:
    try:
        check_argument(argument)
    except KernelArgumentInvalid:
        return False
    return True


ARGUMENTS = st.text(st.characters(max_codepoint=0x7F), min_size=1).filter(is_legal) | st.from_regex(
    LEGAL, fullmatch=True
).filter(lambda argument: bool(argument.strip()))


@given(st.text(st.sampled_from("ab= \"$`\\;&|<>{}'#\n\t~!\x7fä")))
@example("~")
@example("^")
def test_the_rule_is_the_grammar(argument: str) -> None:
    assert is_legal(argument) == bool(argument.strip() and LEGAL.fullmatch(argument))


@given(ARGUMENTS)
def test_a_shell_like_lexer_takes_only_the_quotes_away(argument: str) -> None:
    words = shlex.split(argument, comments=True, posix=True)
    assert "".join(words).replace(" ", "") == argument.replace('"', "").replace(" ", "")


@pytest.mark.parametrize(
    ("current", "arguments", "expected"),
    [
        ("", [], ""),
        ("a b", [], "a b"),
        ("", ["a"], "a"),
        ("a", ["b", "c"], "a b c"),
        ("a", ["a", "a"], "a a a"),
        (" a ", [" b "], "a  b"),
        ("a", ["b=1 c=2", 'd="e f"'], 'a b=1 c=2 d="e f"'),
    ],
)
def test_appending(current: str, arguments: list[str], expected: str) -> None:
    assert append(current, arguments) == expected


@given(st.lists(ARGUMENTS), st.lists(ARGUMENTS))
def test_appending_bit_by_bit_is_appending_at_once(first: list[str], second: list[str]) -> None:
    assert append(append("quiet", first), second) == append("quiet", [*first, *second])
    assert append("quiet", first) == " ".join(["quiet", *(argument.strip() for argument in first)])


def test_an_area_is_arguments_end_and_fill() -> None:
    assert render_area(KargsAreas("", 10, (AREA,)), AREA, " a=b ") == b"a=b\n######"
    zeros = KargsArea(0, b"\0", b"\0")
    assert render_area(KargsAreas("", 10, (zeros,)), zeros, "a=b") == b"a=b" + bytes(7)


def test_the_end_needs_a_byte_of_the_area() -> None:
    areas = KargsAreas("", 10, (AREA,))
    assert render_area(areas, AREA, "123456789") == b"123456789\n"
    with pytest.raises(KernelArgumentsTooLarge, match=r"take 10 bytes, .* hold 9"):
        render_area(areas, AREA, "1234567890")


def test_sizes_are_bytes() -> None:
    with pytest.raises(KernelArgumentsTooLarge, match="take 6 bytes"):
        render_area(KargsAreas("", 6, (AREA,)), AREA, "äöü")


@given(st.lists(ARGUMENTS), st.integers(1, 2048), st.sampled_from([AREA, KargsArea(0, b"\0", b"\0")]))
def test_an_area_holds_what_was_written(arguments: list[str], size: int, area: KargsArea) -> None:
    text = append("quiet", arguments)
    areas = KargsAreas("quiet", size, (area,))
    if len(text) >= size:
        with pytest.raises(KernelArgumentsTooLarge):
            render_area(areas, area, text)
    else:
        rendered = render_area(areas, area, text)
        assert len(rendered) == size
        assert area.parse(rendered) == text
