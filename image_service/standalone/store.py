"""The stand-in's infra-envs in SQLite. Every call blocks: they belong into one thread of their own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import attrs
from sqlalchemy import (
    JSON,
    Column,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    Text,
    create_engine,
    inspect,
)

from image_service.coreos.kargs import KernelArgument, Operation
from image_service.errors import NotFound
from image_service.images.reference import Kind
from image_service.standalone.infra_env import InfraEnv

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_METADATA = MetaData()
_INFRA_ENVS = Table(
    "infra_envs",
    _METADATA,
    Column("id", String(36), primary_key=True),
    Column("name", Text, nullable=False),
    Column("openshift_version", Text, nullable=False),
    Column("cpu_architecture", Text, nullable=False),
    Column("image_type", Text, nullable=False),
    Column("ignition_config_override", Text),
    Column("kernel_arguments", JSON, nullable=False),  # list of pairs
    Column("network_keyfiles", JSON, nullable=False),  # object
    Column("ramdisk", LargeBinary),
    Column("created_at", Integer, nullable=False),  # seconds since 1970, UTC
    Column("updated_at", Integer, nullable=False),
)


class Store:
    """Infra-envs on disk.

    Args:
        path: the database; made when it is not there.
    """

    def __init__(self, path: Path) -> None:
        self._engine = create_engine(f"sqlite:///{path}")
        _METADATA.create_all(self._engine)
        _add_ramdisk_column(self._engine)

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def add(self, infra_env: InfraEnv) -> InfraEnv:
        """Keep a new infra-env."""
        with self._engine.begin() as connection:
            connection.execute(_INFRA_ENVS.insert().values(_to_row(infra_env)))
        return infra_env

    def find(self, infra_env_id: str) -> InfraEnv:
        """Get one; raises ``NotFound``."""
        with self._engine.begin() as connection:
            row = connection.execute(_INFRA_ENVS.select().where(_INFRA_ENVS.c.id == infra_env_id)).first()
        if row is None:
            raise _not_found(infra_env_id)
        return _from_row(row)

    def list_all(self) -> list[InfraEnv]:
        """Get all, in the order of their names."""
        with self._engine.begin() as connection:
            rows = connection.execute(_INFRA_ENVS.select().order_by(_INFRA_ENVS.c.name, _INFRA_ENVS.c.id))
            return [_from_row(row) for row in rows]

    def update(self, infra_env_id: str, fields: Mapping[str, Any], now: datetime) -> InfraEnv:
        """Change some fields.

        Args:
            infra_env_id: of which.
            fields: the new values.
            now: UTC; the date is a second later than the last change where the clock has not moved on, since
                Last-Modified, which is told in seconds, must differ after every change.

        Returns:
            the infra-env as it is now.

        Raises:
            NotFound: there is none.
        """
        before = self.find(infra_env_id)
        updated_at = max(now.replace(microsecond=0), before.updated_at + timedelta(seconds=1))
        after = attrs.evolve(before, **fields, updated_at=updated_at)
        with self._engine.begin() as connection:
            connection.execute(
                _INFRA_ENVS.update().where(_INFRA_ENVS.c.id == infra_env_id).values(_to_row(after))
            )
        return after

    def remove(self, infra_env_id: str) -> None:
        """Forget one; raises ``NotFound``."""
        with self._engine.begin() as connection:
            removed = connection.execute(_INFRA_ENVS.delete().where(_INFRA_ENVS.c.id == infra_env_id))
        if not removed.rowcount:
            raise _not_found(infra_env_id)


def _add_ramdisk_column(engine: Engine) -> None:
    """A database of an earlier release has none."""
    if "ramdisk" not in {column["name"] for column in inspect(engine).get_columns(_INFRA_ENVS.name)}:
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE infra_envs ADD COLUMN ramdisk BLOB")


def _not_found(infra_env_id: str) -> NotFound:
    return NotFound(f"there is no infra-env {infra_env_id}")


def _to_row(infra_env: InfraEnv) -> dict[str, Any]:
    return attrs.asdict(infra_env, recurse=False) | {
        "image_type": infra_env.image_type.value,
        "kernel_arguments": [
            (argument.operation.value, argument.value) for argument in infra_env.kernel_arguments
        ],
        "created_at": int(infra_env.created_at.timestamp()),
        "updated_at": int(infra_env.updated_at.timestamp()),
    }


def _from_row(row: Row[Any]) -> InfraEnv:
    columns = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's documented name for it
    columns["image_type"] = Kind(columns["image_type"])
    columns["kernel_arguments"] = tuple(
        KernelArgument(Operation(operation), value) for operation, value in columns["kernel_arguments"]
    )
    for name in ("created_at", "updated_at"):
        columns[name] = datetime.fromtimestamp(columns[name], UTC)
    return InfraEnv(**columns)
