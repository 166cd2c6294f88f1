from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from image_service.core.errors import KernelArgumentInvalid, KernelArgumentsTooLarge
from image_service.core.families.coreos.kargs import (
    MAX_CHARACTERS,
    KernelArgument,
    Operation,
    check_argument,
    edit_arguments,
    find_ineffective,
)
from tests.acceptance.clients import needs_client, run_client
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files

if TYPE_CHECKING:
    from pathlib import Path

# The rule as a grammar: words of plain characters, and quoted ones between.
LEGAL = re.compile(r"""([ !%(-:=?-\[\]^_a-z~]|"[ !#%&'(-\[\]^-_a-~]*")*""")


def append(value: str) -> KernelArgument:
    return KernelArgument(Operation.APPEND, value)


def delete(value: str) -> KernelArgument:
    return KernelArgument(Operation.DELETE, value)


def replace(value: str) -> KernelArgument:
    return KernelArgument(Operation.REPLACE, value)


# Single arguments


@pytest.mark.parametrize(
    "value",
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
def test_arguments_that_boot_loaders_read_alike_are_valid(value: str) -> None:
    check_argument(append(value))
    check_argument(delete(value))


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("character", ";&|<>{}'#")
def test_characters_that_end_a_command_must_be_quoted(character: str, operation: Operation) -> None:
    check_argument(KernelArgument(operation, f'a=b="a{character}b"'))
    for value in (f"a=b=a{character}b", f'a=b="a"{character}"b"', character):
        with pytest.raises(
            KernelArgumentInvalid, match=rf"{re.escape(ascii(character))} outside double quotes at"
        ):
            check_argument(KernelArgument(operation, value))


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize(
    "character", ["$", "`", "\\", "\0", "\t", "\n", "\r", "\x1b", "\x7f", "\x80", "ä", "\u2028", "\ud800"]
)
def test_characters_special_in_quotes_are_refused(character: str, operation: Operation) -> None:
    for value in (f"a=b={character}b", f'a=b="a{character}b"', f"a=b=c{character}"):
        with pytest.raises(KernelArgumentInvalid, match=re.escape(f"{character!a} at position")) as caught:
            check_argument(KernelArgument(operation, value))
        caught.value.detail.encode("ascii")


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("value", ['"', 'a=b="b', '"a" "', 'a="b;c'])
def test_unpaired_quote_is_refused(value: str, operation: Operation) -> None:
    with pytest.raises(
        KernelArgumentInvalid, match=f"unpaired double quote at position {value.rindex(chr(34))}"
    ):
        check_argument(KernelArgument(operation, value))


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("value", ["", " ", "   "])
def test_empty_argument_is_refused(value: str, operation: Operation) -> None:
    with pytest.raises(KernelArgumentInvalid, match="empty"):
        check_argument(KernelArgument(operation, value))


@pytest.mark.parametrize("value", ["a=b=c", "a=b=c d", 'a="b c"="d; e"', "a b=c=d", " a=b=c "])
def test_replacement_of_key_old_and_new_is_valid(value: str) -> None:
    check_argument(replace(value))


@pytest.mark.parametrize("value", ["a", "a=b", "=b=c", "a==c", "a=b=", "a=b=c=d", "==", "a=b=c="])
def test_malformed_replacement_is_refused(value: str) -> None:
    with pytest.raises(KernelArgumentInvalid, match="must be KEY=OLD=NEW"):
        check_argument(replace(value))
    check_argument(append(value))
    check_argument(delete(value))


@pytest.mark.parametrize("operation", Operation)
def test_refusal_does_not_quote_the_argument(operation: Operation) -> None:
    with pytest.raises(KernelArgumentInvalid) as caught:
        check_argument(KernelArgument(operation, "password=hunter2;"))
    assert caught.value.detail == "a kernel argument has ';' outside double quotes at position 16"
    with pytest.raises(KernelArgumentInvalid) as caught:
        check_argument(replace("hunter2"))
    assert "hunter2" not in caught.value.detail
    assert "hunter2" not in repr(append("hunter2"))


def is_legal(argument: KernelArgument) -> bool:
    try:
        check_argument(argument)
    except KernelArgumentInvalid:
        return False
    return True


VALUES = st.text(st.characters(max_codepoint=0x7F), min_size=1, max_size=40) | st.from_regex(
    LEGAL, fullmatch=True
)
APPENDED = st.builds(append, VALUES).filter(is_legal)


@given(st.text(st.sampled_from("ab= \"$`\\;&|<>{}'#\n\t~!\x7fä")))
@example("~")
@example("^")
def test_validity_matches_the_grammar(value: str) -> None:
    assert (
        is_legal(append(value)) == is_legal(delete(value)) == bool(value.strip() and LEGAL.fullmatch(value))
    )


@given(APPENDED)
def test_shell_lexer_removes_only_the_quotes(argument: KernelArgument) -> None:
    words = shlex.split(argument.value, comments=True, posix=True)
    assert "".join(words).replace(" ", "") == argument.value.replace('"', "").replace(" ", "")


# Editing


@pytest.mark.parametrize(
    ("current", "arguments", "expected"),
    [
        ("", [], ""),
        ("a b", [], "a b"),
        (" a ", [], "a"),
        ("", [append("a")], "a"),
        ("a", [append("b"), append("c")], "a b c"),
        ("a", [append("a"), append("a")], "a a a"),
        (" a ", [append(" b ")], "a  b"),
        ("a", [append("b=1 c=2"), append('d="e f"')], 'a b=1 c=2 d="e f"'),
        ("a b c", [delete("b")], "a c"),
        ("a b c", [delete(" a "), delete("c")], "b"),
        ("a b c d", [delete("b c")], "a d"),
        ("a", [delete("a")], ""),
        ("aa a=b", [delete("a"), delete("b")], "aa a=b"),
        ("x x x", [delete("x")], "x"),  # a match takes the blanks on both of its sides
        ('a="b c" d', [delete('a="b c"')], "d"),
        ("a=b c", [replace("a=b=d")], "a=d c"),
        ("a=b c=b", [replace("c=b=d e")], "a=b c=d e"),
        ("a=b a=c a=b", [replace("a=b=d")], "a=d a=c a=d"),
        ("a=b a=b", [replace("a=b=d")], "a=d a=b"),
        ("aa=b a=bb", [replace("a=b=d")], "aa=b a=bb"),
        ('a="b c"', [replace('a="b c"="d; e"')], 'a="d; e"'),
        # Deleted, then appended, then replaced, in any order.
        ("foo=old", [append("foo=old"), replace("foo=old=new"), delete("foo=old")], "foo=new"),
        ("a", [append("b"), delete("b")], "a b"),
        ("a=1", [replace("a=2=3"), replace("a=1=2")], "a=2"),
        ("a=1", [replace("a=1=2"), replace("a=2=3")], "a=3"),
    ],
)
def test_arguments_are_deleted_appended_and_replaced(
    current: str, arguments: list[KernelArgument], expected: str
) -> None:
    assert edit_arguments(current, arguments) == expected


@given(st.lists(APPENDED, max_size=20), st.lists(APPENDED, max_size=20))
def test_appending_in_steps_equals_appending_at_once(
    first: list[KernelArgument], second: list[KernelArgument]
) -> None:
    assert edit_arguments(edit_arguments("quiet", first), second) == edit_arguments(
        "quiet", [*first, *second]
    )
    assert edit_arguments("quiet", first) == " ".join(
        ["quiet", *(argument.value.strip() for argument in first)]
    )


# Few and similar words, so that operations find matches.
WORDS = st.sampled_from(["a", "b", "aa", "a=1", "a=2", "b=1", 'a="1 2"', 'b="1 ; 2"', '"a b"', '2"', '"1'])
SOME = st.lists(WORDS, min_size=1, max_size=3).map(" ".join)
CURRENT = st.lists(WORDS, max_size=8).map(" ".join)
VALUE = st.sampled_from(["1", "2", "1 2", '"1', '2"', '"1 2"', '"1 ; 2"', " "])
REPLACEMENTS = st.tuples(st.sampled_from(["a", "b", "a a", " a", '"a']), VALUE, VALUE).map("=".join)
ARGUMENTS = st.lists(
    (st.builds(append, SOME) | st.builds(delete, SOME) | st.builds(replace, REPLACEMENTS)).filter(is_legal),
    max_size=6,
)


def substituted(text: str, old: str, new: str) -> str:
    """Replace each ``old`` by ``new``, from left to right, position by position."""
    at = 0
    while at < len(text):
        found = all(text[at + number : at + number + 1] == old[number] for number in range(len(old)))
        if found:
            text = text[:at] + new + text[at + len(old) :]
        at += len(new) if found else 1
    return text


def edited_naively(current: str, arguments: list[KernelArgument]) -> str:
    def values(operation: Operation) -> list[str]:
        return [argument.value for argument in arguments if argument.operation is operation]

    text = " " + current + " "
    for value in values(Operation.DELETE):
        text = substituted(text, " " + value.strip(" ") + " ", " ")
    for value in values(Operation.APPEND):
        text += value.strip(" ") + " "
    for value in values(Operation.REPLACE):
        key, old, new = value.split("=")
        text = substituted(text, f" {key}={old} ", f" {key}={new} ")
    return text.strip(" ")


@given(CURRENT.filter(LEGAL.fullmatch), ARGUMENTS)
def test_editing_matches_naive_model_or_is_refused(current: str, arguments: list[KernelArgument]) -> None:
    expected = edited_naively(current, arguments)
    if LEGAL.fullmatch(expected):
        assert edit_arguments(current, arguments) == expected
    else:
        with pytest.raises(KernelArgumentInvalid):
            edit_arguments(current, arguments)


@given(current=CURRENT.filter(LEGAL.fullmatch), arguments=ARGUMENTS)
def test_editing_equals_coreos_installer(
    tmp_path_factory: pytest.TempPathFactory, current: str, arguments: list[KernelArgument]
) -> None:
    needs_client("coreos-installer")
    try:
        edited = edit_arguments(current, arguments)
    except KernelArgumentInvalid:
        assume(False)  # noqa: FBT003 - hypothesis's own way
    iso: Path = tmp_path_factory.getbasetemp() / "kargs.iso"
    iso.write_bytes(build_live_iso(live_files(kernel_arguments=current)))
    options = [f"--{argument.operation.value}={argument.value}" for argument in arguments]
    run_client("coreos-installer", "iso", "kargs", "modify", *options, iso)
    assert run_client("coreos-installer", "iso", "kargs", "show", iso).decode() == f"{edited}\n"


# Results that are refused


@pytest.mark.parametrize(
    ("current", "argument", "fault"),
    [
        ('a="b c"', 'a="b=d;"', "';' outside double quotes"),
        ('x=" a=b "', 'a=b="c;d"', "';' outside double quotes"),
        ('"a=b c"', '"a=b=d"', "an unpaired double quote"),
    ],
)
def test_replacement_that_exposes_quoted_text_is_refused(current: str, argument: str, fault: str) -> None:
    check_argument(replace(argument))
    with pytest.raises(KernelArgumentInvalid, match=f"would contain {fault}; .* as a whole"):
        edit_arguments(current, [replace(argument)])


def test_each_argument_is_checked() -> None:
    for argument in (append("a;b"), delete("$"), replace("a=b")):
        with pytest.raises(KernelArgumentInvalid):
            edit_arguments("a=b", [append("quiet"), argument])


@pytest.mark.parametrize("default", ["x=$y", "x='y'", "x;", 'x="', "x=ä"])
def test_faults_of_the_base_are_accepted_but_not_more_of_them(default: str) -> None:
    assert edit_arguments(default, []) == default
    assert edit_arguments(f"{default} a=1", [delete("a=1"), append("b")]) == f"{default} b"
    with pytest.raises(KernelArgumentInvalid, match="would contain ';' outside"):
        edit_arguments(f'a="b c" {default}', [replace('a="b=d;"')])


def test_too_many_characters_are_refused_before_replacing() -> None:
    words, new = MAX_CHARACTERS // 8, MAX_CHARACTERS // 2 - len("a=1=")
    arguments = [append("a=1 " * words), replace("a=1=" + new * "x")]
    edited = edit_arguments("", arguments)
    assert len(edited) == words // 2 * (len("a= ") + new) + words // 2 * len("a=1 ") - 1
    for argument in (append("b"), delete("b"), replace("b=1=2")):
        with pytest.raises(KernelArgumentsTooLarge, match="at most"):
            edit_arguments("", [*arguments, argument])


PRESENT = ["a", "a=1", "a=2", "b"]
EDITED = [*PRESENT, "a=1=2", "a=2=1", "b=1=1"]


@given(
    st.lists(st.sampled_from(PRESENT)),
    st.lists(st.tuples(st.sampled_from(Operation), st.sampled_from(EDITED))),
)
def test_edits_without_effect_can_be_left_out(current: list[str], edits: list[tuple[Operation, str]]) -> None:
    arguments = [
        KernelArgument(operation, value)
        for operation, value in edits
        if operation is not Operation.REPLACE or value.count("=") == 2
    ]
    text = " ".join(current)
    ineffective = find_ineffective(text, arguments)
    assert all(argument.operation is not Operation.APPEND for argument in ineffective)
    left_out = {id(argument) for argument in ineffective}
    effective = [argument for argument in arguments if id(argument) not in left_out]
    assert edit_arguments(text, effective) == edit_arguments(text, arguments)


def test_edits_without_effect_are_found_in_the_order_of_editing() -> None:
    absent = [replace("a=1=2"), delete("c=3"), delete("a=2")]
    arguments = [absent[0], append("c=3"), delete("b"), *absent[1:], replace("c=3=4")]
    assert find_ineffective("a b", arguments) == [absent[1], absent[2], absent[0]]
