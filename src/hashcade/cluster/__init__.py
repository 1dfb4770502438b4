"""Tables in a Redis Cluster: one value per bucket, read by any number of query nodes."""

from .generations import Generations
from .manifest import Manifest
from .metrics import ReaderMetrics
from .publish import LARGE_BLOCK, publish, repair, retire, verify
from .reader import Reader
from .table import ClusterTable
from .writer import Writer

__all__ = [
    "LARGE_BLOCK", "ClusterTable", "Generations", "Manifest", "Reader", "ReaderMetrics", "Writer",
    "publish", "repair", "retire", "verify",
]  # fmt: skip
