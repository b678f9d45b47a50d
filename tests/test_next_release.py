"""The next release, which the cluster scenarios deploy, can be made from this one."""

import subprocess
import sys
from pathlib import Path

from tests.cluster.next_release import CHANGES, RELEASE, install_next_release


def test_next_release_is_importable_and_has_its_version(tmp_path: Path) -> None:
    environment = install_next_release(tmp_path)
    command = [
        sys.executable,
        "-c",
        "import django_dcron; print(django_dcron.__version__, django_dcron.__file__)",
    ]
    printed = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert printed == [RELEASE, str(tmp_path / "django_dcron" / "__init__.py")]
    for name in CHANGES:
        compile((tmp_path / "django_dcron" / name).read_text(), name, "exec")
