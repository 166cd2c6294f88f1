"""The command ``completion``: prints the completion of its program's command line for a shell."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.common.command_line.parser import AddParser

SHELLS = ("bash", "zsh", "fish")
_EXAMPLES = """\
examples:
  {program} completion bash >/etc/bash_completion.d/{program}
  {program} completion zsh >/usr/local/share/zsh/site-functions/_{program}
  {program} completion fish >~/.config/fish/completions/{program}.fish
"""


def add(add_parser: AddParser, root: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Declare the command; `root` is the parser of the whole command line."""
    parser = add_parser(
        "completion",
        help="print the completion for a shell",
        description=f"Print a script by which a shell completes the arguments of {root.prog}.",
        epilog=_EXAMPLES.format(program=root.prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="of which shell")
    parser.set_defaults(run=partial(run, root))
    return parser


def run(root: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Print the script."""
    print(render(root, options.shell))  # noqa: T201 - the command's output
    return 0


def render(root: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for a shell."""
    import shtab  # noqa: PLC0415 - no other command needs it

    for action in _actions(root):
        if "FILE" in str(action.metavar) or str(action.metavar).endswith(".iso"):
            action.complete = shtab.FILE  # type: ignore[attr-defined] # where shtab looks
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined] # same
    script: str = shtab.complete(root, shell)
    return script


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its subcommands."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - same
            for subcommand in action.choices.values():
                yield from _actions(subcommand)
