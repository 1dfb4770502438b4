import pytest

from hashcade.report import ResultRow, RowKey


@pytest.fixture
def make_row():
    def make(method="ours", *, experiment="cifar100", loss="npairs", sparsity=1, database="test",
             variant="", seed=0, **figures):  # fmt: skip
        key = RowKey(experiment=experiment, preset="smoke", method=method, loss=loss,
                     sparsity=sparsity, database=database, variant=variant, seed=seed)  # fmt: skip
        return ResultRow(key=key, settings={"steps": 3}, figures=figures)

    return make
