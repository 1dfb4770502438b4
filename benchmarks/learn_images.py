"""Learning on the images of Cifar-100, from scratch: three networks.

    PYTHONPATH=. python benchmarks/learn_images.py                # 5 minutes for each of the seven
    PYTHONPATH=. python benchmarks/learn_images.py --minutes 0.5  # to see that it runs
    PYTHONPATH=. python benchmarks/learn_images.py --only stride-npairs

Every pair of network and loss has the same time on the same two cores. First the speed of each is
measured, on a machine that has nothing else to do; this fixes how many steps fit, three quarters of
the time for the base network. Then the steps are taken: how long they take on a busy machine, or
on one core (``--threads 1``), no longer matters, and the times of the plot are images over this
speed. An interrupted run resumes; speeds and runs are stored in ``--work``.

Printed are images per second and, on the validation set (a tenth of the training set), Pr@1 of the
base network by exhaustive search and Pr@1 of the hash table, with its SUF;
``docs/results/learn.md`` gets the same, and ``learn.png`` precision over time. Progress goes to
stderr. None of the networks is warmed up as a classifier.

The data are cifar-100-python, as a folder or as the official archive, in $HASHCADE_DATA or
../shared/data beside the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from _timing import machine, versions

from experiments.__main__ import default_data, default_work
from experiments.datasets import load_dataset
from hashcade import Hasher

ROOT = Path(__file__).resolve().parents[1]
RUNS = [(network, loss) for network in ("stride", "nin", "fast") for loss in ("npairs", "triplet")]
RUNS.append(("warm", "npairs"))  # the warm-up is the same for both losses
PROBE_STEPS = 12
BACKBONES = {"warm": "fast"}  # fast, warmed up as a classifier
BASE_PART = 0.75  # of the time; the hash stage only fine-tunes
WARMUP_PART = 0.5  # of the time; as much less remains for the base network
WARMUP_BATCH = 256
TRAINING_PART = 0.9  # of the time; the rest is left for validation
WORK = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hashcade" / "bench-learn"
RESULTS = ROOT / "docs" / "results"


def settings_of(network: str, loss: str) -> dict[str, Any]:
    """The paper's hash function and batches: 64 classes of 2 for npairs; 32 of 4 for triplet."""
    classes, items = (64, 2) if loss == "npairs" else (32, 4)
    return {
        "backbone": BACKBONES.get(network, network), "loss": loss, "width": 32,
        "assignment": "path",
        "classes_per_batch": classes, "items_per_class": items,
    }  # fmt: skip


def measure_speed(data: Any, network: str, loss: str, work: Path) -> dict[str, float]:
    """Images per second of both stages; the result of an earlier call if there is one."""
    stored = work / "speed.json"
    if stored.exists():
        speeds: dict[str, float] = json.loads(stored.read_text(encoding="utf-8"))
        return speeds
    with tempfile.TemporaryDirectory() as folder:
        hasher = Hasher(
            **settings_of(network, loss), base_steps=PROBE_STEPS, steps=PROBE_STEPS, run_dir=folder
        )
        # A tenth of the images is enough to see the speed, and is validated in no time.
        hasher.fit(data.items[::10], data.labels[::10])
        records = read_log(Path(folder))
    speeds = {
        stage: max(r["items_per_second"] for r in records if r["stage"] == stage)
        for stage in ("base", "hash")
    }
    work.mkdir(parents=True, exist_ok=True)
    stored.write_text(json.dumps(speeds), encoding="utf-8")
    return speeds


def run(
    data: Any, network: str, loss: str, minutes: float, speeds: dict[str, float], work: Path
) -> dict[str, Any]:
    """Take the steps that fit into ``minutes``; one row of the table."""
    settings = settings_of(network, loss)
    batch = settings["classes_per_batch"] * settings["items_per_class"]
    parts = {"base": BASE_PART, "hash": 1.0 - BASE_PART}
    warmup_part = WARMUP_PART if network == "warm" else 0.0
    parts["base"] -= warmup_part
    n_images = {
        stage: 60 * minutes * TRAINING_PART * part * speeds[stage] for stage, part in parts.items()
    }
    steps = {stage: max(20, int(n_images[stage] / batch)) for stage in parts}
    warmup_seconds = 60 * minutes * TRAINING_PART * warmup_part
    warmup_steps = int(warmup_seconds * speeds["base"] / WARMUP_BATCH)
    run_dir = work / f"{minutes:g}-minutes"
    hasher = Hasher(
        **settings, base_steps=steps["base"], steps=steps["hash"], run_dir=run_dir, verbose=True,
        warmup_steps=warmup_steps,
    )  # fmt: skip
    hasher.fit(data.items, data.labels)
    records = read_log(run_dir)
    best = {
        stage: max((r for r in records if r["stage"] == stage), key=lambda r: r["precision_at_1"])
        for stage in parts
    }
    return {
        "network": network,
        "loss": loss,
        "minutes": minutes,
        "steps": steps,
        "images_per_second": speeds,
        "base_precision_at_1": best["base"]["precision_at_1"],
        "hash_precision_at_1": best["hash"]["precision_at_1"],
        "speedup_factor": best["hash"]["speedup_factor"],
        "bucket_nmi": best["hash"]["bucket_nmi"],
        "over_time": [
            [
                (warmup_seconds + record["step"] * batch / speeds["base"]) / 60,
                record["precision_at_1"],
            ]
            for record in records
            if record["stage"] == "base"
        ],
    }


def read_log(run_dir: Path) -> list[dict[str, Any]]:
    """The records of a run, one per validation."""
    log = (run_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in log]


# -- the page --------------------------------------------------------------------------------------


HEAD = """# Learning from images, from scratch

Written by `make bench-learn`. Raw results: `learn.json`.

{where}. Cifar-100, three networks. Each run takes as many steps as fit into
{minutes:g} minutes on 2 otherwise idle cores. Results are percentages on the validation set, a
tenth of the training set, which also selects the weights: Pr@1 of the base network by exhaustive
search, and Pr@1 after hashing with width 32, depth 2. *warm* is fast, first trained as a classifier
for half of the time; the others are not warmed up.
Minutes are images over the images per second measured at first, without validations.

![Precision of the base networks over time](learn.png)

| network | loss | images per second, base + hash | steps | Pr@1 base | Pr@1 hash | SUF | NMI |
|---|---|---|---|---|---|---|---|
"""


def table_row(row: dict[str, Any]) -> str:
    speeds, steps = row["images_per_second"], row["steps"]
    return (
        f"| {row['network']} | {row['loss']} | {speeds['base']:,.0f} + {speeds['hash']:,.0f} "
        f"| {steps['base']:,} + {steps['hash']:,} | {row['base_precision_at_1']:.2f} "
        f"| {row['hash_precision_at_1']:.2f} | {row['speedup_factor']:.1f} "
        f"| {row['bucket_nmi']:.2f} |"
    )


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw Pr@1 of the base networks over the time of their training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, loss in zip(figure.subplots(1, 2, sharey=True), ("npairs", "triplet"), strict=True):
        for row in rows:
            if row["loss"] == loss:
                label = f"{row['network']}, {row['images_per_second']['base']:,.0f} images/s"
                axes.plot(*zip(*row["over_time"], strict=True), marker="o", label=label)
        axes.set(title=loss, xlabel="minutes of training", ylabel="Pr@1, validation set (%)")
        axes.legend()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [f"{network}-{loss}" for network, loss in RUNS]
    parser.add_argument("--minutes", type=float, default=5.0, help="for each run (default: 5)")
    parser.add_argument("--only", choices=names, help="one run of the seven")
    parser.add_argument("--threads", type=int, default=2, help="for the steps (default: 2)")
    parser.add_argument("--speeds-only", action="store_true", help="measure the speeds and stop")
    parser.add_argument("--work", type=Path, default=WORK, help=f"default: {WORK}")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the page")
    arguments = parser.parse_args()
    data = load_dataset("cifar100", "cpu", default_data(), default_work()).train
    torch.set_num_threads(2)
    speeds = {}
    for network, loss in RUNS:
        if arguments.only in (None, f"{network}-{loss}"):
            work = arguments.work / f"{network}-{loss}"
            speeds[network, loss] = measure_speed(data, network, loss, work)
            print(
                f"{network:7} {loss:8} images per second {speeds[network, loss]}", file=sys.stderr
            )
    if arguments.speeds_only:
        return 0
    torch.set_num_threads(arguments.threads)
    rows = []
    for (network, loss), speed in speeds.items():
        work = arguments.work / f"{network}-{loss}"
        rows.append(run(data, network, loss, arguments.minutes, speed, work))
        print(table_row(rows[-1]), flush=True)
    if len(rows) == len(RUNS):
        here = {**machine(), **versions("hashcade", "torch", "numpy")}
        where = ", ".join(f"{name} {value}" for name, value in here.items())
        head = HEAD.format(where=where, minutes=arguments.minutes)
        page = head + "\n".join(table_row(row) for row in rows) + "\n"
        (arguments.results / "learn.md").write_text(page, encoding="utf-8")
        plot(rows, arguments.results / "learn.png")
        raw = json.dumps({"machine": here, "rows": rows}, indent=1) + "\n"
        (arguments.results / "learn.json").write_text(raw, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
