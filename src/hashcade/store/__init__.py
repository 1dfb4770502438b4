"""What belongs to the items of a table beside their vectors: labels and names.

- :class:`Catalog`: which label and which name belong to the numbers in an index.
"""

from hashcade.store.catalog import Catalog, Label

__all__ = ["Catalog", "Label"]
