"""The laboratory: the experiments of the paper, computed again and shown beside its tables.

``python -m experiments cifar100 --preset transfer`` from the root of a clone. Not in the wheel, and
nothing in ``src`` knows of it. Read in this order:

- ``presets``, ``jobs``: all settings, and which tables are fitted with them.
- ``datasets``, ``base_network``, ``baselines``: what they are fitted on, and the methods.
- ``classes``, ``rivals``, ``classes_page``: many classes, an experiment of its own.
- ``run``, ``cache``, ``rows``: compute what is missing, and store it.
- ``paper``, ``tables``, ``figures``, ``verdicts``, ``render``: from stored rows to a page.
"""
