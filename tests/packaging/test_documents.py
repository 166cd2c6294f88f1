"""Commands and links in the documents work."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from image_service.server.standalone.sample import SAMPLE_ARCHITECTURE, SAMPLE_VERSION
from image_service.server.standalone.service import SAMPLE_ID
from tests.packaging.conftest import CHECKOUT

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_in_documents_resolve(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("document", "root"),
    [
        ("docs/architecture.md", "image_service"),
        ("docs/glossary.md", "image_service"),
        ("docs/decisions", "image_service"),
        ("CONTRIBUTING.md", "tests"),
    ],
)
def test_modules_that_documents_name_exist(document: str, root: str) -> None:
    """A path in backticks that begins with a folder of the map names a folder, a module, or a name in one."""
    path = CHECKOUT / document
    texts = [each.read_text() for each in (path.glob("*.md") if path.is_dir() else [path])]
    pattern = r"`((?:core|common|settings|server|toolkit|tools|app|cli)/[a-z_0-9/]*(?:\*|\.[a-z]+\b)?)"
    named = {name for text in texts for name in re.findall(pattern, text)}
    assert len(named) > 10
    assert [name for name in sorted(named) if not _is_module(CHECKOUT / root, name)] == []


def _is_module(root: Path, name: str) -> bool:
    stem = re.sub(r"\.[a-z]+$", "", name).rstrip("/")
    return (root / name).exists() or any(root.glob(f"{stem}.py")) or (root / stem).is_dir()


def test_readme_curl_command_fetches_the_sample() -> None:
    path = f"/byid/{SAMPLE_ID}/{SAMPLE_VERSION}/{SAMPLE_ARCHITECTURE}/full.iso"
    assert f"curl -fo full.iso http://localhost:8080{path}\n" in (CHECKOUT / "README.md").read_text()


def test_make_targets_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    named = {name for document in DOCUMENTS for name in re.findall(r"`make ([a-z-]+)", document.read_text())}
    assert named <= targets


def test_build_arguments_in_documents_exist() -> None:
    declared = set(re.findall(r"^ARG (\w+)", (CHECKOUT / "Dockerfile").read_text(), re.MULTILINE))
    named = {
        name for document in DOCUMENTS for name in re.findall(r"--build-arg (\w+)", document.read_text())
    }
    rows = re.findall(
        r"^\| (`[A-Z_]+`.*?) \|", (CHECKOUT / "docs" / "container.md").read_text(), re.MULTILINE
    )
    assert {name for row in rows for name in re.findall(r"\w+", row)} == declared
    assert named <= declared


def test_nothing_is_installed_by_a_name_that_the_project_does_not_have() -> None:
    """No registry has a name of the project, so anybody could register it."""
    messages = [*(CHECKOUT / "image_service").rglob("*.py"), *(CHECKOUT / "conf").rglob("*.service")]
    named = re.compile(r"pip install[^\n]*[ '\"]image[-_](?:service|toolkit)[\['\" ]")
    assert [path.name for path in (*DOCUMENTS, *messages) if named.search(path.read_text())] == []


def test_decisions_are_numbered_once() -> None:
    decisions = sorted((CHECKOUT / "docs" / "decisions").glob("[0-9]*.md"))
    numbers = [int(decision.name[:4]) for decision in decisions]
    assert numbers == list(range(1, len(numbers) + 1))
    assert all(
        each.read_text().startswith(f"# {number}. ") for number, each in zip(numbers, decisions, strict=True)
    )


def test_decisions_are_listed_by_topic() -> None:
    directory = CHECKOUT / "docs" / "decisions"
    listed = re.findall(r"^- (\d+)\. \[(.*)\]\((.*)\)$", (directory / "index.md").read_text(), re.MULTILINE)
    decisions = [path for path in directory.glob("*.md") if path.name != "index.md"]
    assert sorted(name for _, _, name in listed) == sorted(path.name for path in decisions)
    for number, title, name in listed:
        assert (directory / name).read_text().startswith(f"# {number}. {title}\n")
