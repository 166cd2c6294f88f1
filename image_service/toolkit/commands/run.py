"""``image-toolkit run``: a workflow of the table in ``toolkit/commands/workflows``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from image_service.common.programs.dependencies import require
from image_service.toolkit.commands.arguments import add_common_arguments, open_workspace
from image_service.toolkit.commands.convert import add_target_arguments, describe_appliance, parse_target
from image_service.toolkit.commands.customize import add_customization_arguments, read_customization
from image_service.toolkit.commands.fetch import add_fetch_arguments, add_key_arguments, fetch_options
from image_service.toolkit.commands.publish import add_publish_arguments, parse_location, publish_options
from image_service.toolkit.commands.workflows import WORKFLOWS, WorkflowOptions
from image_service.toolkit.transfer.fetch import FetchOptions
from image_service.toolkit.transfer.publish import PublishOptions

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from image_service.common.command_line.parser import AddParser
    from image_service.toolkit.commands.report import CallReport
    from image_service.toolkit.commands.workflows import Place

_ARGUMENTS: Mapping[str, tuple[Callable[[argparse.ArgumentParser], None], ...]] = {
    "down-parts": (add_fetch_arguments,),
    "down-bundle": (add_fetch_arguments, add_key_arguments),
    "fetch": (add_fetch_arguments, add_key_arguments),
    "convert": (add_target_arguments,),
    "customize": (add_customization_arguments,),
    "up-parts": (add_publish_arguments,),
    "upload": (add_publish_arguments,),
}
"""The options of each task."""


def add(add_parser: AddParser) -> None:
    """Declare the verb, and each workflow."""
    parser = add_parser(
        "run",
        help="run a workflow: several tasks as one call",
        description="Run a workflow: tasks of which each reads what the one before has made. Its options are"
        " those of its tasks' verbs.",
    )
    workflows = parser.add_subparsers(required=True, metavar="WORKFLOW", dest="workflow")
    for workflow in WORKFLOWS:
        each = workflows.add_parser(workflow.name, help=workflow.summary, description=workflow.summary + ".")
        source, place = workflow.arguments
        each.add_argument("source", metavar=source, help="what the first task reads")
        is_bucket = place.startswith("s3:")
        each.add_argument(
            "out",
            metavar=place,
            type=parse_location if is_bucket else Path,
            help="what the last task makes" + ("" if is_bucket else "; replaced if it exists"),
        )
        for task in workflow.tasks:
            for add_arguments in _ARGUMENTS.get(task.name, ()):
                add_arguments(each)
        each.add_argument(
            "--no-digest", action="store_false", dest="digest", help="compute no SHA-256 of input and output"
        )
        add_common_arguments(each)
        each.set_defaults(run=run)


def run(options: argparse.Namespace, report: CallReport) -> int:
    """Run a workflow."""
    workflow = next(item for item in WORKFLOWS if item.name == options.workflow)
    report.fields["workflow"] = workflow.name
    require(workflow.dependencies)
    place: Place = options.out
    tasks = {task.name for task in workflow.tasks}
    # Its name is that of an appliance, and tells the format; a prefix is not a file.
    options.out = Path("" if "up-parts" in tasks else str(options.out))
    wanted = WorkflowOptions(
        fetch=fetch_options(options) if tasks & {"down-parts", "down-bundle", "fetch"} else FetchOptions(),
        target=parse_target(options) if "convert" in tasks else None,
        appliance=describe_appliance(options) if "convert" in tasks else None,
        wraps_partition=options.wrap_partition if "convert" in tasks else False,
        virtual_size=options.size if "convert" in tasks else None,
        customization=read_customization(options) if "customize" in tasks else None,
        publish=publish_options(options) if tasks & {"up-parts", "upload"} else PublishOptions(),
        digest=options.digest,
    )
    with open_workspace(options) as workspace:
        report.output = workflow.run(options.source, place, wanted, workspace, report.input.update)
    report.text = f"{place}: {report.output['format']}, {report.output['size']} bytes"
    return 0
