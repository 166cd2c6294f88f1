"""The value -- of each option of each verb of both programs: never dropped."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from image_service.cli import build_parser as build_service_parser
from image_service.toolkit.commands import _UsageError
from image_service.toolkit.commands import build_parser as build_toolkit_parser

if TYPE_CHECKING:
    from collections.abc import Iterator


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of a program that have no subcommands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for verb in action.choices.values():
            yield from leaves(verb)


VERBS = [verb for program in (build_service_parser(), build_toolkit_parser()) for verb in leaves(program)]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.prog)
def test_two_dashes_are_the_value_of_each_option_or_refused(
    verb: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = relax(verb, monkeypatch)
    for action in verb._actions:
        for name in action.option_strings if action.nargs is None else ():
            joined = f"{name}=--" if name.startswith("--") else f"{name}--"
            refusal = ""
            found: object = None
            try:
                found = getattr(verb.parse_args([*words, joined]), action.dest)
            except SystemExit:
                refusal = capsys.readouterr().err
            except _UsageError as refused:
                refusal = str(refused)
            (value,) = found if isinstance(found, list | tuple) else [found]
            is_refused = f"argument {'/'.join(action.option_strings)}: " in refusal
            assert is_refused or "--" in str(getattr(value, "value", value))


def relax(verb: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let nothing be required but the positional arguments, which may be anything; return these."""
    words = []
    for group in verb._mutually_exclusive_groups:
        monkeypatch.setattr(group, "required", False)
    for action in verb._actions:
        if action.option_strings:
            monkeypatch.setattr(action, "required", False)
        elif action.nargs in {None, "+"}:
            monkeypatch.setattr(action, "type", None)
            monkeypatch.setattr(action, "choices", None)
            words.append("x")
    return words


def test_both_programs_have_options_with_values() -> None:
    counts = {"image-service": 0, "image-toolkit": 0}
    for verb in VERBS:
        counts[verb.prog.split()[0]] += sum(
            action.nargs is None for action in verb._actions if action.option_strings
        )
    assert min(counts.values()) > 30
