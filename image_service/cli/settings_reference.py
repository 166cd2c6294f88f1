"""The reference page of all variables: ``python -m image_service.cli.settings_reference`` prints it."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from itertools import pairwise

from image_service.settings.jobs.role import JobsRoleSettings
from image_service.settings.settings import groups
from image_service.settings.variables import groups_of, variables_of

INTRODUCTION = """# Configuration

Everything is configured by environment variables. All of them are read and checked at start; if any is wrong,
the service reports every fault and does not start. A variable that is empty is not set. Durations are plain
seconds, sizes plain bytes. Where two names are given, the first that is set counts.

`image-service serve --check` checks the same without a start. It prints all faults; if there is none, it
prints the value of each setting, and warnings, and tries to reach assisted-service, the database of replicas
and the origins of base images (`http://` and `https://`) unless `--offline` is given. It writes no file and
binds no port.

Where the text may be in a file, `NAME=@/path/of/the/file` stands for the file's content, without white space
around it: UTF-8, at most 1 MiB.

`image-service jobs` reads the groups whose names begin with "Jobs", and of the others TLS, proxies, replicas,
storage, base images, CoreOS streams, downloads, remote base images, S3, administration and log;
and `IMAGE_SERVICE_BASE_URL`.

`make docs` generates this page from `image_service/settings/`."""


def render_reference() -> str:
    """Return the page, as Markdown."""
    sections, documented = [INTRODUCTION], set()
    for group in dict.fromkeys(group for _, group in (*groups(), *groups_of(JobsRoleSettings))):
        sections.append(f"## {(group.__doc__ or '').rstrip('.')}")
        for variable, meaning in zip(variables_of(group), _meanings(group), strict=True):
            if variable.names in documented:  # another group has it too
                continue
            documented.add(variable.names)
            sections.append("### " + ", else ".join(f"`{name}`" for name in variable.names))
            sections.append(textwrap.fill(" ".join(meaning.split()), 110, break_on_hyphens=False))
            if variable.from_file:
                sections.append(f"In a file: `{variable.names[0]}=@/path/of/the/file`")
            if variable.default is not None:
                sections.append(f"Default: `{variable.default}`")
    return "\n\n".join(sections) + "\n"


def _meanings(group: type) -> list[str]:
    """Return the strings below the declarations of a group."""
    (tree,) = ast.parse(inspect.getsource(group)).body
    pairs = pairwise(tree.body) if isinstance(tree, ast.ClassDef) else ()
    return [
        below.value.value
        for declaration, below in pairs
        if isinstance(declaration, ast.AnnAssign)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    ]


if __name__ == "__main__":
    sys.stdout.write(render_reference())
