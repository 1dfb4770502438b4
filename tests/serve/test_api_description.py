"""schemathesis reads the description, and asks what it allows and what it forbids."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from tests.serve.factories import make_table, process

# What fits the description need not fit this index: a vector may have another length.
LEFT_OUT = {"positive_data_acceptance", "max_response_time"}


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    folder = tmp_path_factory.mktemp("described")
    table = make_table(folder / "table")
    with process(table, deadline=300, log=folder / "log") as service:
        yield schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    assert "Traceback" not in service.log.read_text()


def ask_everything(described, mode, n_examples):
    load_all_checks()
    checks = [CHECKS.get_one(name) for name in CHECKS.get_all_names() if name not in LEFT_OUT]
    asked, statuses = set(), set()
    for found in described.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck),
            database=None,
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case):
            answer = case.call_and_validate(checks=checks)
            asked.add(case.operation.label)
            statuses.add(answer.status_code)

        try:
            ask()
        except BaseException as error:
            if type(error).__name__ not in ("Unsatisfiable", "SkipTest", "Skipped"):
                raise
    return asked, statuses


def test_what_is_allowed_is_answered_as_described(described):
    asked, statuses = ask_everything(described, GenerationMode.POSITIVE, 8)
    assert {"POST /v1/search", "POST /v1/items", "DELETE /v1/items/{item_id}"} <= asked
    assert len(asked) == 23
    assert {200, 404, 422} <= statuses
    assert max(statuses) < 500


def test_what_is_forbidden_is_refused(described):
    asked, statuses = ask_everything(described, GenerationMode.NEGATIVE, 8)
    assert {"POST /v1/search", "POST /v1/items", "GET /v1/tree"} <= asked
    assert max(statuses) < 500


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_many_more_examples(described, mode):
    asked, statuses = ask_everything(described, mode, 300)
    assert {"POST /v1/search", "POST /v1/items"} <= asked
    assert max(statuses) < 500
