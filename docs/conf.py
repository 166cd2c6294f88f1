"""The site: `make site` builds it with Sphinx from the documents, into dist/site.

Sphinx has built the documents of Python for 18 years, and those of Linux. A site of its theme furo needs no
other host: its search runs in the browser, also on pages that are opened as files.
"""

from __future__ import annotations

from image_service import __version__

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
