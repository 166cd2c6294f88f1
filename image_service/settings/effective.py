"""The settings in force, as lines of text without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from image_service.common.http.origins import Proxy
from image_service.settings.settings import groups
from image_service.settings.stream_sources import StreamSource
from image_service.settings.variables import variables_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from image_service.settings.os_images import OsImage
    from image_service.settings.settings import Settings
    from image_service.settings.variables import Variable

MASK = "***"
_INDENT = " " * 13


def render_settings(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each setting: its origin, name and value; below it, one for each image and stream.

    The origin is `environment`, `file`, `default` or `unset`.

    Args:
        environ: such as ``os.environ``.
    """
    for name, group in groups():
        values = attrs.astuple(getattr(settings, name), recurse=False)
        for variable, value in zip(variables_of(group), values, strict=True):
            yield from _render(variable, value, environ)


def _render(variable: Variable, value: object, environ: Mapping[str, str]) -> Iterator[str]:
    name, text = variable.find(environ)
    entries: Iterable[str] = ()
    if variable.is_secret and isinstance(value, tuple):
        entries = map(_describe, value)
    if text is not None and variable.is_file(text):
        yield _line("file", name, text)
        if not variable.is_secret:
            entries = [str(value)]
    elif text is not None:
        origin = "environment" if variable.is_set(environ) else "default"
        yield _line(origin, name, _mask(value) if variable.is_secret else text)
    elif value == variable.absent:
        yield _line("unset", name, "")
    else:  # found out, such as the number of connections
        yield _line("default", name, str(value))
    yield from (f"{_INDENT}{entry}" for entry in entries)


def _line(origin: str, name: str, shown: str) -> str:
    return f"{origin:{len(_INDENT)}}{name}={shown}"


def _describe(entry: OsImage | StreamSource) -> str:
    """An image or a stream, without the query of its URL."""
    path, mark, _ = entry.url.partition("?")
    url = path + mark + (MASK if mark else "")
    if isinstance(entry, StreamSource):
        version = f" of OpenShift {entry.openshift_version}" if entry.openshift_version else ""
        return f"{entry.stream}{version} ({', '.join(entry.architectures)}; {entry.keep} releases): {url}"
    versions = ", ".join(entry.openshift_versions)
    return f"{versions} ({entry.version} {entry.cpu_architecture} {entry.image_type}): {url}"


def _mask(value: object) -> str:
    """A secret; of header fields and query parameters, the names are shown, and the URL of a proxy."""
    if isinstance(value, Proxy):
        return f"http://{MASK}@{value.netloc}" if value.authorization else str(value)
    return ", ".join(f"{name}={MASK}" for name in value) if isinstance(value, Mapping) else MASK
