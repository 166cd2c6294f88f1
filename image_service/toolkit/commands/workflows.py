"""Workflows: tasks composed of the toolkit's operations, declared in one table.

Each task reads the result of the task before it, and makes a file in the workspace; the last one makes the
output. A file between two tasks is removed when it has been read.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from image_service.common.objects.s3_client import BucketLocation
from image_service.common.programs.dependencies import Dependency, require
from image_service.common.transfer.bundle_manifest import is_bundle
from image_service.common.transfer.manifest import parse_import_manifest
from image_service.core.errors import Unprocessable
from image_service.core.formats.disk.model import DiskFormat
from image_service.toolkit.conversion.convert import convert
from image_service.toolkit.conversion.target import find_target
from image_service.toolkit.customization.customize import customize_disk
from image_service.toolkit.disks.digest import sha256_of
from image_service.toolkit.disks.opening import open_image
from image_service.toolkit.transfer.fetch import FetchOptions, fetch_parts, read_manifest
from image_service.toolkit.transfer.publish import PublishOptions, publish_object, publish_parts
from image_service.toolkit.workspace.dependencies import (
    ALWAYS,
    BOTOCORE,
    CRYPTOGRAPHY,
    DEFUSEDXML,
    DEPENDENCIES_OF_VERBS,
    QEMU_IMG,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.toolkit.conversion.ovf import Appliance
    from image_service.toolkit.conversion.target import Target
    from image_service.toolkit.customization.disk_customization import DiskCustomization
    from image_service.toolkit.disks.opening import DiskImage
    from image_service.toolkit.transfer.fetch import FetchedImage, ManifestSource
    from image_service.toolkit.transfer.publish import PublishedImage
    from image_service.toolkit.workspace.workspace import Workspace

Place: TypeAlias = "str | Path | BucketLocation"
"""A manifest's path or URL, a file, a place in a bucket."""


@attrs.frozen
class WorkflowOptions:
    """The options of the tasks of a workflow; each task reads its own.

    Args:
        fetch: of ``down-parts``, ``down-bundle`` and ``fetch``.
        target: of ``convert``.
        appliance: of ``convert`` to OVA.
        wraps_partition: of ``convert``: the image is that of a partition, which gets a GPT around it.
        virtual_size: of ``convert``: bytes of the disk; None: as it has.
        customization: of ``customize``.
        publish: of ``up-parts`` and ``upload``.
        digest: the SHA-256 of input and output are computed.
    """

    fetch: FetchOptions = attrs.field(factory=FetchOptions)
    target: Target | None = None
    appliance: Appliance | None = None
    wraps_partition: bool = False
    virtual_size: int | None = None
    customization: DiskCustomization | None = None
    publish: PublishOptions = attrs.field(factory=PublishOptions)
    digest: bool = True


@attrs.frozen
class TaskCall:
    """The arguments of one task.

    Args:
        source: the file that it reads.
        declared: the format of a source that the task before has made; None: as detected.
        place: the file that it makes.
        digest: the SHA-256 of source and result are reported.
    """

    source: Place
    declared: str | None
    place: Place
    options: WorkflowOptions
    workspace: Workspace
    digest: bool

    @property
    def file(self) -> Path:
        """The source of a task that reads a file."""
        return Path(str(self.source))

    @property
    def out(self) -> Path:
        """The place of a task that makes a file."""
        return Path(str(self.place))

    @property
    def location(self) -> BucketLocation:
        """The place of a task that uploads."""
        if not isinstance(self.place, BucketLocation):
            raise Unprocessable(f"{self.place} is not a place in a bucket")
        return self.place


@attrs.frozen
class TaskResult:
    """The result of one task.

    Args:
        format: of the image, as `open_image` takes it.
        input: the report's members on the source.
        output: the report's members on the result.
        source: the next task's.
    """

    format: str
    input: dict[str, Any]
    output: dict[str, Any]
    source: Place


@attrs.frozen
class WorkflowTask:
    """A step of workflows.

    Args:
        name: as in the names of workflows.
        argument: its name on the command line if it is the first.
        result: the same if it is the last.
    """

    name: str
    argument: str
    result: str
    dependencies: tuple[Dependency, ...]
    run: Callable[[TaskCall], TaskResult]


@attrs.frozen
class Workflow:
    """A named series of tasks."""

    tasks: tuple[WorkflowTask, ...]
    summary: str

    @property
    def name(self) -> str:
        """Its tasks, joined by slashes."""
        return "/".join(task.name for task in self.tasks)

    @property
    def arguments(self) -> tuple[str, str]:
        """The names of its source and its result."""
        return self.tasks[0].argument, self.tasks[-1].result

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        """Programs and packages without which it is disabled."""
        return tuple(dict.fromkeys(item for task in self.tasks for item in task.dependencies))

    def run(
        self,
        source: Place,
        place: Place,
        options: WorkflowOptions,
        workspace: Workspace,
        on_input: Callable[[dict[str, Any]], None],
    ) -> dict[str, Any]:
        """Run the tasks; return the report's members on the output.

        Args:
            on_input: gets the report's members on the input, when the first task has ended.
        """
        last = len(self.tasks) - 1
        # Names in messages: that of an image says nothing about the task that has made it.
        names = ("image", *(f"image-{number}" for number in range(2, last + 1)))
        made = TaskResult("", {}, {}, source)
        for number, task in enumerate(self.tasks):
            call = TaskCall(
                made.source,
                made.format or None,
                place if number == last else workspace.directory / names[number],
                options,
                workspace,
                options.digest and number in {0, last},
            )
            made = task.run(call)
            if number == 0:
                on_input(made.input)
            if call.file.parent == workspace.directory:  # else it is the user's own
                call.file.unlink()
            workspace.give_back()
        return made.output


_Fetch: TypeAlias = "Callable[[ManifestSource, Path, FetchOptions, Workspace], FetchedImage]"


def _down(fetch: _Fetch, call: TaskCall) -> TaskResult:
    options = attrs.evolve(call.options.fetch, digest=call.digest)
    source = read_manifest(str(call.source), options, call.workspace)
    image = fetch(source, call.out, options, call.workspace)
    return TaskResult(image.format, source.describe(), image.describe(), call.out)


def _fetch_parts(
    source: ManifestSource, out: Path, options: FetchOptions, workspace: Workspace
) -> FetchedImage:
    return fetch_parts(parse_import_manifest(source.text), source, out, options, workspace)


def _fetch_bundle(
    source: ManifestSource, out: Path, options: FetchOptions, workspace: Workspace
) -> FetchedImage:
    require((CRYPTOGRAPHY,))
    # Imported here because cryptography is an extra.
    from image_service.toolkit.transfer.bundle import fetch_bundle  # noqa: PLC0415 - same

    return fetch_bundle(source, out, options, workspace)


def _fetch_either(
    source: ManifestSource, out: Path, options: FetchOptions, workspace: Workspace
) -> FetchedImage:
    fetch = _fetch_bundle if is_bundle(source.text) else _fetch_parts
    return fetch(source, out, options, workspace)


def _describe(image: DiskImage, call: TaskCall) -> dict[str, Any]:
    digest = {"sha256": sha256_of(image.descriptor, call.workspace.pace)} if call.digest else {}
    return {"format": image.content, "size": image.size, **digest}


def _read_raw(call: TaskCall) -> TaskResult:
    """Let the next task read the file as raw."""
    with open_image(call.file, DiskFormat.RAW.value, pace=call.workspace.pace) as image:
        described = _describe(image, call)
    return TaskResult(DiskFormat.RAW.value, described, described, call.file)


def _convert_to(call: TaskCall, target: Target) -> TaskResult:
    options = call.options
    with open_image(call.file, call.declared, pace=call.workspace.pace) as image:
        made = convert(
            image,
            call.out,
            target,
            call.workspace,
            digests=call.digest,
            appliance=options.appliance,
            wraps_partition=options.wraps_partition,
            virtual_size=options.virtual_size,
        )
        described = {"format": image.content, "size": image.size, "sha256": made.input_sha256}
    output = {
        "format": target.name,
        "subformat": target.subformat,
        "size": made.size,
        "virtual_size": made.virtual_size,
        "sha256": made.output_sha256,
    }
    return TaskResult(target.name, described, output, call.out)


def _convert(call: TaskCall) -> TaskResult:
    return _convert_to(call, call.options.target or find_target("qcow2"))


def _write_raw(call: TaskCall) -> TaskResult:
    return _convert_to(call, find_target("raw"))


def _customize(call: TaskCall) -> TaskResult:
    if call.options.customization is None:
        raise Unprocessable("customize needs a customization")
    done = customize_disk(
        call.file, call.out, call.options.customization, call.workspace, call.declared, digest=call.digest
    )
    name = done.format.value
    described = {"format": name, "size": call.file.stat().st_size, "sha256": done.input_sha256}
    output = {"format": name, "size": call.out.stat().st_size, "sha256": done.output_sha256}
    return TaskResult(name, described, output, call.out)


_Publish: TypeAlias = "Callable[[DiskImage, BucketLocation, PublishOptions, Workspace], PublishedImage]"


def _upload(call: TaskCall, publish: _Publish) -> TaskResult:
    with open_image(call.file, call.declared, pace=call.workspace.pace) as image:
        described = _describe(image, call)
        made = publish(image, call.location, call.options.publish, call.workspace)
    return TaskResult(described["format"], described, {**described, **attrs.asdict(made)}, call.location)


_FETCHED = (*ALWAYS, DEFUSEDXML)
DOWN_PARTS = WorkflowTask("down-parts", "MANIFEST", "OUT", _FETCHED, partial(_down, _fetch_parts))
DOWN_BUNDLE = WorkflowTask(
    "down-bundle", "MANIFEST", "OUT", (*_FETCHED, CRYPTOGRAPHY), partial(_down, _fetch_bundle)
)
FETCH = WorkflowTask("fetch", "MANIFEST", "OUT", _FETCHED, partial(_down, _fetch_either))
READ_RAW = WorkflowTask("read-raw", "FILE", "OUT", ALWAYS, _read_raw)
CONVERT = WorkflowTask("convert", "FILE", "OUT", (*ALWAYS, QEMU_IMG), _convert)
WRITE_RAW = WorkflowTask("write-raw", "FILE", "OUT", (*ALWAYS, QEMU_IMG), _write_raw)
CUSTOMIZE = WorkflowTask("customize", "DISK", "OUT", DEPENDENCIES_OF_VERBS["customize"], _customize)
UP_PARTS = WorkflowTask(
    "up-parts",
    "FILE",
    "s3://BUCKET/PREFIX",
    (*ALWAYS, BOTOCORE),
    lambda call: _upload(call, publish_parts),
)
UPLOAD = WorkflowTask(
    "upload", "FILE", "s3://BUCKET/KEY", (*ALWAYS, BOTOCORE), lambda call: _upload(call, publish_object)
)

WORKFLOWS = (
    Workflow((DOWN_PARTS, WRITE_RAW), "fetch the parts of an import manifest as a raw disk"),
    Workflow((DOWN_PARTS, CONVERT), "fetch the parts of an import manifest in another format"),
    Workflow((DOWN_PARTS, UPLOAD), "fetch the parts of an import manifest into one object"),
    Workflow((DOWN_PARTS, CONVERT, UPLOAD), "the same in another format"),
    Workflow((DOWN_BUNDLE, WRITE_RAW), "fetch an image bundle as a raw disk"),
    Workflow((DOWN_BUNDLE, CONVERT), "fetch an image bundle in another format"),
    Workflow((DOWN_BUNDLE, CONVERT, UPLOAD), "the same into one object"),
    Workflow((FETCH, CONVERT), "fetch what a manifest of either kind describes in another format"),
    Workflow((READ_RAW, UP_PARTS), "publish a raw disk in parts"),
    Workflow((CONVERT, UP_PARTS), "publish a disk in parts, in another format"),
    Workflow((CONVERT, UPLOAD), "publish a disk as one object, in another format"),
    Workflow((CUSTOMIZE, CONVERT), "customize a CoreOS disk, and convert it"),
    Workflow((CUSTOMIZE, UPLOAD), "customize a CoreOS disk, and publish it as one object"),
    Workflow((CUSTOMIZE, CONVERT, UPLOAD), "the same in another format"),
    Workflow((CUSTOMIZE, CONVERT, UP_PARTS), "customize a CoreOS disk, and publish it in parts"),
)
