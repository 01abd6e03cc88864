from tests.data.conftest import real_set

__all__ = ["real_set"]
