"""The site: all pages of docs/ and results/, as they lie in the repository, so that their links are the same in both.

`make docs` builds it. Its root is the repository's: other files that pages name come along, for download.
"""

import os
import sys

sys.path.insert(0, os.path.abspath("../src"))

project = "polydice"
author = "the polydice developers"
copyright = author

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "results/**/README.md", "results/fair/[PD]*.md", "CHANGELOG.md", "CONTRIBUTING.md",
                    "SECURITY.md"]  # fmt: skip
exclude_patterns = [".*", "build", "runs"]
default_role = "code"  # what docstrings have in backticks
highlight_language = "none"  # of blocks that name none: commands and formulas
nitpicky = True
nitpick_ignore_regex = [("py:.*", r".*")]  # types of other packages: there is no index of them to link to

myst_heading_anchors = 4
autodoc_mock_imports = ["monai"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature has them
napoleon_custom_sections = ["Call"]

html_theme = "furo"
html_title = "polydice"
html_extra_path = ["site"]  # the page at the site's root
html_static_path = ["static"]
html_css_files = ["site.css"]
