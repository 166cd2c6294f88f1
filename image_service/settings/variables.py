"""Environment variables: each is declared once, with its parser, default and meaning."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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

    def is_set(self, environ: Mapping[str, str]) -> bool:
        """Return True if one of the names has a text."""
        return any(map(environ.get, self.names))

    def read(self, environ: Mapping[str, str], faults: list[str]) -> object:
        """Return the value; ``absent``, with the faults added, if the text is wrong."""
        name = next((name for name in self.names if environ.get(name)), self.names[0])
        text = environ.get(name) or self.default
        if text is None:
            return self.absent
        try:
            return self.parse(text)
        except ValueError as error:
            shown = re.sub(r"(?s).*@", "…@", text)  # without a user name and password in front of a host
            found = "" if self.is_secret else f"={shown!r}"
            faults += [f"{name}{found}: {fault}" for fault in error.args]
            return self.absent


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


def read_group(group: type[_Group], environ: Mapping[str, str], faults: list[str]) -> _Group:
    """Read a group's variables.

    Args:
        group: an attrs class whose fields are all declared by ``setting``.
        environ: such as ``os.environ``.
        faults: those found are added.
    """
    variables = zip(attrs.fields(group), variables_of(group), strict=True)
    return group(**{field.name: variable.read(environ, faults) for field, variable in variables})
