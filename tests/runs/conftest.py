from tests.execution.conftest import make_target, run_function

__all__ = ["make_target", "run_function"]
