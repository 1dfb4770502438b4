"""Codes: which slots a class occupies, and which bucket a path of slots is.

- :class:`CodeShape`: the shape of the table; bucket id ↔ path of slots.
- :func:`solve_level`, :func:`solve_cascade`: the exact solver of equation 5, one level or all.
- :func:`code_energy`: the value of equation 5 for given codes.
- :func:`relabel_by_code`: equal label for equal code.
- :func:`expected_speedup`: how much a table of a shape can save at best.
- :func:`warmup`: compile the solver now.

Needs numpy, and numba for the solver alone.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.codes.cascade import solve_cascade
    from hashcade.codes.energy import code_energy
    from hashcade.codes.relabel import relabel_by_code
    from hashcade.codes.shape import CodeShape
    from hashcade.codes.solve import solve_level, warmup
    from hashcade.codes.speedup import expected_speedup
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "CodeShape": "hashcade.codes.shape",
            "code_energy": "hashcade.codes.energy",
            "expected_speedup": "hashcade.codes.speedup",
            "relabel_by_code": "hashcade.codes.relabel",
            "solve_cascade": "hashcade.codes.cascade",
            "solve_level": "hashcade.codes.solve",
            "warmup": "hashcade.codes.solve",
        },
    )

__all__ = [
    "CodeShape",
    "code_energy",
    "expected_speedup",
    "relabel_by_code",
    "solve_cascade",
    "solve_level",
    "warmup",
]
