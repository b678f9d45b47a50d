"""Backends of Django's own tasks for tests: imported only where Django has them."""

from typing import Any

from django_tasks_db import DatabaseBackend


class Unsorted(DatabaseBackend):
    """Knows no priority."""

    supports_priority = False


class Choosy(DatabaseBackend):
    """Goes wrong in some queue, for some run or after so many, as ``OPTIONS`` say."""

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
