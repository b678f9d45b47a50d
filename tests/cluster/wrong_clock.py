"""A wall clock that is wrong, or is set while the process runs, by libfaketime. The monotonic clock stays right: no machine's
is changed by setting the other."""

from pathlib import Path

SKEWED = Path(__file__).parent / "skewed"


class WrongClock:
    """The wall clock of one process; ``env`` is what it is started with."""

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
        """From now on it is so many seconds ahead of this machine's."""
        new = self._stamp.with_suffix(".new")
        new.write_text(f"{offset:+d}\n")
        new.replace(self._stamp)


def _library() -> Path:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    assert found, "libfaketime is missing (on Debian and Ubuntu: apt install libfaketime)"
    return found[0]
