r"""GRUB's menu: what its configuration sets and lists, as far as the files of the disk tell.

The script is run without a machine. Facts of the machine (its firmware, keys, devices) are unknown: a
condition on one may hold or not, and a variable that is set under it is unknown from then on. An unknown
variable stays in a text as ``$NAME``.

grubenv       ``# GRUB Environment Block``, lines NAME=VALUE in which ``\`` escapes a character, and ``#``
              up to 1024 bytes
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import UnreadScript
from image_service.core.formats.boot_loader.grub_script import (
    Command,
    Condition,
    expand_text,
    expand_word,
    parse_grub_script,
)
from image_service.core.formats.filesystems.file_tree import find_optional

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from image_service.core.formats.boot_loader.grub_script import Statement
    from image_service.core.formats.filesystems.file_tree import TreeNode

MAX_SCRIPT_BYTES = 1024 * 1024

_KNOWN_BY_MACHINE = re.compile(r"(?:grub|net|pxe|efi|smbios|tpm)_\w+|root|cmdpath|config_file|\?|[0-9*@#]+")
_FEATURE = "feature_"  # those of every GRUB 2 since 2.00
_DEVICE = re.compile(r"\([^()]*\)")
_LINUX = re.compile(r"linux(?:16|efi)?")
_INITRD = re.compile(r"initrd(?:16|efi)?")
_MAX_COMMANDS = 5_000
_MAX_CALLS = 6
_MAX_SOURCES = 32
_MAX_VALUE = 16 * 1024  # characters, also of a command; a kernel takes 4096 bytes of arguments at most
_MAX_VARIABLES = 4096
_MAX_TEST_WORDS = 64


@attrs.frozen
class MenuItem:
    """An item of the menu.

    Args:
        title: as shown.
        id: for ``default``; "" if it has none.
        body: its commands; of a submenu, those that list its items.
        is_submenu: True for a submenu.
        is_certain: False if the item is there on some machines only.
        is_blscfg: True in the place of all entries of the Boot Loader Specification.
    """

    title: str = ""
    id: str = ""
    body: tuple[Statement, ...] = ()
    is_submenu: bool = False
    is_certain: bool = True
    is_blscfg: bool = False


@attrs.frozen
class LinuxCommand:
    """The kernel that a menu item starts: paths without a device, and arguments with unknown variables."""

    kernel: str
    initrds: tuple[str, ...]
    arguments: tuple[str, ...]


def parse_grub_environment(text: str) -> dict[str, str]:
    """Return the variables in a grubenv."""
    lines = (line for line in text.replace("\\\n", "").splitlines() if not line.startswith("#"))
    pairs = (line.partition("=") for line in lines)
    return {name: re.sub(r"\\(.)", r"\1", value) for name, equals, value in pairs if equals}


class GrubMenu:
    """Runs GRUB's configuration.

    Args:
        root: of the file system that GRUB reads.
        directory: of GRUB in it: ``boot/grub``.
        environment: variables of its grubenv; None: it has one that cannot be read.
    """

    def __init__(self, root: TreeNode, directory: str, environment: Mapping[str, str] | None) -> None:
        self._root = root
        self._environment = environment
        self._directory = directory.strip("/")
        place = f"/{self._directory}"
        self._variables: dict[str, str] = {"prefix": place, "config_directory": place}
        self._functions: dict[str, tuple[Statement, ...]] = {}
        self._is_environment_unknown = False
        self._is_certain = True
        self._commands = 0
        self._sources = 0
        self._arguments: list[Sequence[str]] = []  # of the calls that are running
        self._kernels: list[LinuxCommand] = []  # of the item that is started
        self.items: list[MenuItem] = []

    def run(self, text: str) -> None:
        """Run a configuration; UnreadScript if it is beyond this reader."""
        self._run(parse_grub_script(text))

    def load_environment(self) -> None:
        """Set the variables of grubenv."""
        self._load(())

    def get(self, name: str) -> str:
        """Return the value of a variable: "" if it is not set, ``$NAME`` if it is unknown."""
        if name in self._variables:
            return self._variables[name]
        if name.startswith(_FEATURE):
            return "y"
        if name.isdecimal() and self._arguments:
            return "".join(self._arguments[-1][int(name[:3]) - 1 : int(name[:3])])
        is_known = not _KNOWN_BY_MACHINE.fullmatch(name) and not self._is_environment_unknown
        return "" if is_known else f"${name}"

    def expand(self, text: str) -> str:
        """Return text with the values of its variables."""
        return expand_text(text, self.get)

    def open_submenu(self, item: MenuItem) -> Sequence[MenuItem]:
        """Return the items of a submenu."""
        outer, self.items = self.items, []
        self._run(item.body)
        inner, self.items = self.items, outer
        return inner

    def start(self, item: MenuItem) -> LinuxCommand:
        """Return the kernel of a menu item; UnreadScript if it starts none, or not on each machine."""
        self._kernels.clear()
        self._run(item.body)
        if not self._kernels:
            raise UnreadScript(f"GRUB's menu item {item.title!r:.80} has no kernel of Linux")
        return self._kernels[-1]

    def _run(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            self._commands += 1
            if self._commands > _MAX_COMMANDS:
                raise UnreadScript(f"GRUB's configuration runs more than {_MAX_COMMANDS} commands")
            if isinstance(statement, Condition):
                self._run_condition(statement)
            else:
                self._run_command(statement)

    def _run_condition(self, condition: Condition) -> None:
        """Run the branch whose condition holds, and as uncertain those whose condition may hold."""
        before = self._is_certain
        for commands, branch in condition.branches:
            holds = self._holds(commands) if commands else True
            if holds is False:
                continue
            self._is_certain = self._is_certain and holds is True
            self._run(branch)
            if holds:
                break
            self._is_certain = False  # for the branches after one that may be taken
        self._is_certain = before

    def _run_command(self, command: Command) -> None:
        name = command.words[0] if command.words else ""
        if command.body is None:
            self._run_simple(name, command.words[1:])
        elif name == "function":
            self._functions["".join(command.words[1:2])] = command.body
        elif name in {"menuentry", "submenu"}:
            self._add_item(name, self._expand_words(command.words[1:]), command.body)
        else:  # a loop
            if name == "for":
                self._forget_results(["--set", *command.words[1:2]])
            before, self._is_certain = self._is_certain, False
            self._run(command.body)
            self._is_certain = before

    def _run_simple(self, name: str, written: Sequence[str]) -> None:
        words = self._expand_words(written)
        if name == "set":
            self._assign(written[:1])
        elif "=" in name:
            self._assign([name])
        elif name == "unset":
            for variable in words:
                self._set(variable, "")
        elif name == "load_env":
            self._load(words)
        elif name == "blscfg":
            self.items.append(MenuItem(is_certain=self._is_certain, is_blscfg=True))
        elif name in self._functions:
            self._call(self._functions[name], words)
        elif name in {"source", ".", "configfile"}:
            self._source(words)
        elif _LINUX.fullmatch(name) or _INITRD.fullmatch(name):
            self._boot(name, words)
        else:
            self._forget_results(words)

    def _expand_words(self, written: Sequence[str]) -> list[str]:
        words: list[str] = []
        length = 0
        for word in written:
            fields = expand_word(word, self.get)
            length += sum(map(len, fields))
            if length > _MAX_VALUE:
                raise UnreadScript("GRUB's configuration has a command that is too long")
            words += fields
        return words

    def _forget_results(self, words: Sequence[str]) -> None:
        """Take variables for unknown that a command such as ``search --set=NAME`` sets."""
        for word, following in pairwise((*words, "")):
            option, _, value = word.partition("=")
            if option == "--set":
                name = (value or following).rpartition(":")[2]
                self._variables[name] = f"${name}"

    def _call(self, statements: Sequence[Statement], words: Sequence[str]) -> None:
        if len(self._arguments) == _MAX_CALLS:
            raise UnreadScript(f"GRUB's configuration has more than {_MAX_CALLS} calls in each other")
        self._arguments.append(words)
        self._run(statements)
        self._arguments.pop()

    def _source(self, words: Sequence[str]) -> None:
        node = self._find(words[0]) if words else None
        if isinstance(node, str):  # which file is unknown, and so what it sets
            self._variables["default"] = "$default"
        elif node is not None and node.size <= MAX_SCRIPT_BYTES:
            self._sources += 1
            if self._sources > _MAX_SOURCES:
                raise UnreadScript(f"GRUB's configuration reads more than {_MAX_SOURCES} files")
            self._call(parse_grub_script(node.read().decode(errors="replace")), ())

    def _find(self, path: str) -> TreeNode | str | None:
        """Return the file of a path; None if there is none; the path if that is unknown."""
        if "$" in path or _DEVICE.match(path):
            return path
        name = path.strip("/")
        if node := find_optional(self._root, name):
            return node
        return None if name.startswith(f"{self._directory}/") else path

    def _assign(self, written: Sequence[str]) -> None:
        name, equals, value = "".join(written).partition("=")
        if equals:
            self._set(name, " ".join(expand_word(value, self.get)))

    def _set(self, name: str, value: str) -> None:
        if len(value) > _MAX_VALUE or len(self._variables) > _MAX_VARIABLES:
            raise UnreadScript("GRUB's configuration has a variable that is too long, or too many")
        is_known = self._is_certain or self.get(name) == value
        self._variables[name] = value if is_known else f"${name}"

    def _load(self, words: Sequence[str]) -> None:
        names = [word for word in words if not word.startswith("-") and "/" not in word]
        if self._environment is None:
            self._is_environment_unknown = True
        for name, value in (self._environment or {}).items():
            if not names or name in names:
                self._set(name, value)

    def _add_item(self, kind: str, words: Sequence[str], body: tuple[Statement, ...]) -> None:
        title, identifier = "", ""
        rest = iter(words)
        for word in rest:
            if word in {"--id", "--class", "--users", "--hotkey", "--source"}:
                value = next(rest, "")
                identifier = value if word == "--id" else identifier
            elif not word.startswith("--") and not title:
                title = word
        self.items.append(MenuItem(title, identifier, body, kind == "submenu", self._is_certain))

    def _boot(self, name: str, words: Sequence[str]) -> None:
        if not self._is_certain:
            raise UnreadScript(f"GRUB's configuration has {name} under a condition that only a machine knows")
        paths = [_DEVICE.sub("", word, count=1) for word in words]
        if _LINUX.fullmatch(name) and paths:
            self._kernels.append(LinuxCommand(paths[0], (), tuple(words[1:])))
        elif self._kernels:
            self._kernels[-1] = attrs.evolve(self._kernels[-1], initrds=tuple(paths))

    def _holds(self, commands: Sequence[Statement]) -> bool | None:
        """Return whether the last of a condition's commands succeeds; None: unknown."""
        command = commands[-1]
        if isinstance(command, Condition) or len(commands) > 1 or not command.words:
            return None
        name, *rest = command.words
        if name in {"true", "false"}:
            return name == "true"
        if name not in {"[", "test"}:
            return None
        return self._test(self._expand_words([word for word in rest if word != "]"]))

    def _test(self, words: Sequence[str]) -> bool | None:
        """Evaluate ``test``: ``-o`` binds less than ``-a``, and that less than ``!``."""
        if len(words) > _MAX_TEST_WORDS:
            return None
        for operator, decisive in (("-o", True), ("-a", False)):
            if operator in words:
                at = words.index(operator)
                sides = (self._test(words[:at]), self._test(words[at + 1 :]))
                if decisive in sides:
                    return decisive
                return None if None in sides else not decisive
        if words and words[0] == "!":
            inner = self._test(words[1:])
            return None if inner is None else not inner
        return self._test_one(words)

    def _test_one(self, words: Sequence[str]) -> bool | None:
        if len(words) == 2 and words[0] in {"-f", "-e", "-s", "-d"}:  # noqa: PLR2004 - operator and operand
            return self._is_there(words[1], needs_content=words[0] == "-s")
        if any("$" in word for word in words):
            return None
        if len(words) <= 1:
            return bool(words and words[0])
        if words[0] in {"-n", "-z"}:
            return bool(words[1]) is (words[0] == "-n")
        if len(words) == 3:  # noqa: PLR2004 - two operands
            compare = _COMPARISONS.get(words[1])
            return compare(words[0], words[2]) if compare else None
        return None

    def _is_there(self, path: str, *, needs_content: bool) -> bool | None:
        if path.endswith("/grubenv") and "$" not in path:
            return self._environment != {}
        node = self._find(path)
        if isinstance(node, str):
            return None
        return node is not None and (node.size > 0 or not needs_content)


_COMPARISONS: Mapping[str, Callable[[str, str], bool]] = {
    "=": lambda one, other: one == other,
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
}
