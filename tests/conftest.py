"""What holds for all tests: how many examples are tried, and which of them coverage watches."""

from __future__ import annotations

import pytest
from example_counts import examples
from hypothesis import settings

settings.register_profile("teraio", examples(40))
settings.load_profile("teraio")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "no_cover: pytest-cov does not watch it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A property goes the same ways through the code many times, with what takes as long again.
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.no_cover)
