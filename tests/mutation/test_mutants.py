"""The mutation tests themselves: what they mutate, in which order, and that hanging mutants end."""

import threading
from collections import defaultdict
from pathlib import Path

import pytest

from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.mutants import ROOT, Mutant, mutants_of, shuffled
from tests.mutation.processes import Died, TimedOut, forked

CODE = '''
"""Says nothing."""

import logging

LIMIT = 5
logger = logging.getLogger("some.name")


class Queue:
    size: int = LIMIT

    def take(self, many: int, using: str) -> bool:
        if many > self.size:
            logger.warning("too many: %d", many)
            raise ValueError("too many")
        reserve(self.size - many, using=using)
        return True
'''


def written(directory: Path, code: str) -> list[Mutant]:
    path = directory / "code.py"
    path.write_text(code)
    return mutants_of(path)


def changes(mutants: list[Mutant]) -> set[tuple[str, str, str]]:
    return {(mutant.function, *mutant.change) for mutant in mutants if mutant.valid}


def test_mutants_change_code_but_not_log_lines_or_prose(tmp_path: Path) -> None:
    take, reserve = "Queue.take", "reserve(self.size - many, using=using)"
    assert changes(written(tmp_path, CODE)) == {
        ("", "LIMIT = 5", "LIMIT = 6"),
        ("", "LIMIT = 5", "LIMIT = None"),
        ("", "size: int = LIMIT", "size: int = None"),
        (take, "if many > self.size:", "if many >= self.size:"),
        (take, "if many > self.size:", "if not (many > self.size):"),
        (take, 'raise ValueError("too many")', "raise ValueError(None)"),
        (take, reserve, "pass"),
        (take, reserve, "reserve(self.size + many, using=using)"),
        (take, reserve, "reserve(None, using=using)"),
        (take, reserve, "reserve(using=using)"),
        (take, "return True", "return False"),
    }


def test_moved_code_keeps_its_mutants_and_their_order(tmp_path: Path) -> None:
    before = [mutant.change for mutant in shuffled(written(tmp_path, CODE), seed=3)]
    moved = CODE.replace("LIMIT = 5", "FIRST = 1\nLIMIT = 5")
    after = [mutant.change for mutant in shuffled(written(tmp_path, moved), seed=3)]
    assert [change for change in after if not change[0].startswith("FIRST")] == before
    assert before != [mutant.change for mutant in shuffled(written(tmp_path, CODE), seed=4)]


@pytest.mark.nightly
def test_each_equivalent_mutant_exists() -> None:
    """An entry whose code has changed has to be reviewed."""
    by_function = defaultdict(set)
    for path in {each.file for each in EQUIVALENT}:
        functions = {each.function for each in EQUIVALENT if each.file == path}
        for mutant in mutants_of(Path(path)):
            if mutant.function in functions:
                by_function[path, mutant.function].add(mutant.change)
    stale = [each for each in EQUIVALENT if each[2:4] not in by_function[each.file, each.function]]
    assert not stale
    assert all((ROOT / each.file).exists() and each.reason for each in EQUIVALENT)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_process_returns_its_result_or_is_killed() -> None:
    def hang() -> None:
        while True:
            pass

    def die() -> None:
        raise SystemExit

    assert forked(lambda: {"a": [1]}, 1) == {"a": [1]}
    with pytest.raises(TimedOut):
        forked(hang, 0)
    with pytest.raises(TimedOut):
        forked(threading.Event().wait, 0.05)
    with pytest.raises(Died):
        forked(die, 1)
