"""The documentation site: every Markdown page of the repository, the command line, the Python API.

    tox run -e docs        writes site/docs/index.html

The source folder is the repository itself, so a link between two pages works on the site as it does
in a checkout. A broken link inside the site is an error.
"""

import sys
from pathlib import Path

import llmb

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "llmb"
author = "the llmb authors"
version = release = llmb.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "json_schema",
]
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**",
    "benchmarks/*.md",
    "docker/README.md",
    "plugins/README.md",
    "plugins/*/README.md",
    "submissions/*.md",
    "submissions/*/*/*/*/README.md",
    "tests/cheats/README.md",
]
exclude_patterns = ["docs/_extensions"]

#: The README of a bundle is reached from a table of results, and is in no list of pages.
suppress_warnings = ["toc.not_included"]
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True

html_theme = "furo"
html_title = f"llmb {release}"
html_permalinks_icon = "#"
html_copy_source = False
html_show_copyright = False
