"""A later release of this package: a slightly changed copy, which runs with the current one.

The schema is the same, and a message is still the run and the attempt. Additions to a message are
headers.
"""

import shutil
from pathlib import Path

from tests.services import ROOT

RELEASE = "99.0"
CHANGES = {
    "__init__.py": ('__version__ = "', f'__version__ = "{RELEASE}"  # "'),
    "dispatch/messages.py": (
        'message.headers.update({"dcron_job": run.job_name},',
        'message.headers.update({"dcron_job": run.job_name, "dcron_next": {"since": [99, 0]}},',
    ),
    "conf.py": ("SHARDS = whole_number(64,", "SHARDS = whole_number(48,"),
    "tasks.py": ("return f\"{hostname or 'celery'}/", "return f\"next-{hostname or 'celery'}/"),
}
"""For each module, the text to replace and its replacement.

The changes are the release, the number of shards, a header that the current release doesn't know,
and a mark on executed runs.
"""


def install_next_release(directory: Path) -> dict[str, str]:
    """Create the release in ``directory``. Return the environment of a process that runs it."""
    package = directory / "django_dcron"
    shutil.copytree(ROOT / "django_dcron", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new) in CHANGES.items():
        text = (package / name).read_text()
        assert text.count(old) == 1, f"{old!r} must occur exactly once in {name}"
        (package / name).write_text(text.replace(old, new))
    # Otherwise, ``-m`` and Celery put the working directory first in the path. Python looks for
    # a package only once.
    (directory / "sitecustomize.py").write_text("import django_dcron  # noqa: F401\n")
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": f"{directory}:{ROOT}"}
