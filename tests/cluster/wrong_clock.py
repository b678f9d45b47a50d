"""A wall clock that is wrong or changes while the process runs, faked by libfaketime.

The monotonic clock stays right, because setting the wall clock doesn't change it on any machine.
"""

from pathlib import Path

SKEWED = Path(__file__).parent / "skewed"


class WrongClock:
    """The wall clock of one process. Start the process with the environment ``env``."""

    def __init__(self, stamp: Path, offset: int):
        self._stamp = stamp
        self.set(offset)
        self.env = {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(stamp),
            "FAKETIME_CACHE_DURATION": "1",  # seconds until the file is read again
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # the same, in later releases
            "NO_FAKE_STAT": "1",
            "PYTHONPATH": str(SKEWED),
        }

    def set(self, offset: int) -> None:
        """Set the clock this many seconds ahead of this machine's clock."""
        new = self._stamp.with_suffix(".new")
        new.write_text(f"{offset:+d}\n")
        new.replace(self._stamp)


def _library() -> Path:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    assert found, "libfaketime is missing (on Debian and Ubuntu: apt install libfaketime)"
    return found[0]
