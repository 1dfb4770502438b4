"""A small table."""

import pytest

from tests.store.factories import make_table


@pytest.fixture
def place(tmp_path):
    """The directory of a table."""
    return make_table(tmp_path / "table")
