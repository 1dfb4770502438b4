"""Build tables from data larger than memory: Parquet shards, sorted runs, one merged table.

:func:`build_table` reads the shards in parts, sorts each part by bucket into a *run* on disk, and
merges the runs by ranges of buckets into one segment: an external sort. Its tasks run in this
process, in a pool of processes, or on Ray (extra ``ray``).
"""

from hashcade.batch.build import build_table

__all__ = ["build_table"]
