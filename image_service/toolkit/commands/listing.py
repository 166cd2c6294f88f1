"""``image-toolkit list``: verbs and workflows, and whether their programs are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from image_service.toolkit.commands.workflows import WORKFLOWS
from image_service.toolkit.workspace.dependencies import DEPENDENCIES_OF_VERBS, OPTIONAL_OF_VERBS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from image_service.common.command_line.parser import AddParser
    from image_service.common.programs.dependencies import Dependency
    from image_service.toolkit.commands.report import CallReport


def add(add_parser: AddParser) -> None:
    """Declare the verb."""
    parser = add_parser(
        "list",
        help="list verbs and workflows, and what they need",
        description="List the verbs and workflows with the programs and Python packages that they need."
        " A missing one disables only what needs it.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(_options: argparse.Namespace, report: CallReport) -> int:
    """Describe verbs and workflows."""
    verbs = [
        _describe(verb, required, OPTIONAL_OF_VERBS.get(verb, ()))
        for verb, required in DEPENDENCIES_OF_VERBS.items()
    ]
    workflows = [
        {**_describe(item.name, item.dependencies), "summary": item.summary, "arguments": item.arguments}
        for item in WORKFLOWS
    ]
    report.fields = {"verbs": verbs, "workflows": workflows}
    report.text = "\n".join([*_lines("VERB", verbs), "", *_lines("WORKFLOW", workflows)])
    return 0


def _describe(
    name: str, required: Iterable[Dependency], optional: Iterable[Dependency] = ()
) -> dict[str, Any]:
    rows = [
        {
            "name": dependency.name,
            "path": dependency.find(),
            "debian": dependency.debian,
            "fedora": dependency.fedora,
            "optional": is_optional,
        }
        for is_optional, dependencies in ((False, required), (True, optional))
        for dependency in dependencies
    ]
    available = all(row["path"] or row["optional"] for row in rows)
    return {"name": name, "available": available, "dependencies": rows}


def _lines(title: str, rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"{title:28} STATE"]
    for row in rows:
        lines.append(f"{row['name']:28} {'available' if row['available'] else 'disabled'}")
        lines += [
            f"    {item['name']} is {'missing (optional)' if item['optional'] else 'missing'}:"
            f" Debian {item['debian']}, Fedora {item['fedora']}"
            for item in row["dependencies"]
            if not item["path"]
        ]
    return lines
