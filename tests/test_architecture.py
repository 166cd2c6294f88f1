"""The map of the package: who may import whom, circles, sizes, Twisted and the reactor."""

from __future__ import annotations

import ast
from collections import defaultdict
from configparser import ConfigParser
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_service.server import FOR_JOBS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "image_service"
PLUGIN = ROOT / "twisted" / "plugins" / "image_service_plugin.py"

# A folder imports itself and these; `jobs` of `server` only the modules that `image_service.server` lists.
MAY_IMPORT = {
    "core": set[str](),
    "common": {"core"},
    "settings": {"core", "common"},
    "toolkit": {"core", "common"},
    "tools": {"core", "common"},
    "server": {"core", "common", "settings"},
    "jobs": {"core", "common", "settings", "server"},
    "app": {"core", "common", "settings", "toolkit", "tools", "server", "jobs"},
    "cli": {"core", "common", "settings", "toolkit", "tools", "server", "jobs", "app"},
    "tap": {"core", "common", "settings", "server", "app"},
    "__main__": {"cli"},
    "": {"tools"},
}
COMMON_MAY_IMPORT = ("core.errors", "core.base_file", "core.formats")
# These, and what they import, import no Twisted.
PURE = ("core", "settings", "toolkit", "tools.doctor", "tools.iso", "server.http", "server.boot_progress")
REACTOR_USERS = {"app", "cli"}
MAX_MODULES = 16

FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """Return the dotted name below `image_service`; of the package itself the empty string."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


MODULES = {module_name(path): path for path in FILES}


def imported(tree: ast.AST) -> Iterator[str]:
    """Every name that a module imports anywhere, as a dotted path; under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the package"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


# Only names are kept: the garbage collection after each test would read the trees of all modules.
@cache
def names_of(path: Path) -> tuple[list[str], list[str]]:
    """Return what a module imports, and its classes."""
    tree = ast.parse(path.read_text())
    return list(imported(tree)), [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def imports_of(path: Path) -> list[str]:
    return names_of(path)[0]


@cache
def own_imports_of(module: str) -> frozenset[str]:
    """Return the modules of the package, without its own name, that a module of it imports."""
    names = {name.removeprefix("image_service.") for name in imports_of(MODULES[module])}
    return frozenset(
        name if name in MODULES else parent
        for name in names
        if name in MODULES or ((parent := name.rpartition(".")[0]) and parent in MODULES)
    )


def folder_of(module: str) -> str:
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


def violates_the_map(importer: str, target: str) -> bool:
    """Return True if the module `importer` may not import the module `target`."""
    own, other = importer.partition(".")[0], target.partition(".")[0]
    if own == other:
        return False
    if own == "common":
        return not target.startswith(COMMON_MAY_IMPORT)
    if (own, other) == ("jobs", "server"):
        return target.removeprefix("server.") not in FOR_JOBS
    return other not in MAY_IMPORT[own]


def test_the_top_level_is_the_map() -> None:
    assert {name.partition(".")[0] for name in MODULES} == set(MAY_IMPORT)
    assert own_imports_of("") == {"tools.iso.customization", "tools.iso.iso_file"}, "only the library"
    assert imports_of(PACKAGE / "server" / "__init__.py") == []


def test_imports_follow_the_map() -> None:
    assert [
        (module, target)
        for module in MODULES
        for target in own_imports_of(module)
        if violates_the_map(module, target)
    ] == []


def test_jobs_import_each_listed_module_of_the_server() -> None:
    used = {target for module in MODULES if module.startswith("jobs.") for target in own_imports_of(module)}
    assert [name for name in FOR_JOBS if f"server.{name}" not in used] == []


@pytest.mark.parametrize(
    ("importer", "target", "expected"),
    [
        ("core.images.base_image", "core.formats.newc", False),
        ("core.images.base_image", "common.files.atomic", True),
        ("common.files.atomic", "core.errors", False),
        ("common.files.atomic", "core.images.base_image", True),
        ("server.http.head", "settings.settings", False),
        ("server.http.head", "jobs.model", True),
        ("jobs.model", f"server.{FOR_JOBS[0]}", False),
        ("jobs.model", "server.transport.connection", True),
        ("tools.doctor.rules", "server.http.ranges", True),
        ("app.service", "tools.doctor.rules", False),
        ("app.service", "cli.serve", True),
        ("cli.loadtest", "tools.loadtest.command", False),
    ],
)
def test_the_map_accepts_and_refuses(importer: str, target: str, *, expected: bool) -> None:
    assert violates_the_map(importer, target) is expected


def circles(graph: Mapping[str, AbstractSet[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node (Tarjan's algorithm)."""
    indices: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        indices[node] = lowest[node] = len(indices)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in indices:
                visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], indices[target])
        if lowest[node] == indices[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in indices:
            visit(node)
    return found


def test_no_circles_of_modules_under_type_checking_either() -> None:
    assert circles({module: own_imports_of(module) - {module} for module in MODULES}) == []


def test_no_circles_of_folders() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module in MODULES:
        graph[folder_of(module)] |= {folder_of(target) for target in own_imports_of(module)}
    assert circles(graph) == []


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, [["b", "c"]]),
        ({"a": {"a"}}, []),
    ],
)
def test_circles_are_found(graph: dict[str, set[str]], expected: list[list[str]]) -> None:
    assert circles(graph) == expected


def test_class_names_are_unique() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module, path in MODULES.items():
        for name in names_of(path)[1]:
            homes[name].append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_generic_names_stand_once_in_a_top_level_folder() -> None:
    generic = {"api", "base_images", "boot_images", "build", "model", "service"}
    homes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in MODULES:
        top, _, rest = module.partition(".")
        if (name := rest.rpartition(".")[2]) in generic:
            homes[top, name].append(module)
    assert [modules for modules in homes.values() if len(modules) > 1] == []


def test_folders_have_at_most_16_direct_modules() -> None:
    counts: dict[str, int] = defaultdict(int)
    for path in FILES:
        if path.name not in {"__init__.py", "__main__.py"}:
            counts[str(path.parent.relative_to(PACKAGE))] += 1
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES} == {}


def test_setup_cfg_lists_every_package() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packages = {".".join(path.parent.relative_to(ROOT).parts) for path in FILES}
    assert set(setup["options"]["packages"].split()) == {*packages, "twisted.plugins"}


def test_pure_folders_and_what_they_import_import_no_twisted() -> None:
    pending = {module for module in MODULES if module.startswith(PURE)}
    reached: set[str] = set()
    while pending:
        reached.add(module := pending.pop())
        pending |= own_imports_of(module) - reached
    assert [
        (module, name)
        for module in sorted(reached)
        for name in imports_of(MODULES[module])
        if name.split(".")[0] in {"twisted", "zope", "treq"}
    ] == []


def test_no_module_imports_the_reactor_at_module_level() -> None:
    """An import at module level would install the default reactor for every importer."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    importers = [name for name, path in MODULES.items() if "twisted.internet.reactor" in imports_of(path)]
    assert {module.partition(".")[0] for module in importers} <= REACTOR_USERS
    for module in importers:
        tree = ast.parse(MODULES[module].read_text())
        at_import = [name for node in tree.body if not isinstance(node, functions) for name in imported(node)]
        assert "twisted.internet.reactor" not in at_import, module


def test_only_the_engine_imports_temporalio() -> None:
    importers = {
        folder_of(module)
        for module, path in MODULES.items()
        if any(name.split(".")[0] == "temporalio" for name in imports_of(path))
    }
    assert importers == {"jobs.engine"}


def test_the_plugin_imports_nothing_of_the_package() -> None:
    assert [name for name in imports_of(PLUGIN) if name.startswith("image_service")] == []
