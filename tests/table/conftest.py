"""One small fitted hasher for all tests of the table."""

import pytest
from table_factories import make_items

from hashcade import Hasher


@pytest.fixture(scope="session")
def items():
    return make_items()


@pytest.fixture(scope="session")
def hasher(items):
    return Hasher(width=4, steps=60, hidden_size=16, verbose=False).fit(*items)
