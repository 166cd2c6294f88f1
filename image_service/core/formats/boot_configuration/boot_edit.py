"""The edit of boot configurations, and its application to a list of kernel arguments.

An argument is what the kernel gets, without the quotes of a loader. What follows ``---`` or ``--`` is for the
installed system or for init, so arguments are added before it.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import KernelArgumentInvalid, KernelArgumentsTooLarge, Unprocessable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

MAX_ARGUMENTS_BYTES = 2047
"""What Linux keeps of its arguments on x86 and ARM, without a final NUL; it cuts off the rest silently."""

_SEPARATORS = ("---", "--")
_INITRD = re.compile(r"/[\w./+~@:-]+", re.ASCII)  # which mean themselves to each loader
_LINE = re.compile(rb"([ \t]*+)([\w-]++)[ \t]*+=?+[ \t]*+")
_OTHER_PROGRAM = re.compile(r"(?:.*/)?(?:memdisk|memtest|mt86)[^/]*", re.IGNORECASE)


class Dialect(enum.Enum):
    """The language of a boot configuration."""

    GRUB = enum.auto()
    SYSLINUX = enum.auto()
    SYSTEMD_BOOT = enum.auto()
    ESXI = enum.auto()


@attrs.frozen
class ConfigFile:
    """A boot configuration, and its path on the medium, which begins without a slash."""

    path: str
    dialect: Dialect
    content: bytes = attrs.field(repr=False)


def _to_initrds(paths: Iterable[str]) -> tuple[str, ...]:
    initrds = tuple(f"/{path.lstrip('/')}" for path in paths)
    for initrd in initrds:
        if not _INITRD.fullmatch(initrd):
            raise Unprocessable(
                f"the path of an initrd, {initrd!a:.100}, must consist of letters, digits and ._+~@:-/"
            )
    return initrds


@attrs.frozen
class BootEdit:
    """An edit of every entry that boots Linux or ESXi; deletion comes before replacement, and then appending.

    Args:
        append: arguments, added even if they are there already.
        delete: arguments; ``KEY=`` deletes that key with each value.
        replace: pairs of an argument and the one in its place.
        initrds: paths on the medium, named after the initrds (of ESXi: modules) of each entry if it does not
            name them yet.
        timeout_seconds: for menus that wait for ever; None leaves them so.
    """

    append: tuple[str, ...] = attrs.field(default=(), repr=False)
    delete: tuple[str, ...] = attrs.field(default=(), repr=False)
    replace: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    initrds: tuple[str, ...] = attrs.field(default=(), converter=_to_initrds)
    timeout_seconds: int | None = None

    def deletes(self, argument: str) -> bool:
        """Return True if an argument is one to delete."""
        key, equals, _ = argument.partition("=")
        return argument in self.delete or bool(equals and f"{key}=" in self.delete)


@attrs.frozen
class Loader:
    """How a loader passes arguments to a kernel.

    Args:
        name: for messages.
        forbidden: matches what it would not pass as it is.
        quote: writes an argument in its language.
    """

    name: str
    forbidden: re.Pattern[str]
    quote: Callable[[str], str] = str


@attrs.frozen
class Word:
    """A word of a configuration: offsets in it, and the value after the loader's quotes are removed.

    Args:
        gap: offset of the blanks before it, which are deleted with it.
        start: offset of its first byte.
        end: offset behind its last byte.
        value: the argument.
    """

    gap: int
    start: int
    end: int
    value: str


@attrs.frozen
class Splice:
    """Bytes that take the place of those from ``start`` to ``end``."""

    start: int
    end: int
    text: bytes


@attrs.frozen
class Line:
    """A line of a key and a value, which are separated by blanks or an equals sign.

    Args:
        indent: blanks before the key.
        key: in lower case.
        key_end: offset behind the key.
        start: offset of the value.
        end: offset behind the value, without the blanks that follow.
    """

    indent: bytes
    key: str
    key_end: int
    start: int
    end: int


def edit_arguments(
    words: Sequence[Word], home: int, edit: BootEdit, loader: Loader, path: str
) -> Iterator[Splice]:
    """Yield what changes the arguments of an entry.

    Args:
        words: the present arguments.
        home: the offset behind which the first argument belongs.
        edit: what to change.
        loader: the loader that reads the words.
        path: of the configuration, for messages.

    Raises:
        KernelArgumentInvalid: the loader would not pass an argument as it is.
        KernelArgumentsTooLarge: the edit makes them longer than `MAX_ARGUMENTS_BYTES`.
    """
    added = [_write(text, f"{n} to append", loader) for n, text in enumerate(edit.append, 1)]
    replacements = {old: (new, f"{n} to replace") for n, (old, new) in enumerate(edit.replace, 1)}
    growth = size = sum(len(argument) + 1 for argument in edit.append)
    place = home
    is_before = True
    for word in words:
        if edit.deletes(word.value):
            yield Splice(word.gap, word.end, b"")
            continue
        value, which = replacements.get(word.value, (word.value, ""))
        if which:
            yield Splice(word.start, word.end, _write(value, which, loader))
            growth += len(value) - len(word.value)
        size += len(value) + 1
        is_before = is_before and value not in _SEPARATORS
        place = word.end if is_before else place
    if added:
        yield Splice(place, place, b"".join(b" " + text for text in added))
    if growth > 0 and size > MAX_ARGUMENTS_BYTES:
        raise KernelArgumentsTooLarge(
            f"the kernel arguments of an entry in {path} would have {size} bytes; at most"
            f" {MAX_ARGUMENTS_BYTES} reach the kernel"
        )


def splice(content: bytes, splices: Iterable[Splice]) -> bytes:
    """Return content with splices, which do not overlap; those at one offset follow in their order."""
    pieces, position = [], 0
    for each in sorted(splices, key=lambda each: (each.start, each.end)):
        pieces += [content[position : each.start], each.text]
        position = each.end
    return b"".join((*pieces, content[position:]))


def read_lines(content: bytes) -> Iterator[Line]:
    """Yield the lines that begin with a key; comments do not."""
    for line in re.finditer(rb"[^\n]++", content):
        if match := _LINE.match(content, *line.span()):
            start = match.end()
            yield Line(
                match[1],
                match[2].decode().lower(),
                match.end(2),
                start,
                start + len(content[start : line.end()].rstrip()),
            )


def split_words(content: bytes, gap: int, end: int) -> Iterator[Word]:
    """Yield the words between two offsets, which blanks separate and no quotes join."""
    for match in re.compile(rb"\S++").finditer(content, gap, end):
        yield Word(gap, *match.span(), match[0].decode(errors="surrogateescape"))
        gap = match.end()


def line_end(content: bytes) -> bytes:
    """Return how the first line of a configuration ends."""
    return b"\r\n" if content.partition(b"\n")[0].endswith(b"\r") else b"\n"


def missing_initrds(names: Iterable[str], edit: BootEdit) -> list[str]:
    """Return the initrds of an edit that an entry, which has those of `names`, does not name."""
    present = set(names)
    return [initrd for initrd in edit.initrds if initrd not in present]


def may_be_linux(kernel: str) -> bool:
    """Return False if a path is that of a memory test or of a disk emulator, which are started as kernels."""
    return not _OTHER_PROGRAM.fullmatch(kernel)


def _write(argument: str, which: str, loader: Loader) -> bytes:
    if not argument or argument in _SEPARATORS:
        raise KernelArgumentInvalid(f"kernel argument {which} is empty or a separator of arguments")
    if fault := loader.forbidden.search(argument):
        raise KernelArgumentInvalid(
            f"kernel argument {which} has {fault[0]!a} at position {fault.start()}, which {loader.name}"
            " does not pass to the kernel as it is"
        )
    return loader.quote(argument).encode()
