"""The page at ``/`` for browsers, which describes the server."""

from __future__ import annotations

import base64
from hashlib import sha256
from html import escape

from image_service import __version__

_STYLE = """
:root { color-scheme: light dark; background: Canvas; color: CanvasText; }
a { color: LinkText; }
body { max-width: 42rem; margin: 3rem auto; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif; }
code { overflow-wrap: anywhere; }
"""
_STYLE_DIGEST = base64.b64encode(sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_DIGEST}'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
PAGE_FIELDS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Vary", "Accept"),
)
"""Header fields of the page."""


def render_landing_page(base_path: str) -> bytes:
    """Return the page.

    Args:
        base_path: path of the service's base URL, without a final slash.
    """
    base = escape(base_path)
    page = f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>image-service</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>image-service</h1>
<p>This server hands out boot images of CoreOS. Each is a published image, customized for one infra-env
while it is read. Machines boot from its URL, such as
<code>{base}/byid/INFRA-ENV/VERSION/ARCH/full.iso</code>; assisted-service gives the URLs.</p>
<ul>
<li><a href="{base}/openapi.json">The URLs of this server</a>, as an OpenAPI document</li>
<li><a href="{base}/health">Health</a>: whether images can be served now</li>
</ul>
<p>The listener for administration has a page with the state of images and mounts.</p>
<p>Version {escape(__version__)}</p>
</main>
</body>
</html>
"""
    return page.encode()
