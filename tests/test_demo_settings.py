"""The demo's settings, which people copy, keep every protection of a new Django project."""

import ast
import re
import runpy
from pathlib import Path

import django

DEMO = Path(__file__).resolve().parent.parent / "example_project" / "shop_site" / "settings.py"
TEMPLATE = (
    Path(django.__file__).parent / "conf" / "project_template" / "project_name" / "settings.py-tpl"
)


def test_demo_has_the_middleware_of_a_new_project() -> None:
    found = re.search(r"^MIDDLEWARE = (\[.*?^\])", TEMPLATE.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    of_a_new_project = ast.literal_eval(found[1])
    assert "django.middleware.clickjacking.XFrameOptionsMiddleware" in of_a_new_project
    assert {*of_a_new_project} <= {*runpy.run_path(str(DEMO))["MIDDLEWARE"]}
