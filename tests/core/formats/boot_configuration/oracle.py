"""What an edit must make of a list of arguments, and what GRUB passes to kernels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from image_service.core.formats.boot_configuration.boot_edit import BootEdit
from image_service.core.formats.boot_loader.grub_script import Command, expand_word, parse_grub_script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from image_service.core.formats.boot_loader.grub_script import Statement


def edited(arguments: Sequence[str], edit: BootEdit) -> list[str]:
    kept = [dict(edit.replace).get(word, word) for word in arguments if not deleted(word, edit)]
    cut = next((at for at, word in enumerate(kept) if word in {"---", "--"}), len(kept))
    return [*kept[:cut], *edit.append, *kept[cut:]]


def deleted(word: str, edit: BootEdit) -> bool:
    return any(
        word == each or (each.endswith("=") and each.count("=") == 1 and word.startswith(each))
        for each in edit.delete
    )


def edits(characters: str, words: Sequence[str]) -> st.SearchStrategy[BootEdit]:
    """Edits that append what they delete, and so can be repeated; they replace by words of no other edit."""
    new = st.text(characters, min_size=1, max_size=8).filter(
        lambda word: word not in {"--", "---"} and not word.startswith("initrd=")
    )
    old = st.sampled_from(words)
    return st.builds(
        lambda append, delete, replace: BootEdit(
            append=tuple(append),
            delete=(*delete, *append),
            replace=tuple((word, f"new.{number}") for number, word in enumerate(replace)),
            initrds=("extra/a.img",),
        ),
        st.lists(new, max_size=3, unique=True),
        st.lists(st.one_of(old, old.map(lambda word: word.partition("=")[0] + "=")), max_size=2),
        st.lists(old, max_size=2, unique=True),
    )


def grub_commands(content: bytes) -> list[tuple[str, list[str]]]:
    """Return the commands that start kernels and load initrds, with their words."""
    # GRUB drops carriage returns; the reader needs blanks around braces.
    text = content.decode().replace("\r", "").replace("{return}", "{ return }")
    found = []
    for words in _walk(parse_grub_script(text)):
        name = words[0].strip("${}")
        if re.fullmatch("linux(16|efi)?|initrd(16|efi)?", name):
            fields = [field for word in words[1:] for field in expand_word(word, lambda name: f"${name}")]
            found.append((name, fields))
    return found


def _walk(statements: Sequence[Statement]) -> Iterator[tuple[str, ...]]:
    for statement in statements:
        if not isinstance(statement, Command):
            for condition, branch in statement.branches:
                yield from _walk(condition)
                yield from _walk(branch)
            continue
        if statement.words:
            yield statement.words
        yield from _walk(statement.body or ())
