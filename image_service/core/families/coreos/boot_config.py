"""The boot configurations of a live ISO, and their form in a derived minimal ISO.

    grub.cfg        linux /images/pxeboot/vmlinuz <arguments>
                    initrd /images/pxeboot/initrd.img /images/ignition.img
    isolinux.cfg    append initrd=/images/pxeboot/initrd.img,/images/ignition.img <arguments>

GRUB's commands may also be linuxefi and initrdefi. Since 2021 builders put the arguments into an area
(kargs_areas.py): a newline and a comment follow them, ``####...# COREOS_KARG_EMBED_AREA``. Offsets count
bytes, so contents are bytes.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.families.coreos.family import LIVEISO
from image_service.core.families.coreos.kargs import KernelArgument, Operation, edit_arguments
from image_service.core.families.coreos.kargs_areas import KargsArea

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FILL = 1023  # bytes that builders reserve after the arguments of an area
_MARK = b"# COREOS_KARG_EMBED_AREA"
_PAD, _END = b"#", b"\n"


@attrs.frozen
class BootConfig:
    """One boot loader's configuration; the offsets of its sorted areas count from the start of the file."""

    path: str
    content: bytes = attrs.field(repr=False)
    areas: tuple[KargsArea, ...] = ()

    @property
    def names_initrds(self) -> bool:
        """True if it boots anything."""
        return _grammar(self).initrd.search(self.content) is not None


@attrs.frozen
class BootConfigs:
    """All boot configurations of an ISO; ``default`` is the content and ``size`` the length of each area."""

    default: str
    size: int
    configs: tuple[BootConfig, ...]


@attrs.frozen
class _Grammar:
    """Patterns of the lines of a boot configuration."""

    initrd: re.Pattern[bytes]  # from the start of a line to the end of the last initrd's name
    arguments: re.Pattern[bytes]  # a line that boots, with its arguments as group 1
    separator: bytes  # between the names of two initrds


_GRUB = _Grammar(
    re.compile(rb"^[ \t]*initrd(?:efi)?(?:[ \t]+[^\s#;]+)+", re.MULTILINE),
    re.compile(rb"^[ \t]*linux(?:efi)?[ \t]+[!-~]+[ \t]+([!-~][ -~\t]*)$", re.MULTILINE),
    b" ",
)
_ISOLINUX = _Grammar(
    re.compile(rb"^[ \t]*append[ \t]+initrd=[!-~]+", re.MULTILINE | re.IGNORECASE),
    re.compile(rb"^[ \t]*append[ \t]+initrd=[!-~]+[ \t]+([!-~][ -~\t]*)$", re.MULTILINE | re.IGNORECASE),
    b",",
)


def add_kargs_areas(configs: Sequence[BootConfig]) -> BootConfigs:
    """Return ``configs``, which have no areas, with one in place of the arguments of each line with LIVEISO.

    FormatError if there is no such line, or two of them have different arguments.
    """
    found = {match[1].strip() for config in configs for match in _live_lines(config)}
    if len(found) != 1:
        paths = ", ".join(config.path for config in configs) or "no boot configuration"
        raise FormatError(
            f"the lines with {LIVEISO} in {paths} have {len(found)} different sets of kernel"
            " arguments; they must have one"
        )
    default = found.pop().decode()
    size = len(default) + len(_END) + _FILL
    made = []
    for config in configs:
        content, areas, position = bytearray(), [], 0
        for match in _live_lines(config):
            content += config.content[position : match.start(1)]
            areas.append(KargsArea(len(content), _PAD, _END, config.path))
            content += (match[1].strip() + _END).ljust(size, _PAD) + _MARK
            position = match.end(1)
        content += config.content[position:]
        made.append(BootConfig(config.path, bytes(content), tuple(areas)))
    return BootConfigs(default, size, tuple(made))


def derive_minimal_configs(boot: BootConfigs, initrds: Sequence[str]) -> BootConfigs:
    """Return the configurations of a minimal ISO: without LIVEISO in the areas, with further initrds.

    Raises:
        FormatError: a configuration names no initrds, or some inside an area, or LIVEISO outside one.
        KernelArgumentsTooLarge: the arguments do not fit their areas.
    """
    words = [word for word in boot.default.split() if word.startswith(LIVEISO)]
    default = edit_arguments(boot.default, [KernelArgument(Operation.DELETE, word) for word in words])
    configs = []
    for config in boot.configs:
        content = bytearray(config.content)
        for area in config.areas:
            content[area.offset : area.offset + boot.size] = area.render(default, boot.size)
        derived = _add_initrds(attrs.evolve(config, content=bytes(content)), boot.size, initrds)
        if LIVEISO.encode() in derived.content:
            raise FormatError(f"{config.path} has {LIVEISO} outside of its areas of kernel arguments")
        configs.append(derived)
    return BootConfigs(default, boot.size, tuple(configs))


def render_kargs_json(boot: BootConfigs) -> bytes:
    """Return the coreos/kargs.json that describes the areas."""
    files = [
        {"path": config.path, "offset": area.offset, "pad": area.pad.decode(), "end": area.end.decode()}
        for config in sorted(boot.configs, key=lambda config: config.path)
        for area in config.areas
    ]
    content = {"default": boot.default, "files": files, "size": boot.size}
    return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"


def _grammar(config: BootConfig) -> _Grammar:
    return _ISOLINUX if config.path.lower().endswith("isolinux.cfg") else _GRUB


def _live_lines(config: BootConfig) -> Iterator[re.Match[bytes]]:
    """Yield the lines that search for the full ISO."""
    for match in _grammar(config).arguments.finditer(config.content):
        if LIVEISO.encode() in match[1]:
            yield match


def _add_initrds(config: BootConfig, size: int, initrds: Sequence[str]) -> BootConfig:
    """Name further initrds after the others, and move the areas after them."""
    grammar = _grammar(config)
    ends = [match.end() for match in grammar.initrd.finditer(config.content)]
    if not ends:
        raise FormatError(f"{config.path} names no initrd")
    for area in config.areas:
        if bisect_right(ends, area.offset) != bisect_right(ends, area.offset + size):
            raise FormatError(f"{config.path} names an initrd inside the area at offset {area.offset}")
    addition = b"".join(grammar.separator + initrd.encode() for initrd in initrds)
    pieces = (config.content[start:end] for start, end in pairwise([0, *ends, len(config.content)]))
    return attrs.evolve(
        config,
        content=addition.join(pieces),
        areas=tuple(
            attrs.evolve(area, offset=area.offset + len(addition) * bisect_right(ends, area.offset))
            for area in config.areas
        ),
    )
