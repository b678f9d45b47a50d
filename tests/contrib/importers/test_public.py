"""Check the schedules of public projects, and what docs/contributing/imports.md says about them."""

import json
import re

from tests.contrib.importers.public import COUNT, SCHEDULES
from tests.docs.test_documents import ROOT

IMPORTS_PAGE = (ROOT / "docs" / "contributing" / "imports.md").read_text()
SECTION = IMPORTS_PAGE[IMPORTS_PAGE.index("## Distinct schedules") :].split("\n## ")[0]


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
