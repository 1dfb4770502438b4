"""Tables from more items than memory holds: shards of Parquet, sorted runs, one table.

:func:`build_table` reads the shards a part at a time, sorts each part by bucket into a *run* on
disk, and merges the runs by ranges of buckets into one segment. Its tasks run in this process, in
several, or on Ray (extra ``ray``).
"""

from hashcade.batch.build import build_table

__all__ = ["build_table"]
