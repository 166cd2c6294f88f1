"""The environment of child processes: what every program may need, and what one program needs beside it.

``/proc/PID/environ`` shows it for as long as a process runs, so variables with secrets reach only those that
use them.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_EVERY = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "JOURNAL_STREAM"),
    *("LANG", "LANGUAGE", "LC_*", "TZ"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "OPENSSL_*"),
    "PYTHON*",
    *("LD_*", "GLIBC_TUNABLES", "MALLOC_*", "FAKETIME*"),  # read by the loader, libc and preloaded libraries
)
OBJECT_STORE = (
    *("AWS_*", "BOTO_CONFIG", "REQUESTS_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
"""What the SDK of S3 reads; credentials are among them."""
REGISTRY = ("REGISTRY_*", "INSECURE_REGISTRIES", "XDG_RUNTIME_DIR")
"""What names credentials and authorities of registries."""


def environment_of(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    """Return the variables of `environ` that every program may have, and those with a name or pattern."""
    patterns = (*_EVERY, *names)
    return {
        name: text
        for name, text in environ.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
