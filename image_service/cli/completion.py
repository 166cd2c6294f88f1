"""``image-service completion``: writes the completion of its own command line for a shell."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.cli.command import AddParser

SHELLS = ("bash", "zsh", "fish")
_EXAMPLES = """\
examples:
  image-service completion bash >/etc/bash_completion.d/image-service
  image-service completion zsh >/usr/local/share/zsh/site-functions/_image-service
  image-service completion fish >~/.config/fish/completions/image-service.fish
"""


def add(add_parser: AddParser, root: argparse.ArgumentParser) -> None:
    """Declare the command; `root` is the parser of the whole command line."""
    parser = add_parser(
        "completion",
        help="print the completion for a shell",
        description="Print a script by which a shell completes the arguments of image-service.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="of which shell")
    parser.set_defaults(run=partial(run, root))


def run(root: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Print the script."""
    import shtab  # noqa: PLC0415 - no other command needs it

    for action in _actions(root):
        if "FILE" in str(action.metavar) or str(action.metavar).endswith(".iso"):
            action.complete = shtab.FILE  # type: ignore[attr-defined] # where shtab looks
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined] # same
    print(shtab.complete(root, options.shell))  # noqa: T201
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its subcommands."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - same
            for subcommand in action.choices.values():
                yield from _actions(subcommand)
