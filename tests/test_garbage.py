"""The collector is off only where it was on, and only meanwhile."""

from __future__ import annotations

import gc

import pytest

from teraio.planner.garbage import no_collections


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_as_it_was(was_on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        with no_collections():
            assert not gc.isenabled()
            with no_collections():
                pass
            assert not gc.isenabled()
        assert gc.isenabled() == was_on
        with pytest.raises(KeyError), no_collections():
            raise KeyError
        assert gc.isenabled() == was_on
    finally:
        (gc.enable if before else gc.disable)()
