"""Backends of Django's own tasks for tests. They are imported only if Django has that framework."""

from typing import Any

from django_tasks_db import DatabaseBackend


class Unsorted(DatabaseBackend):
    """A backend without priorities."""

    supports_priority = False


class Choosy(DatabaseBackend):
    """A backend that raises for some queues or runs, or after some calls. See ``OPTIONS``."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.options.setdefault("asked", []).append(args[0])
        if error := self.options.get("of_runs", {}).get(args[0]):
            raise error
        if error := self.options.get("errors", {}).get(task.queue_name):
            raise error
        left = self.options.get("left")
        if left is not None:
            if not left:
                raise self.options["then"]
            left.pop()
        return super().enqueue(task, args, kwargs)
