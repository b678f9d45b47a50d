"""A verdict on what a cluster did, which shares no code with what it judges.

It needs the definitions of the jobs, the raw tables and the log of witnesses: lines that the jobs'
own code appends when it starts and when it ends. From these it makes a ``History``, which can be
written as JSON and judged anywhere.

Invariants:

- Nothing here imports ``django_dcron`` or what that is made of. A contract in ``pyproject.toml``
  enforces this.
- Each rule is a pure function from a history to its findings.
- What can't be judged is a finding, ``not_judged``, and never a pass.

| module | contents |
|---|---|
| ``history`` | the data classes, and their JSON |
| ``timetable`` | occurrences by brute force |
| ``tables`` | reads the tables by plain SQL |
| ``witness`` | writes and reads the witness log |
| ``occurrences`` | rules about occurrences and their rows: loss, doubling, missed counts |
| ``executions`` | rules about starts, attempts, retries, order and overlaps |
| ``accounts`` | rules about chains and statistics |
| ``judgement`` | applies all rules |

``docs/contributing/verdict.md`` describes the rules and what they don't judge.
"""
