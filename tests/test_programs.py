"""The programs that the package starts: in the sandbox, or for a reason that is named here."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).resolve().parents[1] / "image_service"
IN_SANDBOX = ("common/programs/sandbox.py", "run_sandboxed")
OUTSIDE = {
    ("common/programs/program.py", "run_program"): "starts what the sandbox prepares",
    ("common/programs/isolation.py", "_runs"): "tries which isolation works, by a program of this machine",
    (
        "common/programs/own_process.py",
        "passes_elsewhere",
    ): "a Python of this service, for its own function",
    ("jobs/engine/engine_child.py", "_spawn"): "the job engine, which listens on loopback",
    ("jobs/worker/toolkit.py", "_running"): "image-toolkit, which has a sandbox for each of its programs",
    ("jobs/worker/toolkit.py", "_first_line"): "asks programs of this machine for their versions",
    ("tools/loadtest/fleet/services.py", "start"): "the services of a fleet, which the load test loads",
    ("app/jobs/built_in_worker.py", "spawn"): "the worker of this service",
    ("app/processes/serving_process.py", "__init__"): "a process of this service",
}
STARTS = re.compile(
    r"(subprocess\.(run|call|check_\w+|Popen|getoutput|getstatusoutput)|os\.(exec\w+|spawn\w+|posix_spawnp?"
    r"|system|popen)|(.*\.)?(spawnProcess|getProcess\w+|create_subprocess_\w+|run_program|Popen))"
)


def starts(tree: ast.AST, function: str = "") -> Iterator[tuple[str, str]]:
    """Yield the calls that start a program, with the functions that they are in."""
    for node in ast.iter_child_nodes(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        name = node.name if is_function else function  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and STARTS.fullmatch(called := ast.unparse(node.func)):
            yield name, called
        yield from starts(node, name)


def test_starts_are_found() -> None:
    source = "def a():\n  subprocess.run([])\nasync def b():\n  with self.r.spawnProcess(1): os.execv(2)"
    found = list(starts(ast.parse(source)))
    assert found == [("a", "subprocess.run"), ("b", "self.r.spawnProcess"), ("b", "os.execv")]


def test_programs_start_in_the_sandbox_or_for_a_reason() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), function)
        for path in PACKAGE.rglob("*.py")
        if STARTS.search(source := path.read_text())
        for function, _ in starts(ast.parse(source))
    }
    assert found == {IN_SANDBOX, *OUTSIDE}
