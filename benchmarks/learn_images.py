"""Learning on the images of Cifar-100, from scratch: both networks with both losses.

    python benchmarks/learn_images.py                    # 20 minutes for each of the four
    python benchmarks/learn_images.py --minutes 0.5      # to see that it runs
    python benchmarks/learn_images.py --only stride-npairs

Every pair of network and loss has the same time on the same cores: a few steps tell its speed,
then the steps that fit are shared between the two stages, three quarters for the base network.
Printed are images a second and, on the tenth of the training set that is set aside, the Pr@1 of the
base network among all of it and of the hash table, with its SUF. Progress goes to stderr.

The data are cifar-100-python, as a folder or as the official archive, in $HASHCADE_DATA or
../shared/data beside the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _timing import machine, versions

from hashcade import Hasher
from hashcade.data import load_cifar100

ROOT = Path(__file__).resolve().parents[1]
ARCHIVES = ("cifar-100-python", "cifar-100-python.tar.gz", "cifar-100-python.tar.xz")
RUNS = [(network, loss) for network in ("stride", "nin") for loss in ("npairs", "triplet")]
PROBE_STEPS = 10
BASE_PART = 0.75  # of the time; the hash stage only fine-tunes


def find_data() -> Path:
    folder = Path(os.environ.get("HASHCADE_DATA", ROOT.parent / "shared" / "data"))
    for name in ARCHIVES:
        if (folder / name).exists():
            return folder / name
    sys.exit(f"{folder} has none of {', '.join(ARCHIVES)}: set HASHCADE_DATA to a folder that has")


def run(
    items: Any, labels: Any, network: str, loss: str, seconds: float, run_dir: Path
) -> tuple[list[dict[str, Any]], float]:
    """Train for about ``seconds``; the records of the log, and the seconds it took."""
    settings = {"backbone": network, "loss": loss, "items_per_class": 2 if loss == "npairs" else 4}
    settings |= {"classes_per_batch": 64 if loss == "npairs" else 32, "width": 32}
    probe_dir = run_dir / "probe"
    Hasher(**settings, base_steps=PROBE_STEPS, steps=1, run_dir=probe_dir).fit(items, labels)
    speeds = [r["items_per_second"] for r in read_log(probe_dir) if r["stage"] == "base"]
    per_step = settings["classes_per_batch"] * settings["items_per_class"] / max(speeds)
    n_steps = max(20, int(0.9 * seconds / per_step))  # a tenth is left for validation
    hasher = Hasher(
        **settings,
        base_steps=int(BASE_PART * n_steps),
        steps=n_steps - int(BASE_PART * n_steps),
        run_dir=run_dir / "run",
        verbose=True,
    )
    start = time.perf_counter()
    hasher.fit(items, labels)
    seconds = time.perf_counter() - start
    return read_log(run_dir / "run"), seconds


def read_log(run_dir: Path) -> list[dict[str, Any]]:
    """The records of a run, one per validation."""
    log = (run_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in log]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [f"{network}-{loss}" for network, loss in RUNS]
    parser.add_argument("--minutes", type=float, default=20.0, help="for each run (default: 20)")
    parser.add_argument("--only", choices=names, help="one run of the four")
    arguments = parser.parse_args()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    here = {**machine(), **versions("hashcade", "torch", "numpy")}
    print(", ".join(f"{name} {value}" for name, value in here.items()))
    data = load_cifar100(find_data())
    print(f"{'network':8} {'loss':8} {'minutes':>7} {'steps':>13} {'images/s':>17} "
          f"{'Pr@1 base':>10} {'Pr@1 hash':>10} {'SUF':>7}")  # fmt: skip
    for network, loss in RUNS:
        if arguments.only not in (None, f"{network}-{loss}"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            records, seconds = run(
                data.items, data.labels, network, loss, 60 * arguments.minutes, Path(folder)
            )
        stages = {name: [r for r in records if r["stage"] == name] for name in ("base", "hash")}
        best = {name: max(rs, key=lambda r: r["precision_at_1"]) for name, rs in stages.items()}
        speeds = [sum(r["items_per_second"] for r in rs) / len(rs) for rs in stages.values()]
        steps = " + ".join(f"{rs[-1]['step']:,}" for rs in stages.values())
        print(
            f"{network:8} {loss:8} {seconds / 60:7.1f} {steps:>13} "
            f"{f'{speeds[0]:,.0f} + {speeds[1]:,.0f}':>17} {best['base']['precision_at_1']:10.2f} "
            f"{best['hash']['precision_at_1']:10.2f} {best['hash']['speedup_factor']:7.1f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
