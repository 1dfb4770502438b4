"""Items without labels, and classes that training never saw: ``make bench-without-labels``.

Writes docs/results/without-labels:

1. GloVe vectors, 400,000 of 50 numbers, no labels: recall of the ten nearest over candidates and
   over microseconds, ``HashTable.fit(X)`` beside faiss IVF with as many lists, by turns.
2. Half of the classes are learned, the other half is searched among itself: ``Hasher.adapt`` beside
   k-means on the items that are searched.
3. Nine tenths of the classes are learned, the rest is added by ``Hasher.extend`` from 20 items of
   each, beside a hasher and a classifier that are fitted again with these items and all items of
   the other classes, and a hasher that learned all classes from all items.

    PYTHONPATH=. python benchmarks/without_labels.py
    PYTHONPATH=. python benchmarks/without_labels.py --only added    # others stay as stored
    PYTHONPATH=. python benchmarks/without_labels.py --quick    # to see that it runs, into build/
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from _timing import heading, interleaved, machine, quartiles, ratio, timed, versions

from experiments import rivals
from experiments.__main__ import default_data
from experiments.datasets import load_embeddings
from experiments.datasets.glove import load_glove
from hashcade import HashIndex, HashTable
from hashcade.evaluate import precision_at, speedup_factor
from hashcade.learn import Hasher

ROOT = Path(__file__).resolve().parent.parent

PROBES = (1, 2, 4, 8, 16, 32, 64)
SETS = {"cifar100": "Cifar-100", "clinc150": "CLINC150"}
N_UNSEEN_CODES = 80  # the speed-up at which adapted tables are compared
N_EXAMPLES = 20
HIDDEN_SIZE = 1024  # as of the hashers, by default
MOST_LOST = 0.5  # points of precision that the other classes may lose


def glove(quick: bool) -> dict[str, Any]:
    """Recall, candidates and times of both, for each number of lists that are looked into."""
    database, queries = (np.ascontiguousarray(part.items) for part in load_glove())
    database, queries = database[: 20_000 if quick else None], queries[: 200 if quick else 2000]
    exact = faiss.IndexFlatL2(database.shape[1])
    exact.add(database)
    nearest = exact.search(queries, 10)[1]
    start = time.perf_counter()
    table = HashTable().fit(database)
    seconds = {"hashcade": time.perf_counter() - start}
    n_lists = len(table.hasher.prototypes_)
    start = time.perf_counter()
    quantizer = faiss.IndexFlatL2(database.shape[1])
    lists = faiss.IndexIVFFlat(quantizer, database.shape[1], n_lists)
    lists.train(database)
    lists.add(database)
    seconds["faiss IVF"] = time.perf_counter() - start
    sizes = np.array([lists.invlists.list_size(number) for number in range(n_lists)])

    def recall(ids: Any) -> float:
        pairs = zip(ids.tolist(), nearest.tolist(), strict=True)
        return float(np.mean([len(set(found) & set(own)) / 10 for found, own in pairs]))

    def in_lists(n_probe: int) -> Any:
        lists.nprobe = n_probe
        return lists.search(queries, 10)[1]

    rows = []
    for n_probe in PROBES:
        found = table.search(queries, 10, n_probe=n_probe, threads=1)
        probed = quantizer.search(queries, n_probe)[1]
        calls = {
            "ours": lambda p=n_probe: table.search(queries, 10, n_probe=p, threads=1),
            "theirs": lambda p=n_probe: in_lists(p),
        }
        times = interleaved(calls, 2 if quick else 7)
        rows.append(
            {
                "n_probe": n_probe,
                "ours": {"recall": recall(found.ids), "candidates": float(found.candidates.mean())},
                "theirs": {
                    "recall": recall(in_lists(n_probe)),
                    "candidates": float(sizes[probed].sum(axis=1).mean()),
                },
                "us": {k: quartiles([s / len(queries) * 1e6 for s in v]) for k, v in times.items()},
                "ratio": ratio(times["ours"], times["theirs"]),
            }
        )
    return {"items": len(database), "lists": n_lists, "seconds": seconds, "rows": rows}


def parts(name: str, quick: bool) -> tuple[Any, Any]:
    """Training and test set, of which a quick run takes a part."""
    data = load_embeddings(name, default_data())
    step = 10 if quick else 1
    return tuple((part.items[::step], part.labels[::step]) for part in (data.train, data.test))


def searched_among_itself(hasher: Hasher, items: Any, labels: Any) -> dict[str, float]:
    """Precision at 1 and 16, and the speed-up of a search."""
    encoded = hasher.encode(items)
    index = HashIndex.build(encoded.bucket_ids, encoded.vectors, shape=hasher.shape_)
    where = encoded.where_to_look()
    found = index.search(encoded.vectors, **where, n_neighbors=16, exclude_self=True)
    return {
        "precision@1": precision_at(found.ids[:, :1], labels, labels),
        "precision@16": precision_at(found.ids, labels, labels),
        "speed-up": speedup_factor(found.candidates, len(labels) - 1),
    }


def unseen(name: str, quick: bool) -> dict[str, Any]:
    """The test items of classes that were not learned, by an adapted hasher and by k-means."""
    (train, train_labels), (test, test_labels) = parts(name, quick)
    classes = np.random.default_rng(0).permutation(np.unique(train_labels))
    known, other = np.isin(train_labels, classes[::2]), np.isin(test_labels, classes[1::2])
    items, labels = test[other], test_labels[other]
    learned = Hasher(**({"steps": 50} if quick else {})).fit(train[known], train_labels[known])
    adapted = learned.adapt(items, n_codes=min(N_UNSEEN_CODES, learned.shape_.n_buckets))
    kmeans = Hasher(depth=1).fit_clusters(items, n_codes=N_UNSEEN_CODES)
    methods = {"learned, not adapted": learned, "adapted": adapted, "k-means": kmeans}
    return {k: searched_among_itself(hasher, items, labels) for k, hasher in methods.items()}


def added(name: str, quick: bool) -> dict[str, Any]:
    """Share of test items decided right, of the added classes and of the others."""
    (train, train_labels), (test, test_labels) = parts(name, quick)
    rng = np.random.default_rng(0)
    classes = rng.permutation(np.unique(train_labels))
    new = classes[: len(classes) // 10]
    is_new, settings = np.isin(train_labels, new), {"steps": 50} if quick else {}
    rows = [np.flatnonzero(train_labels == label) for label in new]
    few = np.concatenate([rng.choice(r, min(N_EXAMPLES, len(r)), replace=False) for r in rows])
    present = np.concatenate([np.flatnonzero(~is_new), few])
    known = train[present], train_labels[present]
    first = Hasher(**settings).fit(train[~is_new], train_labels[~is_new])
    extended, seconds = timed(lambda: first.extend(train[few], train_labels[few]))
    again, seconds_again = timed(lambda: Hasher(**settings).fit(*known))
    balanced, seconds_balanced = timed(
        lambda: Hasher(**settings, class_weight="balanced").fit(*known)
    )
    budget = 2.0 if quick else rivals.BUDGET
    classifier, seconds_classifier = timed(
        lambda: rivals.fit_softmax(*known, 0, hidden_size=HIDDEN_SIZE, budget=budget)
    )
    whole = Hasher(**settings).fit(train, train_labels)
    late, scores = np.isin(test_labels, new), classifier.scores(test)
    is_added = np.isin(np.arange(len(classes)), new)  # labels are class numbers

    def shares(hits: Any) -> dict[str, float]:
        return {"added": 100 * float(hits[late].mean()), "others": 100 * float(hits[~late].mean())}

    def right(hasher: Hasher) -> dict[str, float]:
        own = hasher.codebook_[np.searchsorted(hasher.classes_, test_labels)]
        return shares((hasher.transform(test) == own).all(axis=1))

    def classified(offset: float) -> dict[str, float]:
        """With this much more for the scores of the added classes."""
        return shares((scores + offset * is_added).argmax(axis=1) == test_labels)

    learned_all = right(whole)
    # Class sizes as prior probabilities (logit adjustment, Menon et al., 2021).
    sizes = np.bincount(train_labels[present])
    adjusted = classified(float(np.log(sizes[~is_added].mean() / N_EXAMPLES)))
    trade_offs = [classified(offset) for offset in np.arange(-2, 12, 0.1)]
    enough = learned_all["others"] - MOST_LOST
    return {
        "methods": {
            "extended": {**right(extended), "seconds": seconds},
            "fitted again": {**right(again), "seconds": seconds_again},
            "fitted again, balanced": {**right(balanced), "seconds": seconds_balanced},
            "classifier, fitted again": {**adjusted, "seconds": seconds_classifier},
            "learned all": learned_all,
        },
        "limit": max((each["added"] for each in trade_offs if each["others"] >= enough), default=0),
    }


def write_page(results: dict[str, Any], out: Path) -> Path:
    """Write the page; return its path."""
    about = results["about"]
    lines = heading("Without labels, and classes that come later", "bench-without-labels", about)
    found = results["glove"]
    fit = ", ".join(f"{name} {value:.0f} s" for name, value in found["seconds"].items())
    lines += [
        f"## GloVe, {found['items']:,} vectors, no labels",
        "",
        f"Recall of the ten nearest, with {found['lists']} lists (or clusters) each. Fit: {fit}.",
        "",
        "| lists probed | recall, ours | faiss IVF | candidates, ours | faiss IVF"
        " | µs, ours | faiss IVF | ours / faiss IVF |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        ours, theirs, us = row["ours"], row["theirs"], row["us"]
        low, middle, high = row["ratio"]
        lines.append(
            f"| {row['n_probe']} | {ours['recall']:.3f} | {theirs['recall']:.3f}"
            f" | {ours['candidates']:,.0f} | {theirs['candidates']:,.0f}"
            f" | {us['ours'][1]:.0f} | {us['theirs'][1]:.0f}"
            f" | {middle:.2f} ({low:.2f} to {high:.2f}) |"
        )
    lines += [
        "",
        "## Classes that were never learned",
        "",
        "Half of the classes are learned. The test items of the other half are searched among"
        " themselves, without the query.",
        "",
        "| | | precision@1 | precision@16 | speed-up |",
        "|---|---|---:|---:|---:|",
    ]
    for name, methods in results["unseen"].items():
        for method, values in methods.items():
            numbers = " | ".join(f"{value:.1f}" for value in values.values())
            lines.append(f"| {SETS[name]} | {method} | {numbers} |")
    lines += [
        "",
        "## Classes that are added",
        "",
        f"Nine tenths of the classes are learned, the rest is added from {N_EXAMPLES} items each."
        " Share of test items that go to the bucket of their class. *Fitted again* has these items"
        ' as well, beside all of the others, and *balanced* `class_weight="balanced"`; *learned'
        " all* has all items of all classes. The"
        " classifier has one hidden layer, its regularization is the best of nine settings on a"
        " validation set, and its scores are adjusted for the sizes of the classes.",
        "",
        "| | | of added classes | of the others | seconds to add |",
        "|---|---|---:|---:|---:|",
    ]
    for name, found in results["added"].items():
        for method, of in found["methods"].items():
            seconds = f"{of['seconds']:.2f}" if "seconds" in of else ""
            shares = f"{of['added']:.1f} | {of['others']:.1f}"
            lines.append(f"| {SETS[name]} | {method} | {shares} | {seconds} |")
    limits = [f"{SETS[name]} {found['limit']:.1f}" for name, found in results["added"].items()]
    lines += [
        "",
        f"What {N_EXAMPLES} items can tell: the most that this classifier reaches on the added"
        " classes, with the offset of their scores that is best on the test set, if the others lose"
        f" at most {MOST_LOST} of *learned all*: {', '.join(limits)}.",
    ]
    path = out / "without-labels.md"
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a part of everything, into build/")
    parser.add_argument("--only", choices=("glove", "unseen", "added"), help="run this part")
    args = parser.parse_args()
    quick = args.quick
    faiss.omp_set_num_threads(1)
    out = ROOT / ("build" if quick else "docs") / "results"
    out.mkdir(parents=True, exist_ok=True)
    packages = versions("hashcade", "numpy", "numba", "faiss-cpu")
    about = {"machine": machine(), "versions": packages, "rounds": 7, "quick": quick}
    runs = {
        "glove": lambda: glove(quick),
        "unseen": lambda: {name: unseen(name, quick) for name in SETS},
        "added": lambda: {name: added(name, quick) for name in SETS},
    }
    stored = out / "without-labels.json"
    results = json.loads(stored.read_text()) if args.only else {"about": about}
    results |= {part: run() for part, run in runs.items() if args.only in (None, part)}
    stored.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written {write_page(results, out)}")


if __name__ == "__main__":
    main()
