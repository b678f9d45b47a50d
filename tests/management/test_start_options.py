"""Test the options of a background node, which ``restart`` reads again."""

import errno
import os
import re
from pathlib import Path

import pytest

from django_dcron.management.dcron.pid_file import PidFile
from django_dcron.management.dcron.start_options import (
    StartOptions,
    load_options,
    options_path,
    store_options,
)

OPTIONS = StartOptions(
    daemon=False,
    directory="/srv/shop",
    log_file="",
    health_file="",
    started_at="2026-11-20T12:00:00+00:00",
    settings="shop.settings",
    arguments=["--name=a"],
)


@pytest.fixture
def file(tmp_path: Path) -> PidFile:
    return PidFile(tmp_path / "dcron.pid")


def test_stored_options_are_loaded(file: PidFile) -> None:
    assert load_options(file) is None
    store_options(file, OPTIONS)
    assert load_options(file) == OPTIONS
    assert list(options_path(file).parent.iterdir()) == [options_path(file)]


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"gone": 1}'])
def test_unreadable_options_are_ignored(file: PidFile, content: bytes) -> None:
    options_path(file).write_bytes(content)
    assert load_options(file) is None


def test_options_are_not_written_through_a_symbolic_link(file: PidFile, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    temporary = tmp_path / f".{options_path(file).name}.{os.getpid()}"
    temporary.symlink_to(precious)
    with pytest.raises(OSError, match=re.escape(str(temporary))) as refused:
        store_options(file, OPTIONS)
    assert refused.value.errno == errno.ELOOP
    assert precious.read_text() == "keep me"
