"""The properties once more, for `make test-slow`, where hypothesis tries many more examples."""

import pytest
from test_change import TestAgainstADictionary
from test_cosine import test_it_agrees_with_the_plain_twin
from test_filters import test_prepared_filters_agree_with_the_plain_twin_through_changes
from test_probe import test_best_buckets_are_those_of_scoring_all
from test_search import (
    test_buckets_agree_with_the_plain_twin,
    test_scores_agree_with_the_plain_twin,
)

pytestmark = pytest.mark.slow

__all__ = [
    "TestAgainstADictionary",
    "test_best_buckets_are_those_of_scoring_all",
    "test_buckets_agree_with_the_plain_twin",
    "test_it_agrees_with_the_plain_twin",
    "test_prepared_filters_agree_with_the_plain_twin_through_changes",
    "test_scores_agree_with_the_plain_twin",
]
