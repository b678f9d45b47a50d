"""Every locked package has the hashes of its files, which the installation checks."""

import re
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"


@pytest.mark.parametrize("name", ["demo.txt", "dev.txt", "docs.txt", "mariadb.txt", "uv.txt"])
def test_every_package_has_hashes(name: str) -> None:
    lines = [
        line for line in (REQUIREMENTS / name).read_text().splitlines() if not line.startswith("#")
    ]
    entries = "\n".join(lines).replace("\\\n", "").splitlines()
    assert entries
    assert all(re.match(r"[\w.-]+==", entry) and "--hash=sha256:" in entry for entry in entries)


def test_installation_requires_hashes() -> None:
    assert "--require-hashes" in (REQUIREMENTS / "install.sh").read_text()
