"""usage: python .ci/toolkit/modules.py: print the files of the modules that the toolkit imports."""

from __future__ import annotations

import ast
from pathlib import Path

_ENTRY = "image_service.toolkit"
_PACKAGE = Path("image_service", "__init__.py")  # it names the library of ISOs, for type checkers


def _file_of(module: str) -> Path | None:
    path = Path(*module.split("."))
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in candidates if file.is_file()), None)


def _imported(file: Path) -> list[str]:
    """Return the names that a module imports, for annotations too, and the packages that contain them."""
    nodes = ast.walk(ast.parse(file.read_text()))
    names = [
        f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("image_service")
        for alias in node.names
    ]
    return [
        ".".join(parts[:count])
        for parts in (name.split(".") for name in names)
        for count in range(1, len(parts) + 1)
    ]


def find_modules() -> set[Path]:
    """Return the files of the toolkit, and of all that they import, directly or not."""
    pending = {*Path(*_ENTRY.split(".")).rglob("*.py")}
    found: set[Path] = set()
    while pending:
        file = pending.pop()
        found.add(file)
        names = _imported(file) if file != _PACKAGE else []
        pending |= {path for name in names if (path := _file_of(name))} - found
    return found


if __name__ == "__main__":
    print("\n".join(sorted(map(str, find_modules()))))  # noqa: T201 - its output
