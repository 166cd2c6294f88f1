"""Runs ``image-toolkit`` in a process of its own for each call, and measures it.

One process imports the toolkit, with all verbs, and forks for each call: an interpreter for each would take
most of the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Call = Callable[[Sequence[str | Path]], "MeasuredCall"]


@attrs.frozen
class MeasuredCall:
    """The end of a call.

    Args:
        status: its exit status.
        output: standard output.
        messages: standard error.
        peak_bytes: resident memory of the process, or of the largest of its children.
        seconds: elapsed time.
    """

    status: int
    output: str
    messages: str
    peak_bytes: int
    seconds: float


@contextmanager
def measured_calls() -> Iterator[Call]:
    """Yield a function that calls ``image-toolkit`` with arguments."""
    command = [sys.executable, "-m", __name__]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout  # noqa: PT018 - pipes, for mypy

        def call(arguments: Sequence[str | Path]) -> MeasuredCall:
            assert process.stdin and process.stdout  # noqa: PT018 - as above
            process.stdin.write(json.dumps(list(map(str, arguments))) + "\n")
            process.stdin.flush()
            return MeasuredCall(**json.loads(process.stdout.readline()))

        yield call
        process.stdin.close()


def _measure(arguments: list[str]) -> dict[str, object]:
    from image_service.toolkit.commands import main  # noqa: PLC0415 - the test process does not need it

    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as messages:
        begin = time.monotonic()
        child = os.fork()
        if not child:
            os.dup2(output.fileno(), 1)
            os.dup2(messages.fileno(), 2)
            os._exit(main(arguments))
        _, status, usage = os.wait4(child, 0)
        seconds = time.monotonic() - begin
        output.seek(0)
        messages.seek(0)
        return {
            "status": os.waitstatus_to_exitcode(status),
            "output": output.read(),
            "messages": messages.read(),
            "peak_bytes": usage.ru_maxrss * 1024,
            "seconds": seconds,
        }


if __name__ == "__main__":
    from image_service.toolkit.commands import build_parser

    build_parser()
    import_module("oslo_utils.imageutils.format_inspector")  # which the verbs import when they open an image
    for line in sys.stdin:
        print(json.dumps(_measure(json.loads(line))), flush=True)  # noqa: T201 - the answer
