"""Learning on given embeddings of Cifar-100: `Hasher(width=32, depth=2)`, all else as it comes.

    python benchmarks/learn_embeddings.py              # all of it, some two minutes on two cores
    python benchmarks/learn_embeddings.py --shares     # the solver's share of a step alone

The hasher sees the training set, sets a tenth of it aside and chooses its weights there; nothing is
chosen by the test set. Then every test item is a query against all other test items: its buckets
give candidates, the given vectors re-rank them. Where a query finds fewer than k, it goes on to its
next buckets, and what it looked at counts.

Figures go to stdout beside their targets and, when all are measured, to
``docs/results/learn-embeddings.md``; progress goes to stderr. Exit code 1 if a target is missed.
The data folder is $HASHCADE_DATA, or ../shared/data beside the repository.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from _timing import machine, versions

from hashcade import CodeShape, Hasher, solve_cascade
from hashcade.learn._figures import bucket_nmi, exhaustive_precision, search_figures
from hashcade.learn._model import HashModel
from hashcade.learn._plan import make_plan
from hashcade.learn._trainer import class_means, make_optimizer

ROOT = Path(__file__).resolve().parents[1]
EMBEDDINGS = "cifar100_effnetlite0_pca128.npz"
RESULTS = ROOT / "docs" / "results"
NEIGHBORS = (1, 4, 16)
SHARES = ((64, 128, 25.0), (512, 512, 50.0))  # classes of a batch, width, allowed per cent


PAGE = """# Learning on given embeddings

Made by `make bench-learn-embeddings`. Embeddings of Cifar-100 with 128 numbers each
(EfficientNet-Lite0, frozen), `Hasher(width=32, depth=2)` with defaults: trained on the training set
alone, then every test item searched among all other test items, re-ranked by the given vectors.
`all` is exhaustive search.

```text
{figures}
```
"""
_said: list[str] = []


def say(line: str) -> None:
    """Print a line, and keep it for the page."""
    print(line, flush=True)
    _said.append(line)


def verdict(name: str, value: float, target: float, *, at_most: bool = False) -> bool:
    """Print a figure beside its target; whether it is met."""
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

    hasher = Hasher(width=32, depth=2, random_state=seed, verbose=True)
    start = time.perf_counter()
    hasher.fit(data["train"], data["train_labels"])
    seconds = time.perf_counter() - start
    say(f"{hasher}, {len(data['train']):,} items, 2 threads")
    chosen = "  ".join(f"{name} {value:.1f}" for name, value in hasher.validation_.items())
    say(f"on the items set aside: {chosen}")

    scores, vectors, shape = hasher.scores(test), hasher.embed(test), hasher.shape_
    search = partial(
        search_figures, scores, vectors, labels, shape, codebook=getattr(hasher, "codebook_", None)
    )
    found = {k: search(n_neighbors=k) for k in NEIGHBORS}
    plain = search(n_neighbors=1, fill=False)
    say(f"{'test against test':34} {'learned':>8} {'all':>8}")
    for k, figures in found.items():
        everything = exhaustive_precision(vectors, labels, n_neighbors=k)
        say(
            f"{f'Pr@{k}':34} {figures.precision:8.2f} {everything:8.2f}   "
            f"SUF {figures.speedup:.1f} with what was filled up"
        )
    nmi = bucket_nmi(hasher.transform(test)[:, 0], labels)
    say(f"{'NMI of buckets':34} {nmi:8.2f}")
    targets = [
        verdict("seconds of fit", seconds, 300, at_most=True),
        verdict("SUF (own buckets alone)", plain.speedup, 90),
        verdict("SUF at k = 16, filled up", found[16].speedup, 90),
        verdict("Pr@1", found[1].precision, 50.0),
        verdict("Pr@16", found[16].precision, 44.0),
    ]
    return all(targets)


def solver_share(n_classes: int, width: int, *, steps: int = 60) -> float:
    """Per cent of a training step that is spent in the solver, after a warm-up.

    Embeddings of as many random classes, batches of all classes × 2, the default head.
    """
    rng = np.random.default_rng(0)
    settings = Hasher(width=width, classes_per_batch=n_classes, assignment="path").get_params()
    plan = make_plan(settings, n_classes, 10 * n_classes, (128,))
    (stage,) = plan.stages
    torch.manual_seed(0)
    model: HashModel = plan.make_model()
    optimizer = make_optimizer(model, stage)
    centres = rng.normal(size=(n_classes, 128))
    shape = CodeShape(width=width, depth=2)
    total = solver = 0.0
    for step in range(-steps, steps):
        noise = rng.normal(size=(2 * n_classes, 128))
        items = torch.from_numpy((np.repeat(centres, 2, axis=0) + noise).astype(np.float32))
        start = time.perf_counter()
        scores = model.scores(items)
        means = class_means(scores, 2)
        before = time.perf_counter()
        codes = solve_cascade(
            means,
            shape,
            sibling_penalty=stage.sibling_penalty,
            collision_penalty=stage.collision_penalty,
        )
        after = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        stage.hash_loss(scores, codes).backward()
        optimizer.step()
        if step >= 0:
            total += time.perf_counter() - start
            solver += after - before
    say(
        f"{n_classes} classes, d = {width}: a step takes {1e3 * total / steps:.2f} ms, the solver "
        f"{1e3 * solver / steps:.2f} ms of it"
    )
    return 100 * solver / total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shares", action="store_true", help="the solver's share alone")
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
        page = PAGE.format(figures="\n".join(_said))
        (RESULTS / "learn-embeddings.md").write_text(page, encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
