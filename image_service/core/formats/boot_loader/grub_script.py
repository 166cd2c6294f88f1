r"""The language of grub.cfg: commands, words, ``if``, loops, and blocks of commands in braces.

A word is made of parts: ``'text'`` as it is, ``"text"`` with variables, ``\c``, ``$NAME`` and ``${NAME}``,
and other characters. A line end or ``;`` ends a command; ``#`` at the start of a word begins a comment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.core.errors import UnreadScript

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_TOKEN = re.compile(
    r"""(?P<skipped>[ \t\r]+|\\\n|\#[^\n]*)|(?P<end>[\n;])|(?P<brace>[{}])
    |(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|\$\{\w*\}|[^\s;'"\\])+)""",
    re.VERBOSE | re.DOTALL,
)
_PART = re.compile(
    r"""'(?P<literal>[^']*)'|"(?P<quoted>(?:\\.|[^"\\])*)"|\\(?P<escaped>.)
    |\$(?:\{(?P<braced>\w*)\}|(?P<name>\w+|[?*@\#]))|(?P<plain>[^'"\\$]+|\$)""",
    re.VERBOSE | re.DOTALL,
)
_IN_QUOTES = re.compile(
    r'\\(?P<escaped>["\\$\n])|\$(?:\{(?P<braced>\w*)\}|(?P<name>\w+))|(?P<plain>[^\\$]+|.)', re.DOTALL
)
_LOOPS = ("for", "while", "until")
_MAX_TOKENS = 200_000
_MAX_DEPTH = 32
_MAX_PARTS = 256  # of a word, and of a text between quotes

Lookup: TypeAlias = "Callable[[str], str]"
"""The value of a variable; ``$NAME`` if it is not known."""


@attrs.frozen
class Command:
    """A command: its words as written; of ``menuentry``, ``submenu``, ``function``, loops also a body."""

    words: tuple[str, ...]
    body: tuple[Statement, ...] | None = None


@attrs.frozen
class Condition:
    """An ``if``: pairs of a condition's commands and a branch's; the last branch may have no condition."""

    branches: tuple[tuple[tuple[Statement, ...], tuple[Statement, ...]], ...]


Statement: TypeAlias = "Command | Condition"


def parse_grub_script(text: str) -> tuple[Statement, ...]:
    """Return the statements of a script; UnreadScript if it is not of this language."""
    parser = _Parser(list(_tokens(text)))
    statements = parser.statements(())
    if parser.position < len(parser.tokens):
        raise UnreadScript("GRUB's configuration has an end without a beginning")
    return statements


def expand_word(word: str, lookup: Lookup) -> list[str]:
    """Return the words that a written word becomes: variables out of quotes are split, and may be none."""
    fields = [""]
    has_any = False
    parts = list(_PART.finditer(word))
    if len(parts) > _MAX_PARTS:
        raise UnreadScript(f"GRUB's configuration has a word of more than {_MAX_PARTS} parts")
    for part in parts:
        kind = part.lastgroup
        if kind in {"braced", "name"}:
            value = lookup(part[kind])
            has_any = has_any or bool(value.split())
            first, *others = re.split(r"\s+", value)
            fields[-1] += first
            fields += others
        else:
            has_any = True
            fields[-1] += expand_text(part[kind], lookup) if kind == "quoted" else part[kind or 0]
    return [field for field in fields if field] or ([""] if has_any else [])


def expand_text(text: str, lookup: Lookup) -> str:
    """Return text, as between double quotes, with the values of its variables."""
    parts = list(_IN_QUOTES.finditer(text))
    if len(parts) > _MAX_PARTS:
        raise UnreadScript(f"GRUB's configuration has a text of more than {_MAX_PARTS} parts")
    return "".join(
        lookup(part[kind]) if (kind := part.lastgroup) in {"braced", "name"} else part[kind or 0]
        for part in parts
    )


def _tokens(text: str) -> Iterator[str]:
    position = 0
    for _ in range(_MAX_TOKENS):
        if position == len(text):
            return
        token = _TOKEN.match(text, position)
        if token is None:
            break
        position = token.end()
        if token.lastgroup != "skipped":
            yield ";" if token.lastgroup == "end" else token[0]
    raise UnreadScript(f"GRUB's configuration cannot be read at character {position}")


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0
        self._depth = 0

    def statements(self, ends: Sequence[str]) -> tuple[Statement, ...]:
        """Read statements until one of the words `ends` begins a command, which stays, or all is read."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnreadScript(f"GRUB's configuration has more than {_MAX_DEPTH} blocks in each other")
        found: list[Statement] = []
        while self.position < len(self.tokens):
            word = self.tokens[self.position]
            if word in ends:
                break
            if word == ";":
                self.position += 1
            elif word in {"}", "then", "elif", "else", "fi", "do", "done"}:
                raise UnreadScript(f"GRUB's configuration has {word} without its beginning")
            else:
                found.append(self._condition() if word == "if" else self._command())
        self._depth -= 1
        return tuple(found)

    def _condition(self) -> Condition:
        branches = []
        word = "if"
        while word in {"if", "elif"}:
            self.position += 1
            condition = self.statements(("then",))
            self._expect("then")
            branches.append((condition, self.statements(("elif", "else", "fi"))))
            word = self._peek()
        if word == "else":
            self.position += 1
            branches.append(((), self.statements(("fi",))))
        self._expect("fi")
        return Condition(tuple(branches))

    def _command(self) -> Command:
        words: list[str] = []
        while (word := self._peek()) not in {";", "{", "}", ""}:
            words.append(word)
            self.position += 1
        if words and words[0] in _LOOPS:
            if self._peek() == ";":
                self.position += 1
            self._expect("do")
            return Command(tuple(words), self._block("done"))
        if self._peek() == "{":
            self.position += 1
            return Command(tuple(words), self._block("}"))
        return Command(tuple(words))

    def _block(self, end: str) -> tuple[Statement, ...]:
        body = self.statements((end,))
        self._expect(end)
        return body

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _expect(self, word: str) -> None:
        if self._peek() != word:
            raise UnreadScript(f"GRUB's configuration lacks {word}")
        self.position += 1
