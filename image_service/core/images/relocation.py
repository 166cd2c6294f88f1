"""Relocation: what does not fit the areas of its ISO is put as longer files of the same names.

The boot loader reads the initrd and its own configuration by their paths, so a file that has moved behind the
end of the ISO boots as one in its place does. coreos-installer, too, finds the config by its file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError, Unprocessable
from image_service.core.extents import Literal
from image_service.core.families.coreos import family
from image_service.core.families.coreos.kargs_areas import MAX_AREA
from image_service.core.formats.iso_edit.editor import IsoEditor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.core.extents import Overlay
    from image_service.core.formats.iso_edit.editor import IsoPlan
    from image_service.core.images.canvas import Canvas


@attrs.frozen
class Relocation:
    """What moves, and why.

    Args:
        initrd: the content of the file that has the area of the Ignition config; None: it stays.
        arguments: kernel arguments; None: they stay in their areas.
    """

    reason: Unprocessable
    initrd: tuple[bytes, ...] | None = attrs.field(default=None, repr=False)
    arguments: str | None = None


def relocate(canvas: Canvas, relocation: Relocation, overlays: Sequence[Overlay]) -> IsoPlan:
    """Return the plan of an ISO with overlays of what stays in its place.

    Raises:
        Unprocessable: of the class of the reason, if this ISO cannot be edited; says why.
    """
    try:
        editor = IsoEditor(canvas.extents)
        if relocation.initrd is not None:
            _put_initrd(editor, canvas, relocation.initrd)
        if relocation.arguments is not None:
            _put_arguments(editor, canvas, relocation.arguments)
        for overlay in overlays:
            editor.patch(overlay.offset, overlay.data)
        return editor.finish()
    except (FormatError, Unprocessable) as error:
        reason = relocation.reason
        raise type(reason)(f"{reason.detail}, and cannot move in {canvas.name}: {error.detail}") from None


def _put_initrd(editor: IsoEditor, canvas: Canvas, content: Sequence[bytes]) -> None:
    found, area = editor.locate(family.IGNITION_FILE), canvas.ignition
    if found is None or (found.offset, found.length) != (area.offset, area.length):
        one = ", but in the one image that s390x loads" if editor.find(family.INS_FILE) else ""
        raise Unprocessable(
            f"the area of the Ignition config is not the whole of {family.IGNITION_FILE}{one}"
        )
    editor.put(family.IGNITION_FILE, [Literal(data) for data in content])
    info = editor.find(family.IGNINFO_JSON)
    if info is not None:
        file = json.loads(info.read_at(0, info.size))["file"]  # without a length: all of it
        editor.put(family.IGNINFO_JSON, [Literal(json.dumps({"file": file}).encode())])


def _put_arguments(editor: IsoEditor, canvas: Canvas, arguments: str) -> None:
    """Put the boot configurations with areas as long as a kernel reads."""
    kargs, description = canvas.kernel_arguments, editor.find(family.KARGS_JSON)
    if kargs is None or description is None:
        raise Unprocessable(f"the ISO has no {family.KARGS_JSON}")
    if len({area.name for area in kargs.areas}) < len(kargs.areas):
        raise Unprocessable("a boot configuration has two areas for kernel arguments")
    for area in kargs.areas:
        found, file = editor.find(area.name), editor.locate(area.name)
        if found is None or file is None:
            raise Unprocessable(f"the ISO has no {area.name}")
        content = found.read_at(0, found.size)
        start = area.offset - file.offset
        text = area.render(arguments, MAX_AREA)
        editor.put(area.name, [Literal(content[:start] + text + content[start + kargs.size :])])
    members = {**json.loads(description.read_at(0, description.size)), "size": MAX_AREA}
    editor.put(family.KARGS_JSON, [Literal(json.dumps(members, indent=2).encode())])
