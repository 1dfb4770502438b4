"""Codes: which slots a class occupies, and which bucket a path of slots is.

:class:`CodeShape` is the shape of a table; bucket id ↔ path of slots. :func:`solve_level` and
:func:`solve_cascade` solve equation 5 exactly, one level or all; :func:`code_energy` is its value.
Needs numpy, and numba once the solver is called.
"""

from hashcade.codes.cascade import relabel_by_code, solve_cascade
from hashcade.codes.energy import code_energy
from hashcade.codes.shape import CodeShape, expected_speedup
from hashcade.codes.solve import solve_level, warmup

__all__ = [
    "CodeShape", "code_energy", "expected_speedup", "relabel_by_code", "solve_cascade",
    "solve_level", "warmup",
]  # fmt: skip
