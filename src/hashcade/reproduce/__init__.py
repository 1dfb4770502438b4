"""The experiments of the paper: compute what is missing, and write a page of tables and plots.

- :func:`reproduce`: run an experiment under a preset, or go on with it.
- :class:`Reproduction`: what it gives.
- ``EXPERIMENTS``, ``PRESETS``: their names.

``hashcade reproduce cifar100 --preset transfer``.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.reproduce._reproduce import EXPERIMENTS, PRESETS, Reproduction, reproduce
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "EXPERIMENTS": "hashcade.reproduce._reproduce",
            "PRESETS": "hashcade.reproduce._reproduce",
            "Reproduction": "hashcade.reproduce._reproduce",
            "reproduce": "hashcade.reproduce._reproduce",
        },
    )

__all__ = ["EXPERIMENTS", "PRESETS", "Reproduction", "reproduce"]
