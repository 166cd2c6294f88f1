"""Tables in CSV, of which each line makes an infra-env: columns are named as options of the command."""

from __future__ import annotations

import base64
import csv
import io
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from image_service.core.errors import InvalidParameter
from image_service.core.families.coreos.ignition import is_butane

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    ReadFile: TypeAlias = Callable[[str], bytes]

MAX_ROWS = 512
MAX_TABLE_CHARACTERS = 1024 * 1024
_TEXTS = {
    "name": "name",
    "base": "openshift_version",
    "arch": "cpu_architecture",
    "hostname": "hostname",
}
_CONFIGS = ("ignition", "butane", "config")
_COLUMNS = (*_TEXTS, *_CONFIGS, "ssh_key", "karg", "network", "mac")
_DEFAULT_INTERFACE = "eth0"


@attrs.frozen
class TableRow:
    """A row of a table.

    Args:
        line: of the table; where the row ends.
        values: by column, without empty ones.
        surplus: it has more cells than the table has columns.
    """

    line: int
    values: Mapping[str, str]
    surplus: bool

    @property
    def name(self) -> str | None:
        """That of the infra-env."""
        return self.values.get("name")

    @property
    def mac(self) -> str | None:
        """The MAC addresses of its machine, as they are written."""
        return self.values.get("mac")

    def fields(self, common: Mapping[str, Any], read: ReadFile) -> dict[str, Any]:
        """Return the fields of an infra-env: those of the row, and else those that all rows have in common.

        Args:
            read: returns the content of a file by its name in the table.

        Raises:
            InvalidParameter: the row cannot be an infra-env; or what `read` raises.
        """
        if self.surplus:
            raise InvalidParameter("the line has more cells than the first line has columns")
        own = {field: self.values[name] for name, field in _TEXTS.items() if name in self.values}
        fields = {**common, **own}
        if not fields.get("name") or not fields.get("openshift_version"):
            raise InvalidParameter("there is no name, or no base")
        if self.values.keys() & set(_CONFIGS):
            fields |= {"ignition_config_override": None, "family_config": None, **self._configs(read)}
        if "ssh_key" in self.values:
            fields["ssh_authorized_key"] = self._read_text("ssh_key", read)
        if "karg" in self.values:
            added = [{"operation": "append", "value": word} for word in self.values["karg"].split()]
            fields["kernel_arguments"] = [*(common.get("kernel_arguments") or ()), *added]
        if "network" in self.values:
            fields["static_network_config"] = [self._network(read)]
        return fields

    def _configs(self, read: ReadFile) -> dict[str, Any]:
        if {"ignition", "butane"} <= self.values.keys():
            raise InvalidParameter("ignition and butane: only one of them is possible")
        configs: dict[str, Any] = {}
        for column in {"ignition", "butane"} & self.values.keys():
            configs["ignition_config_override"] = text = self._read_text(column, read)
            if column == "butane" and not is_butane(text.encode()):
                raise InvalidParameter(
                    f"butane {self.values[column]}: is not Butane, which has a line variant: NAME"
                )
        if "config" in self.values:
            configs["family_config"] = {"base64": base64.b64encode(read(self.values["config"])).decode()}
        return configs

    def _network(self, read: ReadFile) -> Mapping[str, Any]:
        if self.mac is None:
            raise InvalidParameter("network needs mac: MAC of eth0, or NAME=MAC of each interface")
        pairs = [word.rpartition("=") for word in self.mac.split()]
        mapping = [
            {"logical_nic_name": name or _DEFAULT_INTERFACE, "mac_address": mac} for name, _, mac in pairs
        ]
        return {"network_yaml": self._read_text("network", read), "mac_interface_map": mapping}

    def _read_text(self, column: str, read: ReadFile) -> str:
        name = self.values[column]
        try:
            return read(name).decode()
        except UnicodeDecodeError:
            raise InvalidParameter(f"{column} {name}: is not text in UTF-8") from None


def parse_table(text: str) -> list[TableRow]:
    """Return the rows of a table, whose first line names the columns.

    Raises:
        InvalidParameter: it is not such a table; the detail names the line.
    """
    if len(text) > MAX_TABLE_CHARACTERS:
        raise InvalidParameter(f"the table has {len(text)} characters, more than {MAX_TABLE_CHARACTERS}")
    text = text.removeprefix("\ufeff")
    head = text.partition("\n")[0]
    delimiter = ";" if ";" in head and "," not in head else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        columns = [column.strip() for column in reader.fieldnames or ()]
        reader.fieldnames = columns
        _check_columns(columns)
        rows = [
            TableRow(
                reader.line_num,
                {column: cells[column].strip() for column in columns if (cells[column] or "").strip()},
                None in cells,
            )
            for cells in islice(reader, MAX_ROWS + 1)
        ]
    except csv.Error as error:
        raise InvalidParameter(f"line {reader.reader.line_num}: {error}") from None
    if len(rows) > MAX_ROWS:
        raise InvalidParameter(f"the table has more than {MAX_ROWS} lines below the first one")
    return rows


def _check_columns(columns: list[str]) -> None:
    unknown = sorted(set(columns) - set(_COLUMNS))
    if "name" not in columns or unknown or len(set(columns)) < len(columns):
        raise InvalidParameter(
            f"the first line must name columns, each once: name, and of {', '.join(_COLUMNS[1:])}"
            + f"; not {', '.join(map(ascii, unknown))}" * bool(unknown)
        )
