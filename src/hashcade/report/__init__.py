"""Reports: stored results, tables with the paper's figures beside ours, plots, the tree picture.

- :class:`RowKey`, :class:`ResultRow`: a stored result.
- :func:`paper_figures`, :func:`paper_solver_seconds`: what the paper says.
- :class:`Table`, :func:`search_table`, :func:`nmi_table`: Markdown, LaTeX and JSON.
- :func:`plot_precision_speedup`, :func:`plot_occupancy`, :func:`plot_ablation`,
  :func:`plot_solver_seconds`, :func:`draw_tree`: pictures; they need the extra ``report``.
- :func:`sibling_figures`: whether sibling buckets hold related classes.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.report._paper import paper_figures, paper_solver_seconds
    from hashcade.report._plots import (
        plot_ablation,
        plot_occupancy,
        plot_precision_speedup,
        plot_solver_seconds,
    )
    from hashcade.report._row import ResultRow, RowKey
    from hashcade.report._siblings import SiblingFigures, sibling_figures
    from hashcade.report._table import Table, nmi_table, search_table
    from hashcade.report._tree import draw_tree
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "ResultRow": "hashcade.report._row",
            "RowKey": "hashcade.report._row",
            "SiblingFigures": "hashcade.report._siblings",
            "Table": "hashcade.report._table",
            "draw_tree": "hashcade.report._tree",
            "nmi_table": "hashcade.report._table",
            "paper_figures": "hashcade.report._paper",
            "paper_solver_seconds": "hashcade.report._paper",
            "plot_ablation": "hashcade.report._plots",
            "plot_occupancy": "hashcade.report._plots",
            "plot_precision_speedup": "hashcade.report._plots",
            "plot_solver_seconds": "hashcade.report._plots",
            "search_table": "hashcade.report._table",
            "sibling_figures": "hashcade.report._siblings",
        },
    )

__all__ = [
    "ResultRow",
    "RowKey",
    "SiblingFigures",
    "Table",
    "draw_tree",
    "nmi_table",
    "paper_figures",
    "paper_solver_seconds",
    "plot_ablation",
    "plot_occupancy",
    "plot_precision_speedup",
    "plot_solver_seconds",
    "search_table",
    "sibling_figures",
]
