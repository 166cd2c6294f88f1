"""The map of the package: layers, circles, sizes, and which packages may use Twisted and the reactor."""

from __future__ import annotations

import ast
from collections import defaultdict
from configparser import ConfigParser
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "image_service"
PLUGIN = ROOT / "twisted" / "plugins" / "image_service_plugin.py"

# From the bottom up. A package imports itself and packages of the layers before its own; packages of one
# layer do not import each other.
LAYERS = (
    ("__version__",),
    ("errors",),
    ("command_line",),
    ("formats",),
    ("transfer",),
    ("coreos",),
    ("files",),
    ("settings",),
    ("concurrency",),
    ("images",),
    ("database",),
    ("objects",),
    ("http",),
    ("mounts",),
    ("transport",),
    ("assisted",),
    ("snapshots",),
    ("links",),
    ("catalog",),
    ("streams",),
    ("serving",),
    ("observability",),
    ("management",),
    ("standalone",),
    ("admin",),
    ("jobs",),
    ("doctor",),
    ("loadtest",),
    ("imaging",),
    ("worker",),
    ("cli",),
    ("app",),
    ("tap",),
    ("__main__",),
)
POSITIONS = {name: position for position, layer in enumerate(LAYERS) for name in layer}
PURE = {
    "errors",
    "command_line",
    "formats",
    "coreos",
    "images",
    "http",
    "mounts",
    "transfer",
    "imaging",
    "doctor",
}
# A leaf imports only these packages of the service, and of all packages only `cli` imports it.
LEAVES: dict[str, set[str]] = {
    "doctor": {"errors", "command_line", "formats", "coreos"},
    "loadtest": set(),
    "imaging": {"__version__", "errors", "command_line", "formats", "transfer", "coreos"},
    "worker": {"__version__", "errors", "command_line", "concurrency"},
}
LOOSE_MODULES = {"__main__", "errors", "tap"}
MAX_MODULES = 16
REACTOR_USERS = {"cli", "app"}

MODULES = sorted(PACKAGE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.AST) -> Iterator[str]:
    """Every name that a module imports anywhere, as a dotted path; under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the package"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imports_of(path: Path) -> list[str]:
    return list(imported(ast.parse(path.read_text())))


def violates_layers(importer: str, name: str) -> bool:
    """Return True if package `importer` may not import the dotted `name`."""
    package, _, rest = name.partition(".")
    if package != "image_service":
        return False
    target = rest.partition(".")[0]
    if target == importer:
        return False
    if (importer in LEAVES and target not in LEAVES[importer]) or (target in LEAVES and importer != "cli"):
        return True
    return POSITIONS[target] >= POSITIONS[importer]


def test_every_package_has_a_layer() -> None:
    assert {package_of(path) for path in MODULES} - POSITIONS.keys() == {"__init__"}
    assert imports_of(PACKAGE / "__init__.py") == []


def test_imports_follow_the_layers() -> None:
    assert [
        (module_name(path), name)
        for path in MODULES
        for name in imports_of(path)
        if violates_layers(package_of(path), name)
    ] == []


@pytest.mark.parametrize(
    ("package", "name", "expected"),
    [
        ("images", "image_service.formats.newc", False),
        ("images", "image_service.images.base", False),
        ("coreos", "image_service.images.base.BaseImage", True),
        ("catalog", "image_service.http.dates", False),
        ("http", "image_service.transport.connection", True),
        ("errors", "image_service.settings", True),
        ("coreos", "twisted.internet", False),
        ("loadtest", "image_service.errors", True),
        ("app", "image_service.loadtest.run", True),
        ("cli", "image_service.loadtest.run", False),
        ("imaging", "image_service.formats.newc", False),
        ("imaging", "image_service.files.atomic", True),
        ("admin", "image_service.imaging.dependencies", True),
    ],
)
def test_layer_rule_accepts_and_refuses(package: str, name: str, *, expected: bool) -> None:
    assert violates_layers(package, name) is expected


def import_circles() -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan's algorithm)."""
    names = {module_name(path) for path in MODULES}

    def module_of(name: str) -> str | None:
        return name if name in names else parent if (parent := name.rpartition(".")[0]) in names else None

    graph = {
        module_name(path): {
            target
            for name in imports_of(path)
            if (target := module_of(name)) and target != module_name(path) and "." in target
        }
        for path in MODULES
    }
    indices: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(module: str) -> None:
        indices[module] = lowest[module] = len(indices)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in indices:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], indices[target])
        if lowest[module] == indices[module]:
            component = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(component) > 1:
                circles.append(sorted(component))

    for module in sorted(graph):
        if module not in indices:
            visit(module)
    return circles


def test_no_import_circles_under_type_checking_either() -> None:
    assert import_circles() == []


def test_class_names_are_unique() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module_name(path))
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_packages_have_at_most_16_direct_modules() -> None:
    counts: dict[str, int] = defaultdict(int)
    for path in MODULES:
        if path.name not in {"__init__.py", "__main__.py"}:
            counts[str(path.parent.relative_to(PACKAGE))] += 1
    assert {package: count for package, count in counts.items() if count > MAX_MODULES} == {}


def test_setup_cfg_lists_every_package() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packages = {module_name(path.parent) for path in MODULES}
    assert set(setup["options"]["packages"].split()) == {*packages, "twisted.plugins"}


def test_only_errors_and_the_plugin_entry_are_loose_modules() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", *LOOSE_MODULES}


def test_pure_packages_import_no_twisted() -> None:
    assert [
        (module_name(path), name)
        for path in MODULES
        for name in imports_of(path)
        if package_of(path) in PURE and name.split(".")[0] in {"twisted", "zope", "treq"}
    ] == []


def test_no_module_imports_the_reactor_at_module_level() -> None:
    """An import at module level would install the default reactor for every importer."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    importers = [path for path in MODULES if "twisted.internet.reactor" in imports_of(path)]
    assert {package_of(path) for path in importers} <= REACTOR_USERS
    for path in importers:
        tree = ast.parse(path.read_text())
        at_import = [name for node in tree.body if not isinstance(node, functions) for name in imported(node)]
        assert "twisted.internet.reactor" not in at_import, module_name(path)


def test_only_the_engine_imports_temporalio() -> None:
    importers = {
        module_name(path.parent)
        for path in MODULES
        if any(name.split(".")[0] == "temporalio" for name in imports_of(path))
    }
    assert importers == {"image_service.jobs.engine"}


def test_the_plugin_imports_nothing_of_the_package() -> None:
    assert [name for name in imports_of(PLUGIN) if name.startswith("image_service")] == []
