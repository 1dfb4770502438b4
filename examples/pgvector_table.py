"""A table in Postgres with pgvector: the bucket is a column, and a search reads its rows alone.

    python examples/pgvector_table.py my.table postgresql://localhost/photos items

fills a new table of Postgres and swaps the view ``items`` over to it, so that those who search see
the old rows or the new ones. ``query`` is the statement for a search. No index on the vectors: the
planner could take it, and the results would not be exact.
"""

import sys

import psycopg
from pgvector.psycopg import register_vector

from hashcade import HashTable

OPERATORS = {"euclidean": "<->", "inner_product": "<#>", "cosine": "<=>"}


def fill(table, connection, name):
    """Copy a table into Postgres, and let the view ``name`` show it."""
    register_vector(connection)
    rows = f"{name}_{connection.execute('SELECT txid_current()').fetchone()[0]}"
    connection.execute(
        f"CREATE TABLE {rows} (id int8, bucket int8, embedding vector({table.index.dim}))"
    )
    with connection.cursor().copy(f"COPY {rows} FROM STDIN WITH (FORMAT BINARY)") as target:
        target.set_types(["int8", "int8", "vector"])
        for block in table.index.blocks():  # in the order of the buckets: their rows lie together
            for number, vector in zip(block.ids.tolist(), block.vectors, strict=True):
                target.write_row((number, block.bucket, vector))
    connection.execute(f"CREATE INDEX ON {rows} (bucket)")
    connection.execute(f"ANALYZE {rows}")
    connection.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {rows}")


def query(table, name):
    """The statement that finds the nearest: parameters are a vector, and a list of buckets.

    An item that lies in several buckets has a row for each; DISTINCT leaves one.
    """
    distinct = "DISTINCT" if table.index.shape.sparsity > 1 else ""
    operator = OPERATORS[table.metric]
    return (
        f"SELECT {distinct} id, embedding {operator} %s AS distance FROM {name}"
        " WHERE bucket = ANY(%s) ORDER BY distance, id LIMIT 10"
    )


if __name__ == "__main__":
    place, address, view = sys.argv[1:]
    with psycopg.connect(address) as database:  # one transaction: all of it, or nothing
        database.execute("CREATE EXTENSION IF NOT EXISTS vector")
        fill(HashTable.load(place), database, view)
