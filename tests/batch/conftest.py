import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("torch")

from tests.batch.factories import fit_model, write_shards


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return fit_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """A folder of shards; all but the last end where a pass of the network does."""
    folder = tmp_path_factory.mktemp("data") / "shards"
    write_shards(folder, (2048, 1024, 3072, 1, 700))
    return folder


@pytest.fixture(autouse=True)
def one_thread():
    """A build encodes in one thread, so that its bytes do not depend on the machine's cores.

    What it is compared with must round in the same way.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield
