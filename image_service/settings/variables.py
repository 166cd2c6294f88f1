"""Environment variables: each is declared once, with its parser, default and meaning."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import attrs

from image_service.settings import parsers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    ReadFile: TypeAlias = Callable[[str], str]

_Group = TypeVar("_Group", bound="attrs.AttrsInstance")


@attrs.frozen
class Variable:
    """An environment variable."""

    names: tuple[str, ...]  # the first one that is set and not empty counts
    parse: Callable[[str], object]  # raises ``ValueError`` with one argument per fault
    default: str | None = None  # parsed if none of the names is set; None: the value is then ``absent``
    absent: object = None  # the value without text
    required: bool = False  # must be set, except in standalone mode
    is_secret: bool = False  # faults do not repeat the text
    from_file: bool = False  # ``@FILE`` as the text stands for the content of the file

    def is_set(self, environ: Mapping[str, str]) -> bool:
        """Return True if one of the names has a text."""
        return any(map(environ.get, self.names))

    def find(self, environ: Mapping[str, str]) -> tuple[str, str | None]:
        """Return the name that counts, and its text or the default; None: neither is there."""
        name = next((name for name in self.names if environ.get(name)), self.names[0])
        return name, environ.get(name) or self.default

    def resolve(self, text: str, read_file: ReadFile = parsers.file_content) -> str:
        """Return the text, or the content of the file that it stands for.

        Raises:
            ValueError: the file cannot be read.
        """
        return read_file(text.removeprefix("@")) if self.is_file(text) else text

    def is_file(self, text: str) -> bool:
        """Return True if the text is ``@FILE`` and stands for the content of the file."""
        return self.from_file and text.startswith("@")

    def read(
        self, environ: Mapping[str, str], faults: list[str], read_file: ReadFile = parsers.file_content
    ) -> object:
        """Return the value; ``absent``, with the faults added, if the text is wrong."""
        name, text = self.find(environ)
        if text is None:
            return self.absent
        try:
            return self.parse(self.resolve(text, read_file))
        except ValueError as error:
            hint = f"; to read this file, write {name}=@{text}" if self.from_file and text[0] == "/" else ""
            faults += [f"{self._show(name, text)}: {fault}{hint}" for fault in error.args]
            return self.absent

    def _show(self, name: str, text: str) -> str:
        """The variable and its text, without credentials."""
        if self.is_file(text):
            return f"{name}={text}" if text.startswith("@/") else name
        shown = re.sub(r"(?s).*@", "…@", text)  # without a user name and password in front of a host
        return name if self.is_secret else f"{name}={shown!r}"


def setting(*names: str, converter: Any = None, **declaration: Any) -> Any:  # noqa: ANN401 - of any type
    """Declare a field of a group that is read from an environment variable; its default is the variable's.

    The string below the declaration is its text in the reference page, in Markdown.
    """
    variable = Variable(names, **declaration)
    return attrs.field(
        factory=lambda: variable.read({}, []),
        converter=converter,
        repr=not variable.is_secret,
        metadata={Variable: variable},
    )


def variables_of(group: type[attrs.AttrsInstance]) -> list[Variable]:
    """Return the variables that a group is read from."""
    return [field.metadata[Variable] for field in attrs.fields(group)]


def groups_of(settings: type[attrs.AttrsInstance]) -> list[tuple[str, type[attrs.AttrsInstance]]]:
    """Return the name and class of each group of a role's settings."""
    defaults: dict[str, Any] = {field.name: field.default for field in attrs.fields(settings)}
    return [(name, default.factory) for name, default in defaults.items()]


def read_group(
    group: type[_Group],
    environ: Mapping[str, str],
    faults: list[str],
    read_file: ReadFile = parsers.file_content,
) -> _Group:
    """Read a group's variables.

    Args:
        group: an attrs class whose fields are all declared by ``setting``.
        environ: such as ``os.environ``.
        faults: those found are added.
        read_file: returns the content of the file with an absolute path; raises ValueError if it cannot.
    """
    variables = zip(attrs.fields(group), variables_of(group), strict=True)
    return group(**{field.name: variable.read(environ, faults, read_file) for field, variable in variables})
