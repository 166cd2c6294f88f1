"""The site: `make site` builds it with Sphinx from the documents, into dist/site.

Sphinx has built the documents of Python for 18 years, and those of Linux. A site of its theme furo needs no
other host: its search runs in the browser, also on pages that are opened as files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from image_service import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "image-service"
copyright = "image-service maintainers"  # noqa: A001 - Sphinx's name
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
exclude_patterns = ["package.md"]  # the description of the wheel
myst_heading_anchors = 4
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = f"image-service {release}"
html_show_sphinx = False
html_copy_source = False
html_search_scorer = str(Path(__file__).with_name("scorer.js"))


def add_statuses(_app: Sphinx, document: str, source: list[str]) -> None:
    """Make an index of the statuses on the page of HTTP: the search leaves out numbers, but of the index."""
    if document == "http":
        statuses = sorted(set(re.findall(r"\b[345]\d\d(?= `)", source[0])))
        entries = "".join(f"```{{index}} !{status}\n```\n\n" for status in statuses)
        source[0] = source[0].replace("## Errors\n", f"{entries}## Errors\n")


def setup(app: Sphinx) -> None:
    """Sphinx calls it."""
    app.connect("source-read", add_statuses)
