"""Read-only diagnosis of jobs, runs and nodes; it never blocks what it observes.

``doctor`` finds problems. ``why`` explains what happened at one occurrence. The other modules
provide the data of the dashboard and of the job and run pages. No module contains HTML.
"""
