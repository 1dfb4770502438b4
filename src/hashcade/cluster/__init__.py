"""A table in a Redis Cluster: one value per bucket, read by any number of query nodes."""

from .metrics import ReaderMetrics
from .reader import Reader

__all__ = ["Reader", "ReaderMetrics"]
