"""Simulations of a whole cluster: the real code under a seeded scheduler, in virtual time.

| module | contents |
|---|---|
| ``engine`` | virtual time, tasks (greenlets) and processes |
| ``primitives`` | simulated threads, clocks and queues, installed in the package |
| ``database`` | faults at each statement and transaction |
| ``servers`` | chooses one of the two databases |
| ``sqlite`` | SQLite in memory, with triggers that report changes |
| ``cursor`` | the short way from the ORM to SQLite |
| ``postgresql`` | a real server, with a connection per thread and the same triggers |
| ``rows`` | committed rows, for the observer and the verdict |
| ``services`` | the lock server and the broker |
| ``cluster`` | nodes and workers |
| ``plan`` | jobs, actions of users and faults, drawn from a seed |
| ``timing`` | schedules and calendars of the jobs, drawn from a seed |
| ``world`` | one simulation from start to end |
| ``observer`` | checks each change of a row at once |
| ``cursor_moves`` | occurrences that a cursor passes, by brute force |
| ``shrinking`` | omits items of a plan while it still fails |
| ``counts`` | counts of one simulation, and their sums over many |
| ``sessions`` | many simulations in several processes, and their totals |

``docs/contributing/simulation.md`` describes what is simulated and what isn't.
"""
