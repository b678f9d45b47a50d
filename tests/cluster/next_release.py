"""A further release of this package: a copy of it that differs as a later one may, for processes beside those of the present.

The schema is the same, and a message is still the run and the attempt; whatever else it carries, it carries as a header.
"""

import shutil
from pathlib import Path

from tests.services import ROOT

RELEASE = "99.0"
CHANGES = {
    "__init__.py": ('__version__ = "', f'__version__ = "{RELEASE}"  # "'),
    "dispatch/celery.py": (
        'message.headers.update({"dcron_job": run.job_name},',
        'message.headers.update({"dcron_job": run.job_name, "dcron_next": {"since": [99, 0]}},',
    ),
    "conf.py": ("SHARDS = whole_number(64,", "SHARDS = whole_number(48,"),
    "tasks.py": ("return f\"{hostname or 'celery'}/", "return f\"next-{hostname or 'celery'}/"),
}
"""In each module, what to replace by what: the release, the number of shards, a header nobody knows yet, and a mark on what it has executed."""


def install_next_release(directory: Path) -> dict[str, str]:
    """Make it there; returns the environment of a process that is to run it."""
    package = directory / "django_dcron"
    shutil.copytree(ROOT / "django_dcron", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new) in CHANGES.items():
        text = (package / name).read_text()
        assert text.count(old) == 1, f"{old!r} is not once in {name}"
        (package / name).write_text(text.replace(old, new))
    # The directory they are started in comes first otherwise, by -m and by Celery. A package is looked for once.
    (directory / "sitecustomize.py").write_text("import django_dcron  # noqa: F401\n")
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": f"{directory}:{ROOT}"}
