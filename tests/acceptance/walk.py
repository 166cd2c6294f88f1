"""A reader who copies the commands of a tutorial into terminals, in their order."""

from __future__ import annotations

import re
import shlex
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A line with a prompt, the here document that it has, if any, and lines without a prompt.
_COMMAND = re.compile(
    r"^\$ (?P<command>.*<<'(?P<end>\w+)'\n(?s:.*?)^(?P=end)$|.*$)\n(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE
)
_END = "walk: end of the output"
_END_SECONDS = 60


@attrs.frozen
class Step:
    """A command, and what it prints.

    Args:
        command: of one line, or of several if it has a here document.
        output: `…` stands for any text; empty: it is not compared.
        terminal: the first, second, … of the document.
        ends_foreground: whether the reader ends first what runs in the terminal before it.
    """

    command: str
    output: str
    terminal: int
    ends_foreground: bool


def read_steps(document: Path) -> Iterator[Step]:
    """Yield the steps of a document. A new terminal is one that the text before the command mentions."""
    terminal, end = 0, 0
    text = document.read_text()
    for block in _BLOCK.finditer(text):
        prose, end = text[end : block.start()], block.end()
        terminal += len(re.findall(r"(?:another|third) terminal|in the site\b", prose, re.IGNORECASE))
        for match in _COMMAND.finditer(block[1]):
            ends_foreground = match.start() == 0 and "with Ctrl-C" in prose
            yield Step(match["command"], match["output"].strip(), terminal, ends_foreground)


@attrs.frozen
class Walk:
    """The commands of a tutorial in a directory.

    Args:
        directory: a checkout for the reader.
        environment: of each terminal.
        changes: texts of commands with what stands for them here.
        preamble: commands that each terminal begins with.
        foreground: regular expressions of commands that keep running, with what each prints once it serves.
    """

    directory: Path
    environment: Mapping[str, str]
    changes: Mapping[str, str]
    preamble: str
    foreground: Mapping[str, str]

    def take(self, steps: Sequence[Step]) -> None:
        """Run all commands; each must succeed and print what the document says."""
        with ExitStack() as stack:
            terminals: dict[int, Terminal] = {}
            for step in steps:
                if step.ends_foreground:
                    terminals[step.terminal - 1].end_foreground()
                if step.terminal not in terminals:
                    terminals[step.terminal] = stack.enter_context(self._terminal(step.terminal))
                command, expected = step.command, step.output
                for text, other in self.changes.items():
                    command, expected = command.replace(text, other), expected.replace(text, other)
                ready = [text for name, text in self.foreground.items() if re.search(name, command)]
                if ready:
                    terminals[step.terminal].start(command, ready[0])
                    continue
                output = terminals[step.terminal].run(command)
                assert is_like(output, expected), f"{command}\n{output}\nis not like\n{expected}"

    @contextmanager
    def _terminal(self, number: int) -> Iterator[Terminal]:
        log = self.directory / f"terminal-{number}"
        with subprocess.Popen(
            ["bash", "--norc"],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            terminal = Terminal(process, log)
            try:
                terminal.run(self.preamble)
                yield terminal
            finally:
                terminal.close()


@attrs.define
class Terminal:
    """A shell, and the log of the command that runs in its foreground."""

    process: subprocess.Popen[str]
    log: Path

    def run(self, command: str) -> str:
        """Run a command to its end; return what it printed."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(
            f"{{\n{command.rstrip() or ':'}\n}} </dev/null\nprintf '\\n{_END} %s\\n' $?\n"
        )
        self.process.stdin.flush()
        output = ""
        for line in self.process.stdout:
            if line.startswith(_END):
                assert line.split()[-1] == "0", f"{command}\n{output}"
                return output.strip()
            output += line
        raise AssertionError(f"{command}\n{output}\nended the terminal")

    def start(self, command: str, ready: str) -> None:
        """Start a command that keeps running, and wait until it serves."""
        log = shlex.quote(str(self.log))
        # With job control it has a process group of its own, and SIGINT ends it.
        self.run(f"set -m; ({command.rstrip()}) >{log} 2>&1 </dev/null & foreground=$!; set +m")
        serves = f"grep -q {shlex.quote(ready)} {log}"
        ended = f"! kill -0 $foreground && cat {log}"
        self.run(f"until {serves}; do sleep 0.1; {ended} && break; done; {serves}")

    def end_foreground(self) -> None:
        """Press Ctrl-C; the command must end well."""
        self.run("kill -INT -- -$foreground; wait $foreground")

    def close(self) -> None:
        """Kill what runs in the terminal, and the shell."""
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.write("test -z $foreground || kill -KILL -- -$foreground\n")
            self.process.stdin.close()
        try:
            self.process.wait(_END_SECONDS)
        finally:
            self.process.kill()


def is_like(output: str, expected: str) -> bool:
    """Return whether an output is like the one of a document."""
    pattern = ".*".join(map(re.escape, expected.split("…")))
    return not expected or re.search(f"^{pattern}$", output, re.MULTILINE | re.DOTALL) is not None
