"""Backends of Django's own tasks for tests. They are imported only if Django has that framework."""

from typing import Any

from django_tasks_db import DatabaseBackend


class BackendWithoutPriorities(DatabaseBackend):
    """A backend that doesn't support priorities."""

    supports_priority = False


class FailingBackend(DatabaseBackend):
    """A backend that raises errors, as its ``OPTIONS`` say.

    ``errors_by_run`` and ``errors_by_queue`` map runs and queues to errors. ``remaining`` is a list
    with one item for each call that succeeds before ``final_error``. ``attempted`` records the runs
    of all calls.
    """

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.options.setdefault("attempted", []).append(args[0])
        if error := self.options.get("errors_by_run", {}).get(args[0]):
            raise error
        if error := self.options.get("errors_by_queue", {}).get(task.queue_name):
            raise error
        remaining = self.options.get("remaining")
        if remaining is not None:
            if not remaining:
                raise self.options["final_error"]
            remaining.pop()
        return super().enqueue(task, args, kwargs)
