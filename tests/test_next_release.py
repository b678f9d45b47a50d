"""The next release that the cluster's scenarios deploy can be made of this one."""

import subprocess
import sys
from pathlib import Path

from tests.cluster.next_release import CHANGES, RELEASE, install_next_release


def test_it_differs_where_it_should(tmp_path: Path) -> None:
    environment = install_next_release(tmp_path)
    asked = [
        sys.executable,
        "-c",
        "import django_dcron; print(django_dcron.__version__, django_dcron.__file__)",
    ]
    said = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert said == [RELEASE, str(tmp_path / "django_dcron" / "__init__.py")]
    for name in CHANGES:
        compile((tmp_path / "django_dcron" / name).read_text(), name, "exec")
