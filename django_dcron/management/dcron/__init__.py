"""The subcommands of ``manage.py dcron``, a module each, imported when it is asked for.

A module has ``HELP`` (what it does, and what its exit codes mean), ``EXAMPLES`` (lines, shown below its options),
``add_arguments(parser)`` and ``run(command, options)``. What it writes goes through ``output.Output``; what it cannot do, or has
to say no to, it raises from ``exits``. Jobs, runs and times that people name are read by ``finding`` and ``times``.

To add one: a line in ``management/commands/dcron.py``, a module here of the same name (with a ``_`` if Python keeps that name for
itself), and its section in ``docs/cli.md``.
"""
