"""Learning on given embeddings of Cifar-100: `Hasher()` with defaults.

    python benchmarks/learn_embeddings.py              # all of it, some two minutes on two cores
    python benchmarks/learn_embeddings.py --shares     # only the solver's share of a step

The hasher gets the training set and selects its weights on a validation set, a part of it; nothing
is selected on the test set. Then every test item is a query against all other test items: its
buckets give candidates, the learned vectors re-rank them. Exhaustive search ranks by the given
ones. A query with fewer than k candidates
continues with its next buckets, and these candidates count.

Results go to stdout with their targets and, when all are measured, to
``docs/results/learn-embeddings.md``; progress goes to stderr. Exit code 1 if a target is missed.
The data folder is $HASHCADE_DATA, or ../shared/data beside the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from _timing import machine, versions

from hashcade import Hasher
from hashcade.evaluate import evaluate_hasher, exact_search, precision_at

ROOT = Path(__file__).resolve().parents[1]
EMBEDDINGS = "cifar100_effnetlite0_pca128.npz"
RESULTS = ROOT / "docs" / "results"
NEIGHBORS = (1, 4, 16)
SHARES = ((64, 128, 25.0), (512, 512, 50.0))  # classes of a batch, width, allowed per cent


PAGE = """# Learning on given embeddings

Written by `make bench-learn-embeddings`. `Hasher()` with defaults on 128-dimensional embeddings of
Cifar-100 (EfficientNet-Lite0, frozen). It is trained on the training
set only; then every test item is a query against all other test items, re-ranked by the learned
vectors. The column `exhaustive` is exhaustive search by the given vectors.

```text
{results}
```
"""
_said: list[str] = []


def say(line: str) -> None:
    """Print a line, and keep it for the page."""
    print(line, flush=True)
    _said.append(line)


def verdict(name: str, value: float, target: float, *, at_most: bool = False) -> bool:
    """Print a result with its target; whether it is met."""
    met = value < target if at_most else value >= target
    sign = "<" if at_most else ">="
    say(f"{name:34} {value:8.1f}   {sign} {target:g}: {'met' if met else 'MISSED'}")
    return met


def learn(seed: int) -> bool:
    """Train on the training set, search the test set; whether all targets are met."""
    folder = Path(os.environ.get("HASHCADE_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / EMBEDDINGS).exists():
        sys.exit(f"{folder / EMBEDDINGS} is missing: set HASHCADE_DATA to the folder that has it")
    with np.load(folder / EMBEDDINGS) as file:
        data = {name: file[name] for name in file.files}
    test, labels = data["test"].astype(np.float32), data["test_labels"]

    hasher = Hasher(random_state=seed, verbose=True)
    start = time.perf_counter()
    hasher.fit(data["train"], data["train_labels"])
    seconds = time.perf_counter() - start
    say(f"{hasher}, {len(data['train']):,} items")
    metrics = "  ".join(f"{name} {value:.1f}" for name, value in hasher.validation_.items())
    say(f"validation set: {metrics}")

    result = evaluate_hasher(hasher, test, labels, n_neighbors=NEIGHBORS)
    plain = evaluate_hasher(hasher, test, labels, n_neighbors=1, protocol="plain")
    nearest = exact_search(test, test, n_neighbors=max(NEIGHBORS), same_set=True).ids
    say(f"{'test against test':34} {'learned':>8} {'exhaustive':>10}")
    for k in NEIGHBORS:
        exhaustive = precision_at(nearest, labels, labels, n_neighbors=k)
        say(
            f"{f'Pr@{k}':34} {result.precision[k]:8.2f} {exhaustive:10.2f}   "
            f"SUF {result.speedup[k]:.1f} with filling"
        )
    say(f"{'NMI of buckets':34} {result.nmi:8.2f}")
    targets = [
        verdict("seconds to fit", seconds, 300, at_most=True),
        verdict("SUF, own buckets only", plain.speedup[1], 90),
        verdict("SUF at k = 16, with filling", result.speedup[16], 90),
        verdict("Pr@1", result.precision[1], 50.0),
        verdict("Pr@16", result.precision[16], 44.0),
    ]
    return all(targets)


def solver_share(n_classes: int, width: int, *, steps: int = 60) -> float:
    """Per cent of a training step that is spent in the solver, after a warm-up.

    Embeddings of as many random classes, batches of all classes × 2, the default head.
    """
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(n_classes), 10)
    items = rng.normal(size=(n_classes, 128))[labels] + rng.normal(size=(len(labels), 128))
    hasher = Hasher(
        width=width, classes_per_batch=n_classes, items_per_class=2, assignment="path",
        steps=2 * steps, validation_fraction=0.0, verbose=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as run_dir:
        hasher.set_params(run_dir=run_dir).fit(items, labels)
        log = (Path(run_dir) / "log.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in log][len(log) // 2 :]  # the warm-up is the first half
    share = float(np.mean([record["solver_share"] for record in records]))
    speed = float(np.mean([record["items_per_second"] for record in records]))
    step = 2e3 * n_classes / speed
    say(
        f"{n_classes} classes, d = {width}: a step takes {step:.2f} ms, the solver "
        f"{step * share:.2f} ms of it"
    )
    return 100 * share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shares", action="store_true", help="only the solver's share")
    parser.add_argument("--seed", type=int, default=0, help="of the training (default: 0)")
    arguments = parser.parse_args()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    here = {**machine(), **versions("hashcade", "torch", "numpy")}
    say(", ".join(f"{name} {value}" for name, value in here.items()))
    met = arguments.shares or learn(arguments.seed)
    for n_classes, width, allowed in SHARES:
        share = solver_share(n_classes, width)
        met &= verdict(f"solver, % of a step, d = {width}", share, allowed, at_most=True)
    if not arguments.shares:
        page = PAGE.format(results="\n".join(_said))
        (RESULTS / "learn-embeddings.md").write_text(page, encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
