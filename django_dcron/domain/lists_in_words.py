"""Lists, as of numbers: 1 to 5, 10 and 20."""

from collections.abc import Iterable, Sequence

from django_dcron.phrases import Language


def runs(values: Iterable[int]) -> list[list[int]]:
    """Ascending values, those together that follow on each other."""
    found: list[list[int]] = []
    for value in values:
        if found and found[-1][-1] == value - 1:
            found[-1].append(value)
        else:
            found.append([value])
    return found


def numbers(found: Iterable[Sequence[int]], one: str, several: str, names: tuple[str, str, str]) -> list[str]:
    """Runs in words: ``one`` is the template for a number, ``several`` for three or more in a row. ``names`` are those of the
    values in them: of the one, the first and the last."""
    number, first, last = names
    words: list[str] = []
    for run in found:
        if len(run) > 2:
            words.append(several % {first: run[0], last: run[-1]})
        else:
            words += [one % {number: value} for value in run]
    return words


def listed(words: Sequence[str], language: Language) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *others, last = words
    if not others:
        return last
    text = language.gettext("%(others)s and %(last)s")
    return text % {"others": language.pgettext("in a list", ", ").join(others), "last": last}


def either(words: Sequence[str], language: Language) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    *others, last = words
    if not others:
        return last
    text = language.gettext("%(others)s or %(last)s")
    return text % {"others": language.pgettext("in a list", ", ").join(others), "last": last}
