"""Configure the docs site: Sphinx, MyST and Furo. ``make docs`` builds it."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from django_dcron import __version__  # noqa: E402

project = "django-dcron"
author = "The django-dcron authors"
project_copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

# MyST: links to headings use the anchors that code hosts generate, too.
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4
smartquotes = False  # they would change the quotes in JSON examples

highlight_language = "none"  # blocks without a language are commands and output

nitpicky = True

# The link check covers local files only: a build must not depend on other hosts.
linkcheck_ignore = [r"https?://"]

html_theme = "furo"
html_title = "django-dcron"
html_static_path = ["_static"]
html_css_files = ["dcron.css"]
html_show_sphinx = False
html_theme_options = {
    "source_repository": "https://github.com/example/django-dcron/",
    "source_branch": "main",
    "source_directory": "docs/",
    "top_of_page_buttons": ["view"],
}
copybutton_prompt_text = "$ "
