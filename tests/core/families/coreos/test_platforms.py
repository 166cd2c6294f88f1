"""Platforms and their consoles, in kernel arguments and in GRUB's configuration."""

from __future__ import annotations

import pytest

from image_service.core.errors import FormatError
from image_service.core.families.coreos.platforms import (
    PlatformConsoles,
    is_named,
    read_platforms,
    replace_console_commands,
    set_platform,
)

_START, _END = b"# CONSOLE-SETTINGS-START\n", b"# CONSOLE-SETTINGS-END\n"


def test_platforms_have_kernel_arguments_and_commands() -> None:
    content = b'{"metal": {}, "aws": {"grub_commands": ["serial"], "kernel_arguments": ["console=ttyS0"]}}'
    assert read_platforms(content) == {
        "metal": PlatformConsoles(),
        "aws": PlatformConsoles(("console=ttyS0",), ("serial",)),
    }


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"{", "is not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"aws": []}', "'aws' must be a JSON object"),
        (b'{"aws": {"kernel_arguments": "a"}}', "list of at most 64 printable strings"),
        (b'{"aws": {"grub_commands": ["a\\nb"]}}', "list of at most 64 printable strings"),
    ],
)
def test_damaged_table_is_refused(content: bytes, fault: str) -> None:
    with pytest.raises(FormatError, match=fault):
        read_platforms(content)


def test_consoles_of_metal_are_replaced() -> None:
    before, after = PlatformConsoles(("console=ttyS0",)), PlatformConsoles(("console=tty0", "console=hvc0"))
    options = "$ignition_firstboot console=ttyS0 ignition.platform.id=metal ostree=/x"
    assert set_platform(options, "aws", before, after) == (
        "$ignition_firstboot ignition.platform.id=aws ostree=/x console=tty0 console=hvc0"
    )


def test_image_of_another_platform_is_refused() -> None:
    with pytest.raises(FormatError, match="do not contain ignition"):
        set_platform("ignition.platform.id=gcp", "aws", PlatformConsoles(), PlatformConsoles())


def test_platform_is_a_whole_argument() -> None:
    assert is_named("a ignition.platform.id=aws b", "aws")
    assert not is_named("ignition.platform.id=aws2", "aws")


# As in the tests of coreos-installer.
@pytest.mark.parametrize("inside", [b"", b"as df\n", b"as df\nghjkl\n"])
@pytest.mark.parametrize("commands", [[], ["first"], ["first", "sec ond"]])
def test_commands_between_the_marks_are_replaced(inside: bytes, commands: list[str]) -> None:
    lines = "".join(f"{command}\n" for command in commands).encode()
    replaced = replace_console_commands(b"a\n" + _START + inside + _END + b"c\nd", commands)
    assert replaced == b"a\n" + _START + lines + _END + b"c\nd"


@pytest.mark.parametrize("config", [b"a\nb\n", _START + _END, b"a\n" + _START, b"a\n" + _END + _START])
def test_configuration_without_marks_is_refused(config: bytes) -> None:
    with pytest.raises(FormatError, match="no marks of console settings"):
        replace_console_commands(config, [])
