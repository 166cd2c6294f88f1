"""Renders the manual pages of a program from its parser.

argparse's own texts are not used, because they differ between versions of Python.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from image_service import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def render_pages(root: argparse.ArgumentParser, exit_statuses: Mapping[str, str]) -> dict[str, str]:
    """Return the page of a program and one of each of its commands, by file name.

    Args:
        exit_statuses: their meanings, by number or numbers.
    """
    statuses = "".join(f".TP\n.B {number}\n{text}\n" for number, text in exit_statuses.items())
    commands = list(_subcommands(root))
    index = "".join(f".TP\n.BR {_page_name(parser)} (1)\n{_escape(text)}\n" for parser, text in commands)
    pages: list[tuple[argparse.ArgumentParser, str, str]] = [
        (root, root.description or "", f".SH COMMANDS\n{index}")
    ]
    pages += [(parser, text, "".join(_leaves(parser))) for parser, text in commands]
    return {
        f"{_page_name(parser)}.1": "".join(
            [_head(parser, text), *_describe(parser), below, f".SH EXIT STATUS\n{statuses}"]
        )
        for parser, text, below in pages
    }


def _head(parser: argparse.ArgumentParser, text: str) -> str:
    name = _page_name(parser)
    return (
        f'.TH {name.upper()} 1 "" "image-service {__version__}" "User Commands"\n'
        f".SH NAME\n{name} \\- {_escape(text.rstrip('.'))}\n"
    )


def _describe(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f".SH SYNOPSIS\n{_synopsis(parser)}"
    if parser.description:
        yield f".SH DESCRIPTION\n{_escape(parser.description)}\n"
    if options := _options(parser):
        yield f".SH OPTIONS\n{options}"
    if parser.epilog:
        yield f".SH NOTES\n.nf\n{_escape(parser.epilog.rstrip())}\n.fi\n"


def _synopsis(parser: argparse.ArgumentParser) -> str:
    words = [f"\\fB{_escape(parser.prog)}\\fR"]
    for action in _arguments(parser):
        word = _term(action, action.option_strings[:1])
        word = word if action.required else f"[{word}]"
        words.append(f"{word}..." if action.nargs in {"*", "+"} else word)
    return " ".join(words) + "\n"


def _options(parser: argparse.ArgumentParser) -> str:
    options = []
    for action in _arguments(parser):
        if not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - it has no public name
            text = (action.help or "") % {**vars(action), "prog": parser.prog}
            if action.choices:
                text += f"; one of {', '.join(action.choices)}"
            options.append(f".TP\n{_term(action, action.option_strings)}\n{_escape(text)}\n")
    return "".join(options)


def _term(action: argparse.Action, names: Sequence[str]) -> str:
    """Return names and value of an argument."""
    value = f"\\fI{_escape(str(action.metavar or action.dest.upper()))}\\fR"
    if not names:
        return value
    term = ", ".join(f"\\fB{_escape(name)}\\fR" for name in names)
    return term if action.nargs == 0 else f"{term} {value}"


def _arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.dest != "help"]  # noqa: SLF001 - no public way


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield the parsers of the subcommands, each with its help."""
    for action in _arguments(parser):
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - it has no public name
            for choice in action._choices_actions:  # noqa: SLF001 - argparse keeps the texts there only
                yield action.choices[choice.dest], choice.help or ""


def _leaves(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a section for each subcommand that has none itself."""
    for subcommand, text in _subcommands(parser):
        section = f".SH {subcommand.prog.upper()}\n{_escape(text)}\n.PP\n{_synopsis(subcommand)}"
        yield from list(_leaves(subcommand)) or [f"{section}{_options(subcommand)}"]


def _page_name(parser: argparse.ArgumentParser) -> str:
    return parser.prog.replace(" ", "-")


def _escape(text: str) -> str:
    """Return text that roff shows as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.split("\n"))
