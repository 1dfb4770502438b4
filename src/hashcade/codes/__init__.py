"""Codes: which slots a class occupies, and which bucket a path of slots is.

- :class:`CodeShape`: the shape of the table; bucket id ↔ path of slots.
- :func:`solve_level`, :func:`solve_cascade`: the exact solver of equation 5, one level or all.
- :func:`code_energy`: the value of equation 5 for given codes.
- :func:`relabel_by_code`: equal label for equal code.
- :func:`expected_speedup`: how much a table of a shape can save at best.

Needs numpy, and numba for the solver alone.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.codes._cascade import solve_cascade
    from hashcade.codes._energy import code_energy
    from hashcade.codes._relabel import relabel_by_code
    from hashcade.codes._shape import CodeShape
    from hashcade.codes._solve import solve_level
    from hashcade.codes._speedup import expected_speedup
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "CodeShape": "hashcade.codes._shape",
            "code_energy": "hashcade.codes._energy",
            "expected_speedup": "hashcade.codes._speedup",
            "relabel_by_code": "hashcade.codes._relabel",
            "solve_cascade": "hashcade.codes._cascade",
            "solve_level": "hashcade.codes._solve",
        },
    )

__all__ = [
    "CodeShape",
    "code_energy",
    "expected_speedup",
    "relabel_by_code",
    "solve_cascade",
    "solve_level",
]
