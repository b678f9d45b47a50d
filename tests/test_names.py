"""Public classes and functions at the top level of modules have one meaning each.

A search for a name finds one definition. Modules that implement the same interface, of which a
caller picks one by name, are the exception.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase

from tests.services import ROOT

PACKAGE = ROOT / "django_dcron"
INTERFACES = {
    # name: the modules that may define it, because they implement one interface
    "Command": "management.commands.*",  # Django's management commands
    "add_arguments": "management.dcron.*",  # subcommands of manage.py dcron: Subcommand
    "run": "management.dcron.*",
    "context": "admin.dashboard.*",  # sections of the dashboard
    "read": "contrib.importers.*",  # sources of imports
    "runs_since": "contrib.importers.*",
    "entries_by_task": "contrib.importers.celery_*",
    "hand_back": "contrib.importers.*",
    "find": "targets.*",  # kinds of targets, which targets.registry calls in turn
    "keys": "targets.*",
    "discovery_problem": "targets.*",
    "why_unknown": "targets.*",
    "execute_run": "*tasks",  # the entry point of a worker: of Celery, of Django's tasks
    "main": "*",  # of modules that are run by their name (python -m)
}


def _definitions() -> Iterator[tuple[str, str]]:
    """Yield name and module of each public class and function."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(
                node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            ) and not node.name.startswith("_"):
                yield node.name, module


def test_each_public_name_has_one_definition() -> None:
    modules = defaultdict(list)
    for name, module in _definitions():
        if not module.startswith("migrations."):
            modules[name].append(module)
    assert len(modules) > 500, "the search finds the package's definitions"
    shared = {name: found for name, found in modules.items() if len(found) > 1}
    outside = {
        name: found
        for name, found in shared.items()
        if not all(fnmatchcase(module, INTERFACES.get(name, "")) for module in found)
    }
    assert outside == {}
    assert INTERFACES.keys() == shared.keys(), "each exception is needed"
