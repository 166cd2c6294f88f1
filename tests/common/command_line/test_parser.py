from __future__ import annotations

import pytest

from image_service.common.command_line.parser import CommandParser


@pytest.fixture
def parser() -> CommandParser:
    parser = CommandParser(prog="program")
    parser.add_argument("first")
    parser.add_argument("second", nargs="?")
    parser.add_argument("-o", "--option")
    parser.add_argument("--flag", action="store_true")
    return parser


@pytest.mark.parametrize(
    "line",
    [
        "a b --option x --flag",
        "a --option x b --flag",
        "--flag a --option=x b",
        "-ox a --flag b",
        "--flag -o x a b",
        "--flag -o x -- a b",
        "-o x a --flag -- b",
    ],
)
def test_options_may_stand_anywhere(parser: CommandParser, line: str) -> None:
    parsed = parser.parse_args(line.split())
    assert vars(parsed) == {"first": "a", "second": "b", "option": "x", "flag": True}


def test_words_after_two_dashes_are_no_options(parser: CommandParser) -> None:
    parsed = parser.parse_args(["--flag", "--", "--option", "-"])
    assert vars(parsed) == {"first": "--option", "second": "-", "option": None, "flag": True}


@pytest.mark.parametrize("line", ["a --option=--", "-o-- a", "--option=-- -- a", "--flag a --option=--"])
def test_two_dashes_are_a_value_of_an_option_if_joined_to_it(parser: CommandParser, line: str) -> None:
    assert parser.parse_args(line.split()).option == "--"


def test_two_dashes_are_checked_as_any_value(
    parser: CommandParser, capsys: pytest.CaptureFixture[str]
) -> None:
    parser.add_argument("--number", type=int)
    parser.add_argument("--choice", choices=("one", "two"))
    parser.add_argument("--all", action="append", default=[])
    assert parser.parse_args(["a", "--all=--", "--all=b", "--all=--"]).all == ["--", "b", "--"]
    for option, reason in (
        ("number", "invalid int value: '--'"),
        ("choice", "must be one of one, two, not --"),
    ):
        with pytest.raises(SystemExit):
            parser.parse_args(["a", f"--{option}=--"])
        assert reason in capsys.readouterr().err


def test_dash_is_a_value(parser: CommandParser) -> None:
    parsed = parser.parse_args(["a", "-o", "-"])
    assert vars(parsed) == {"first": "a", "second": None, "option": "-", "flag": False}


def test_missing_value_of_an_option_is_an_error(
    parser: CommandParser, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args(["a", "--option"])
    assert "argument -o/--option: expected one argument" in capsys.readouterr().err
