"""Check the schedules of public projects, and what docs/how-to/migrate.md says of them."""

import json
import re

from tests.contrib.importers.public import COUNT, SCHEDULES
from tests.contrib.importers.test_clock_changes import PAGE

SECTION = PAGE[PAGE.index("### Distinct schedules") :].split("\n## ")[0]


def test_schedules_of_a_source_are_distinct() -> None:
    for schedules in SCHEDULES.values():
        assert len({json.dumps(each, sort_keys=True) for each in schedules}) == len(schedules)


def test_documented_counts_match_the_data() -> None:
    counts: dict[str, int] = {}
    for kind, schedules in SCHEDULES.items():
        source = kind.removesuffix(" intervals")
        counts[source] = counts.get(source, 0) + len(schedules)
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) \|", SECTION, re.MULTILINE)
    assert {source: int(count) for source, count in rows} == counts
    prose = " ".join(SECTION.split())
    assert f"{sum(counts.values())} different schedules" in prose
    assert f"the next {COUNT} occurrences" in prose
