"""Judge whether a cluster kept its guarantees, with code that shares nothing with the package.

The input is the definitions of the jobs, the raw tables and the witness log: lines that the jobs'
own code appends when it starts and when it ends. These form a ``History``, which can be written as
JSON and judged on another machine.

Invariants:

- No module here imports ``django_dcron`` or its dependencies. A contract in ``pyproject.toml``
  enforces this.
- Each rule is a pure function from a history to its findings.
- A part of the history that can't be judged is a finding, ``not_judged``. It never passes.

| module | contents |
|---|---|
| ``history`` | the data classes, and their JSON |
| ``timetable`` | occurrences by brute force |
| ``recurrence`` | the days of recurrence rules by brute force |
| ``calendars`` | the times that calendars exclude, by brute force |
| ``tables`` | reads the tables by plain SQL |
| ``witness`` | writes and reads the witness log |
| ``occurrences`` | rules about occurrences and their rows: losses, duplicates, missed counts |
| ``executions`` | rules about starts, attempts, retries, order and overlaps |
| ``changes`` | records each change of a run and of a limit, by triggers |
| ``queues`` | a rule about the order of waiting runs |
| ``limits`` | a rule about the runs of each limit and key |
| ``accounts`` | rules about chains and statistics |
| ``finding`` | what a rule finds, and its tolerance for clocks that disagree |
| ``judgement`` | applies all rules |

``docs/contributing/verdict.md`` describes the rules and what they don't judge.
"""
