"""The admin of jobs: the list, the form and its preview, the page, and what can be done to one."""
