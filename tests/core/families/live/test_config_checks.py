"""Configs are checked by the grammars of their families; messages have places, and no content."""

from __future__ import annotations

import gzip
import io
import tarfile
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import ConfigInvalid
from image_service.core.families.live.families import get_family

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "hunter2hunter2"
ANSWERS = "[global]\nkeyboard = 'de'\n[network]\nsource = 'from-dhcp'\n[disk-setup]\nfilesystem = 'ext4'\n"


def archive(name: str = "etc/hostname") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    return file.getvalue()


VALID = {
    "debian-installer": [
        "",
        "# a comment\nd-i debian-installer/locale string en_US\n",
        "d-i partman-auto/expert_recipe string \\\n  boot-root :: \\\n  40 50 100 ext4 .\n",
        "d-i a/b seen true\n",
        "d-i preseed/early_command string true",
        "d-i passwd/root-password-crypted password\n",
    ],
    "debian-live": [
        "#cloud-config\nusers:\n- name: x\n",
        "#cloud-config",
        "#!/bin/sh\n: [not yaml\n",
        "#include\nhttp://x.test/\n",
        "Content-Type: multipart/mixed; boundary=x\nMIME-Version: 1.0\n",
    ],
    "ubuntu": [
        "autoinstall:\n  version: 1\n",
        "#cloud-config\nversion: 1\nidentity: {username: x, hostname: x, password: x}\n",
        "autoinstall:\n  packages: [version]\n  network: {version: 2}\n  version: 0x1\n",
        "version: 2\nautoinstall: {version: !!int '1'}\n",
        "a: &x {version: 1}\nautoinstall: *x\n",
        "a: &x {version: 1}\nautoinstall:\n  <<: *x\n",
        "a: &x 1\nautoinstall: {version: *x}\n",
    ],
    "anaconda": [
        "text\n%packages\n@core\n%end\n%include /tmp/x\n%post --log=/x\n%%\n%end\n",
        "# %post in a comment\nreboot\n",
    ],
    "suse": [
        '<?xml version="1.0"?>\n<!DOCTYPE profile>\n<profile xmlns="http://www.suse.com/1.0/yast2ns"/>\n',
    ],
    "proxmox": [ANSWERS, ANSWERS + "[first-boot]\nsource = 'from-iso'\n"],
    "kairos": ["#cloud-config\ninstall:\n  auto: true\n", "a: &x [1]\nb: *x\n"],
    "talos": ["version: v1alpha1\nmachine: {}\n---\napiVersion: v1alpha1\nkind: HostnameConfig\n"],
    "esxi": ["vmaccepteula\ninstall --firstdisk\n", "accepteula\r\nreboot\r\n"],
    "flatcar": ['{"ignition": {"version": "2.3.0"}}', '{"ignition": {"version": "3.4.0"}}'],
    "agama": ["{}", "local x = 1;\n{ a: x }", "#!/bin/sh\n", "<profile/>"],
    "combustion": ["#!/bin/bash\n# combustion: network\n"],
    "unified-kernel": ["anything", "\0\xff"],
}
INVALID = [
    (
        "debian-installer",
        f"d-i x\nd-i a/b {SECRET}\n",
        "^line 1 of the preseed file has fewer",
    ),
    (
        "debian-installer",
        f"\n#\nd-i  a/b   strng {SECRET}",
        "^line 3, column 12 of the preseed file has no",
    ),
    ("debian-installer", f"d-i a/b \\\n {SECRET} \\\n x\n", "^line 1, column 10 of the preseed file"),
    ("debian-live", f"users:\n- name: {SECRET}\n", "^cloud-init would ignore the user-data: its first line"),
    ("debian-live", f"#cloud-config\nusers:\n\t- {SECRET}\n", r"not YAML: .* at line 3, column 1$"),
    ("debian-live", f"#cloud-config\n- {SECRET}\n", "is not a mapping of keys at line 2, column 1$"),
    ("ubuntu", f"identity:\n  password: {SECRET}\n", "configuration has no key version$"),
    ("ubuntu", f"version: 1\nautoinstall:\n  identity: {SECRET}\n", "has no key autoinstall.version$"),
    ("ubuntu", f"autoinstall:\n- version: 1\n- {SECRET}\n", "has no key autoinstall.version$"),
    ("ubuntu", f"autoinstall:\n  network: {{version: 1}}\n  a: {SECRET}\n", "no key autoinstall.version$"),
    ("ubuntu", f"a: {SECRET}\nversion: 2\n", "^version of .* is not the number 1 at line 2, column 10$"),
    ("ubuntu", "? [version]\n: 1\n", "configuration has no key version$"),
    (
        "ubuntu",
        "autoinstall: {version: '1'}",
        "^autoinstall.version of .* is not the number 1 at line 1, column 24$",
    ),
    (
        "ubuntu",
        "autoinstall: {version: [1]}",
        "^autoinstall.version of .* is not the number 1 at line 1, column 24$",
    ),
    (
        "ubuntu",
        "autoinstall: {version: }",
        "^autoinstall.version of .* is not the number 1 at line 1, column 2",
    ),
    ("ubuntu", f"autoinstall:\n  a: {SECRET}: b\n", "not YAML: mapping values .* at line 2, column 20$"),
    ("ubuntu", f"autoinstall: [{SECRET}\n", "not YAML: .* at line 2, column 1$"),
    (
        "anaconda",
        f"%post\necho {SECRET}\n",
        "^the section %post in line 1 .* has no %end$",
    ),
    ("anaconda", f"text\n%pre\n%packages\n{SECRET}\n%end\n", "^the section %pre in line 2 .* has no %end$"),
    ("anaconda", f"rootpw {SECRET}\n%end\n", "^line 2 of the kickstart file ends no section"),
    ("anaconda", f"text\nrootpw {SECRET}\0\n", "^the config has a NUL in line 2$"),
    (
        "suse",
        f"<profile>\n  <a>{SECRET}</b>\n</profile>",
        "^the profile is not XML: mismatched tag at line 2",
    ),
    ("suse", f"d-i {SECRET}", "^the profile is not XML: .* at line 1, column 1$"),
    ("suse", '<!DOCTYPE p [\n<!ENTITY a SYSTEM "file:///etc/shadow">]>\n<p>&a;</p>', "an entity in line 2"),
    (
        "proxmox",
        f"[global]\nroot-password = {SECRET}\n",
        r"^the answer file is not TOML: .* line 2,",
    ),
    ("proxmox", f"[global]\nroot-password = '{SECRET}'\n[network]\na=1", r"no table \[disk-setup\]$"),
    (
        "proxmox",
        f"{SECRET} = 1\n{SECRET} = 2\n",
        r"^the answer file is not TOML: .* line 2,",
    ),
    ("alpine", f"hostname: {SECRET}", "^the apkovl archive is not a tar.gz"),
    (
        "alpine",
        gzip.compress(SECRET.encode(), mtime=0).decode("latin-1"),  # the same in each process
        "^the apkovl archive is not a tar.gz",
    ),
    ("kairos", f"a: *{SECRET}-\n- b", "not YAML"),
    ("kairos", SECRET, "is not a mapping of keys at line 1, column 1$"),
    ("talos", f"a: b\n---\n[{SECRET}]\n", "is not a mapping of keys at line 3, column 1$"),
    ("esxi", f"rootpw {SECRET}\n#vmaccepteula\n", "has no line vmaccepteula"),
    ("flatcar", f"variant: flatcar\nversion: 1.0.0\npasswd: {SECRET}\n", "is Butane: translate it by butane"),
    ("flatcar", '{"ignition": {"version": "1.0.0"}}', "neither 2.x nor 3.x"),
    ("flatcar", f"#cloud-config {SECRET}", "is not a JSON object"),
]


def checks(name: str) -> Callable[[bytes], None]:
    return get_family(name).check


@pytest.mark.parametrize(
    ("name", "config"), [(name, each) for name, texts in VALID.items() for each in texts]
)
def test_config_that_the_family_reads_is_accepted(name: str, config: str) -> None:
    checks(name)(config.encode("latin-1"))


def test_archive_of_alpine_is_accepted() -> None:
    checks("alpine")(archive())


@pytest.mark.parametrize(("name", "config", "message"), INVALID)
def test_config_that_the_family_would_not_read_is_refused_with_its_place(
    name: str, config: str, message: str
) -> None:
    with pytest.raises(ConfigInvalid, match=message) as caught:
        checks(name)(config.encode("latin-1"))
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__context__) or caught.value.__suppress_context__


@pytest.mark.parametrize("name", ["debian-installer", "anaconda", "proxmox", "esxi"])
def test_text_that_is_not_utf_8_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"^the config is not UTF-8 in line 2$"):
        checks(name)(b"#\n\xff")


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("kairos", b"a: &a [x]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nd: [*c,*c,*c,*c]\n"),
        ("kairos", b"a: " + b"[" * 200_000),
        ("kairos", b"a: {" * 50_000),
        ("proxmox", b"a = " + b"[" * 50_000),
        ("suse", b"<a>" * 100_000),
        ("alpine", gzip.compress(bytes(1 << 26))),
        ("debian-installer", b" " * 1_000_000 + b"x"),
        ("debian-installer", b"a " * 500_000),
        ("flatcar", b"[" * 100_000),
    ],
)
def test_check_of_a_config_that_is_made_to_cost_much_ends(name: str, config: bytes) -> None:
    with suppress(ConfigInvalid):
        checks(name)(config)
