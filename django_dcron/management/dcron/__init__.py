"""The subcommands of ``manage.py dcron``, one module each, imported when used.

A module defines ``HELP`` (what the subcommand does, and its exit codes), ``EXAMPLES`` (lines shown
below its options), ``add_arguments(parser)`` and ``run(command, options)``. Conventions:

- Output goes through ``output.Output``.
- The functions of ``exits`` create the exceptions for failures and negative answers.
- ``lookup`` finds the jobs and runs that the command line names, and ``option_values`` parses
  its times and numbers.

To add a subcommand, add three things:

- a line in ``management/commands/dcron.py``
- a module of the same name here (with a trailing ``_`` if the name is a Python keyword)
- a section in ``docs/reference/cli.md``
"""
