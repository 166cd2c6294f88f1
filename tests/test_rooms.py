"""The rooms of the house: which may import which, and who may know Twisted and the reactor."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ROOT / "twisted" / "plugins" / "image_service_plugin.py"

# From left to right; a room imports from those to its left, and from itself. Siblings stand together.
ROOMS = (
    ("errors",),
    ("parsers", "http_dates"),
    ("os_images",),
    ("stream_sources",),
    ("config",),
    ("coreos",),
    ("images",),
    ("absences", "range_locks", "reloaded", "single_flight", "stamps"),
    ("http", "assisted", "catalog", "observe", "loadtest"),
    ("standalone", "cli"),
    ("composition",),
    ("workers",),
    ("tap",),
)
POSITIONS = {room: position for position, rooms in enumerate(ROOMS) for room in rooms}
PURE = {"errors", "parsers", "http_dates", "os_images", "stream_sources", "config", "coreos", "images"}

MODULES = sorted((ROOT / "image_service").rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "image_service").parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """Everything that is imported anywhere in a module, with the names that are taken out of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_of(path: Path) -> list[str]:
    return list(imported(ast.parse(path.read_text())))


def wrong(importer: str, name: str) -> bool:
    """Whether a room imports what is not to its left."""
    package, _, rest = name.partition(".")
    if package != "image_service":
        return False
    room = rest.partition(".")[0]
    return room != importer and POSITIONS[room] >= POSITIONS[importer]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_to_the_left(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        assert imports_of(path) == []
        return
    assert room in POSITIONS, f"{room} is a room without a place; give it one here"
    assert [name for name in imports_of(path) if wrong(room, name)] == []


@pytest.mark.parametrize(
    ("room", "name", "expected"),
    [
        ("images", "image_service.coreos.newc", False),
        ("images", "image_service.images.base", False),
        ("coreos", "image_service.images.base.BaseImage", True),
        ("catalog", "image_service.http.routes", True),
        ("http", "image_service.config.Settings", False),
        ("errors", "image_service.config", True),
        ("coreos", "twisted.internet", False),
    ],
)
def test_the_rule_tells_right_from_wrong(room: str, name: str, expected: object) -> None:
    assert wrong(room, name) is expected


@pytest.mark.parametrize(
    "path", [path for path in MODULES if room_of(path) in PURE], ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_pure_rooms_know_no_twisted(path: Path) -> None:
    assert [name for name in imports_of(path) if name.split(".")[0] in {"twisted", "zope", "treq"}] == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_takes_the_reactor_at_import(path: Path) -> None:
    """A function of an entry point may; a module that did would install it for whoever imports it."""
    tree = ast.parse(path.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    at_import = [name for node in tree.body if not isinstance(node, functions) for name in imported(node)]
    assert "twisted.internet.reactor" not in at_import
    assert room_of(path) in {"tap", "cli", "workers"} or "twisted.internet.reactor" not in imported(tree)


def test_the_plugin_imports_nothing_of_ours() -> None:
    assert [name for name in imports_of(PLUGIN) if name.startswith("image_service")] == []
