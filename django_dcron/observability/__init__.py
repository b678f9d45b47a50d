"""Looking at the system from outside: only reading, and never in the way of what it looks at.

``doctor`` finds what is wrong, ``why`` says what became of one occurrence; the modules beside them are what the dashboard and
the pages of jobs and runs show. None knows of HTML.
"""
