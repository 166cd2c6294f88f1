"""Checks of configs before they are laid over an ISO, by the grammars of their languages.

What they refuse, its family would refuse or ignore, long after the machine was booted. A message has the line
and column, and no content: a config has passwords.
"""

from __future__ import annotations

import json
import re
import tomllib
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol
from xml.parsers import expat

import yaml

from image_service.core.errors import ConfigInvalid
from image_service.core.families.coreos.ignition import is_butane

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HEADERS = re.compile(
    rb"#cloud-config|#!|#include|#cloud-boothook|#part-handler|#cloud-config-(?:archive|jsonp)"
    rb"|## template: *jinja|content-type:|mime-version:|\x1f\x8b",
    re.IGNORECASE,
)
_PRESEED_TYPES = frozenset(
    {"string", "boolean", "select", "multiselect", "note", "text", "password", "title", "error", "seen"}
)
_PRESEED_LINE = re.compile(r"\s*(\S+)(?:\s+(\S+)(?:\s+(\S+)(?:\s.*)?)?)?")
_SECTION = re.compile(r"%(\w[\w-]*)")
_WITHOUT_END = frozenset({"include", "ksappend"})
_ANSWER_TABLES = ("global", "network", "disk-setup")
_EULA = re.compile(r"^\s*(?:vm)?accepteula\b", re.MULTILINE)
_QUOTED = re.compile(r"'[^']{2,}'|\"[^\"]{2,}\"|\('.*?\)")
_ONE = re.compile(r"\+?(?:0x|0b)?[0_]*1_*(?:\.0*)?")  # as YAML 1.1 writes the number
_TAR_MARK, _TAR_MARK_AT, _BLOCK = b"ustar", 257, 512


def check_user_data(config: bytes) -> None:
    """Refuse user-data that cloud-init would ignore, and cloud-config that is not YAML."""
    if not _HEADERS.match(config):
        raise ConfigInvalid(
            "cloud-init would ignore the user-data: its first line must be #cloud-config, #! of a script, or"
            " another header"
        )
    if config.startswith(b"#cloud-config") and config[13:14] in {b"\n", b"\r", b""}:
        check_yaml(config)


def check_yaml(config: bytes) -> None:
    """Refuse what is not YAML, or whose documents are not mappings."""
    for _ in _values(config):
        pass


def check_autoinstall(config: bytes) -> None:
    """Refuse YAML without subiquity's ``version: 1``, under the key ``autoinstall`` if that is there."""
    values = dict(_values(config))
    prefix = "autoinstall." if "autoinstall" in values else ""
    if isinstance(values.get("autoinstall"), yaml.AliasEvent) or f"{prefix}<<" in values:
        return  # the version may be elsewhere in the file
    value = values.get(f"{prefix}version")
    if value is None:
        raise ConfigInvalid(f"the autoinstall configuration has no key {prefix}version")
    is_one = isinstance(value, yaml.ScalarEvent) and value.implicit[0] and _ONE.fullmatch(value.value)
    is_plain = isinstance(value, yaml.ScalarEvent | yaml.CollectionStartEvent) and value.tag is None
    if is_plain and not is_one:
        place = _place(value.start_mark)
        raise ConfigInvalid(f"{prefix}version of the autoinstall configuration is not the number 1{place}")


def check_answer_file(config: bytes) -> None:
    """Refuse what is not TOML, or lacks a table of Proxmox' automatic installer."""
    text = _text(config)
    try:
        answers: Mapping[str, object] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigInvalid(f"the answer file is not TOML: {_QUOTED.sub('…', str(error))}") from None
    absent = [name for name in _ANSWER_TABLES if not isinstance(answers.get(name), dict)]
    if absent:
        raise ConfigInvalid(f"the answer file has no table [{absent[0]}]")


def check_xml(config: bytes) -> None:
    """Refuse what is not well-formed, and entities, which would be read from elsewhere."""
    parser = expat.ParserCreate()

    def refuse(*_: object) -> None:
        raise ConfigInvalid(f"the profile declares an entity in line {parser.CurrentLineNumber}")

    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(config, True)  # noqa: FBT003 - expat's own
    except expat.ExpatError as error:
        text = expat.ErrorString(error.code)
        raise ConfigInvalid(
            f"the profile is not XML: {text} at line {error.lineno}, column {error.offset + 1}"
        ) from None


def check_preseed(config: bytes) -> None:
    """Refuse lines that debconf would skip: each has owner, question, type and value."""
    for number, line in _joined_lines(_text(config)):
        match = _PRESEED_LINE.match(line)
        if match is None or line.lstrip().startswith("#"):
            continue
        if match[3] is None:
            raise ConfigInvalid(
                f"line {number} of the preseed file has fewer than the three words: owner, question and type"
            )
        if match[3] not in _PRESEED_TYPES:
            raise ConfigInvalid(
                f"line {number}, column {match.start(3) + 1} of the preseed file has no type of debconf:"
                f" one of {', '.join(sorted(_PRESEED_TYPES))}"
            )


def check_kickstart(config: bytes) -> None:
    """Refuse sections that do not end, which Anaconda refuses."""
    begun: tuple[int, str] | None = None
    for number, line in enumerate(_text(config).splitlines(), 1):
        match = _SECTION.match(line)
        if match is None or match[1] in _WITHOUT_END:
            continue
        if match[1] == "end":
            if begun is None:
                raise ConfigInvalid(f"line {number} of the kickstart file ends no section")
            begun = None
        elif begun is None:
            begun = number, match[1]
        else:
            break
    if begun is not None:
        raise ConfigInvalid(f"the section %{begun[1]} in line {begun[0]} of the kickstart file has no %end")


def check_esxi_kickstart(config: bytes) -> None:
    """Refuse a file that does not accept the license, with which ESXi's installer stops."""
    if not _EULA.search(_text(config)):
        raise ConfigInvalid("the kickstart file has no line vmaccepteula, which ESXi requires")


def check_apkovl(config: bytes) -> None:
    """Refuse what is not a compressed tar archive; its first block is unpacked."""
    block = b""
    with suppress(zlib.error):
        block = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(config, _BLOCK)
    if not block.startswith(_TAR_MARK, _TAR_MARK_AT):
        raise ConfigInvalid('the apkovl archive is not a tar.gz: give it as {"base64": …}')


def check_any_ignition(config: bytes) -> None:
    """Refuse what is not an Ignition config of version 2 or 3, and Butane by name."""
    parsed: object = None
    with suppress(ValueError, RecursionError):
        parsed = json.loads(config)
    if isinstance(parsed, dict):
        ignition = parsed.get("ignition")
        version = ignition.get("version") if isinstance(ignition, dict) else None
        if isinstance(version, str) and version[:2] in {"2.", "3."}:
            return
        raise ConfigInvalid("the config's 'ignition.version' is neither 2.x nor 3.x")
    if is_butane(config):
        raise ConfigInvalid("the config is Butane: translate it by butane to Ignition")
    raise ConfigInvalid(f"the Ignition config of {len(config)} bytes is not a JSON object")


def _values(config: bytes) -> Iterator[tuple[str, yaml.NodeEvent]]:
    """Yield the path and the first event of each value in a document, and in mappings in it.

    Each document must be a mapping.
    """
    opened: list[str | None] = []  # the prefix of paths in each open collection; None: none of its paths is
    keys: list[str | None] = []  # the key whose value is next in each of them; None: a key is next
    try:
        for event in yaml.parse(config, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            path = None
            if isinstance(event, yaml.CollectionEndEvent):
                opened.pop()
                keys.pop()
            elif isinstance(event, yaml.NodeEvent) and not opened:
                if not isinstance(event, yaml.MappingStartEvent):
                    raise ConfigInvalid(f"the config is not a mapping of keys{_place(event.start_mark)}")
                path = ""
            elif isinstance(event, yaml.NodeEvent) and opened[-1] is not None:
                if keys[-1] is None:
                    keys[-1] = event.value if isinstance(event, yaml.ScalarEvent) else ""
                else:
                    path, keys[-1] = opened[-1] + keys[-1], None
                    yield path, event
            if isinstance(event, yaml.CollectionStartEvent):
                is_read = path is not None and isinstance(event, yaml.MappingStartEvent) and len(opened) <= 1
                opened.append((f"{path}." if path else "") if is_read else None)
                keys.append(None)
    except yaml.MarkedYAMLError as error:
        problem = _QUOTED.sub("…", error.problem or "it is damaged")
        raise ConfigInvalid(f"the config is not YAML: {problem}{_place(error.problem_mark)}") from None
    except yaml.YAMLError:
        raise ConfigInvalid("the config is not YAML: it has a character that is not allowed") from None


class _Mark(Protocol):
    line: int
    column: int


def _place(mark: _Mark | None) -> str:
    return f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _text(config: bytes) -> str:
    try:
        text = config.decode()
    except UnicodeDecodeError as error:
        line = config.count(b"\n", 0, error.start) + 1
        raise ConfigInvalid(f"the config is not UTF-8 in line {line}") from None
    if (at := text.find("\0")) >= 0:
        raise ConfigInvalid(f"the config has a NUL in line {text.count(chr(10), 0, at) + 1}")
    return text


def _joined_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers; a backslash at the end of one continues it."""
    begun, parts = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun or number
        if line.endswith("\\"):
            parts += line[:-1]
            continue
        yield begun, parts + line
        begun, parts = 0, ""
    if parts:
        yield begun, parts
