"""GRUB's configuration: variables, conditions and items, as the generators of distributions write them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import UnreadScript
from image_service.core.formats.boot_loader.grub_menu import GrubMenu, parse_grub_environment
from tests.acceptance.clients import run_client
from tests.core.formats.boot_loader.trees import make_tree

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HEADER = """\
if [ -f ${config_directory}/grubenv ]; then
  load_env -f ${config_directory}/grubenv
elif [ -s $prefix/grubenv ]; then
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
else
   set default="${saved_entry}"
fi
if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi
"""
UBUNTU = """\
function gfxmode {
	set gfxpayload="${1}"
	if [ "${1}" = "keep" ]; then
		set vt_handoff=vt.handoff=7
	else
		set vt_handoff=
	fi
}
if [ "${recordfail}" != 1 ]; then
  if [ -e ${prefix}/gfxblacklist.txt ]; then
    if [ ${grub_platform} != pc ]; then
      set linux_gfx_mode=keep
    elif hwmatch ${prefix}/gfxblacklist.txt 3; then
      set linux_gfx_mode=text
    fi
  else
    set linux_gfx_mode=keep
  fi
fi
menuentry 'Ubuntu' --class ubuntu --class os $menuentry_id_option 'gnulinux-simple-1' {
	gfxmode $linux_gfx_mode
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	search --no-floppy --fs-uuid --set=root aaaa
	linux	($root)/vmlinuz-6.8 root=LABEL=root ro  "quiet splash" $vt_handoff # the kernel
	initrd	/microcode.cpio /initrd.img-6.8
}
submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced-1' {
	menuentry 'Old' --id old { linux /vmlinuz-6.5 root=LABEL=old
	}
}
"""


def run(
    text: str, environment: Mapping[str, str] | None = None, files: Mapping[str, str] | None = None
) -> GrubMenu:
    """Return the menu of a configuration in the directory grub2."""
    menu = GrubMenu(make_tree({"grub2/grub.cfg": text, **(files or {})}), "grub2", environment or {})
    menu.run(text)
    return menu


def test_configuration_of_a_distribution_is_run(tmp_path: Path) -> None:
    script = tmp_path / "grub.cfg"
    script.write_text(HEADER + UBUNTU)
    run_client("grub-script-check", script)
    menu = run(HEADER + UBUNTU, {"next_entry": "gnulinux-advanced-1>old", "saved_entry": "x"})
    assert [(item.title, item.id) for item in menu.items] == [
        ("Ubuntu", "gnulinux-simple-1"),
        ("Advanced options", "gnulinux-advanced-1"),
    ]
    assert menu.get("default") == "gnulinux-advanced-1>old"
    started = menu.start(menu.items[0])
    assert started.kernel == "/vmlinuz-6.8"
    assert started.initrds == ("/microcode.cpio", "/initrd.img-6.8")
    assert started.arguments == ("root=LABEL=root", "ro", "quiet splash", "vt.handoff=7")
    assert menu.start(menu.open_submenu(menu.items[1])[0]).arguments == ("root=LABEL=old",)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("set a='$b'", "$b"),
        ('set b=1\nset a="$b ${b}"', "1 1"),
        ("set a=1; if [ $a = 1 ]; then set a=2; else set a=3; fi", "2"),
        ('set a=1\nif [ -z "$c" -a ! $a = 2 ]; then a=4; fi', "4"),
        ("if [ $grub_platform = efi ]; then set a=1; fi", "$a"),
        ("if [ $grub_platform = efi ]; then set a=1; else set a=1; fi", "$a"),
        ("set a=1; if keystatus --shift; then set a=1; fi", "1"),
        ("if [ -f /ignition.firstboot ]; then set a=1; fi", "1"),
        ("if [ -f /none ]; then set a=1; fi", "$a"),
        ("if [ -f $prefix/none ]; then set a=1; fi", ""),
        ("source $prefix/more.cfg", "5"),
        ("search --label boot --set a", "$a"),
        ("regexp --set=1:a 'x(.*)' $c", "$a"),
        ("for i in 1 2; do set a=$i; done", "$a"),
        ("load_env", "6"),
        ("load_env b", ""),
        ("# set a=1\n", ""),
    ],
)
def test_variable_has_its_value_or_is_unknown(script: str, expected: str) -> None:
    files = {"ignition.firstboot": "x", "grub2/more.cfg": "set a=5"}
    assert run(script, {"a": "6", "b": "x"} if "load_env" in script else {}, files).get("a") == expected


def test_unreadable_environment_leaves_variables_unknown() -> None:
    menu = GrubMenu(make_tree({}), "grub2", None)
    menu.run("set a=1\nload_env")
    assert (menu.get("a"), menu.get("saved_entry")) == ("1", "$saved_entry")


def test_environment_block_is_parsed() -> None:
    text = "# GRUB Environment Block\nsaved_entry=a\\\\b\nkernelopts=root=UUID=1 ro \n" + "#" * 900
    assert parse_grub_environment(text) == {"saved_entry": "a\\b", "kernelopts": "root=UUID=1 ro "}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("menuentry 'Windows' { chainloader +1\n}", "has no kernel of Linux"),
        ("menuentry x {\nif [ $grub_cpu = i386 ]; then linux /a; fi\n}", "only a machine knows"),
        ("function f { f; }\nf", "calls in each other"),
        ("if [ a ]; then x", "lacks fi"),
        ("}", "without its beginning"),
        ("set a='x", "cannot be read at character 6"),
        ("{ " * 40, "blocks in each other"),
        ("set a=xxxxxxxx\n" + "set a=$a$a$a$a\n" * 9, "too long"),
        ("set a=" + "x" * 9000 + "\necho $a $a", "command that is too long"),
        ("set a=" + "x" * 9000 + "\nmenuentry $a$a { linux /a\n}", "command that is too long"),
        ("set a=" + "$b" * 300, "more than 256 parts"),
        ('set a="' + "$b" * 300 + '"', "more than 256 parts"),
    ],
)
def test_script_beyond_the_reader_is_told(script: str, reason: str) -> None:
    with pytest.raises(UnreadScript, match=reason):
        start_first(script)


def test_number_of_files_that_are_parsed_is_bounded() -> None:
    script = "source /more.cfg\n"
    assert run(script * 32, files={"more.cfg": "set a=1"}).get("a") == "1"
    with pytest.raises(UnreadScript, match="reads more than 32 files"):
        run(script * 33, files={"more.cfg": "set a=1"})


_WORDS = ["if", "then", "else", "elif", "fi", "[", "]", "!", "-o", "-a", "-f", "=", "set", "a=$b", "b=1", "x"]
_WORDS += [
    "menuentry",
    "submenu",
    "{",
    "}",
    "function",
    "f",
    ";",
    "\n",
    "for",
    "do",
    "done",
    "source",
    "$a",
    "'q'",
]
_WORDS += [
    "linux",
    "/k",
    "initrd",
    '"$b ${a}"',
    "blscfg",
    "load_env",
    "$grub_cpu",
    "unset",
    "--set",
    "--id",
    "\\",
]


@given(st.lists(st.sampled_from(_WORDS), max_size=40))
def test_script_of_any_words_is_run_or_told(words: list[str]) -> None:
    with suppress(UnreadScript):
        menu = run(" ".join(words))
        for item in menu.items:
            with suppress(UnreadScript):
                menu.start(item)


@given(st.text(max_size=60))
def test_any_text_is_run_or_told(text: str) -> None:
    with suppress(UnreadScript):
        run(text)


def start_first(script: str) -> None:
    """Run a configuration, and start its first item."""
    menu = run(script)
    menu.start(menu.items[0])
