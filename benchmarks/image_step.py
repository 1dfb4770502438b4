"""Where a training step of the fast image network spends its time, and what bounds it.

    python benchmarks/image_step.py
    python benchmarks/image_step.py --rounds 2  # to see that it runs

A step of the warm-up, as `Hasher(backbone="fast", warmup_steps=...)` takes it: 256 images of 32×32
pixels, forward, backward, both optimizers. Variants take turns: bfloat16 (the default), float32,
and bfloat16 with `torch.compile`. Then the default is profiled by kind of operation. Arithmetic of
the convolutions is compared with the fastest matrix product of the same processor.

Images are random: their values do not change the time. Writes docs/results/image-step.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _timing import interleaved, machine, quartiles, ratio, say, versions
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from hashcade.learn import FastNet
from hashcade.learn.fast import Muon, class_directions, is_filter, warmup_loss

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
BATCH, N_CLASSES, N_FEATURES, RATE = 256, 100, 256, 3e-3
PROFILED_STEPS, MATRIX = 10, 4096
KINDS = {  # by a part of the name of an operation; the first that fits
    "convolution_backward": "convolutions, backward",
    "convolution": "convolutions, forward",
    "batch_norm": "batch normalization",
    "mm": "orthogonal updates (matrix products)",
    "pool": "pooling",
    "copy": "conversion to and from bfloat16",
}
OTHER = "additions, rectifiers and others"


class Trainer:
    """A network, its optimizers and a batch."""

    def __init__(self, dtype: torch.dtype, compiled: bool = False) -> None:
        torch.manual_seed(0)
        self.network: Any = FastNet(mirrored=True).train()
        parameters = list(self.network.parameters())
        filters = [p for p in parameters if is_filter(p)]
        others = [p for p in parameters if not is_filter(p)]
        self.optimizers = [torch.optim.Adam(others, RATE), Muon(filters, RATE * Muon.rate)]
        self.images, self.labels = torch.randn(BATCH, 3, 32, 32), torch.arange(BATCH) % N_CLASSES
        self.dtype, self.compiled = dtype, compiled
        if compiled:
            self.network = torch.compile(self.network)

    def loss(self) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            features = self.network(self.images)
        return warmup_loss(features.float(), class_directions(N_CLASSES, N_FEATURES), self.labels)

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.loss().backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            optimizer.step()


def multiplications(network: nn.Module) -> int:
    """Of the convolutions, for one image forward."""
    total = 0

    def count(module: Any, inputs: Any, output: Tensor) -> None:
        nonlocal total
        total += output[0].numel() * module.weight[0].numel()

    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        network.eval()(torch.zeros(1, 3, 32, 32))
    for hook in hooks:
        hook.remove()
    network.train()
    return total // 2  # inference sees the mirror image, too


def shares(trainer: Trainer) -> dict[str, float]:
    """Milliseconds of a step by kind of operation."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(PROFILED_STEPS):
            trainer.step()
    milliseconds: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        kind = next((kind for part, kind in KINDS.items() if part in event.key), OTHER)
        milliseconds[kind] += event.self_cpu_time_total / 1000 / PROFILED_STEPS
    return dict(sorted(milliseconds.items(), key=lambda item: -item[1]))


def matrix_product(dtype: torch.dtype) -> Callable[[], Tensor]:
    left, right = torch.randn(MATRIX, MATRIX).to(dtype), torch.randn(MATRIX, MATRIX).to(dtype)
    return lambda: left @ right


def measure(rounds: int) -> dict[str, Any]:
    """All results."""
    variants = {
        "bfloat16": Trainer(torch.bfloat16),
        "float32": Trainer(torch.float32),
        "bfloat16, compiled": Trainer(torch.bfloat16, compiled=True),
    }
    n_multiplications = multiplications(variants["bfloat16"].network)
    start, compile_seconds = time.perf_counter(), None
    try:
        variants["bfloat16, compiled"].step()
        compile_seconds = time.perf_counter() - start
    except Exception as error:  # it needs a compiler for C++
        say(f"torch.compile: {type(error).__name__}: {error}")
        del variants["bfloat16, compiled"]
    say("measuring")
    calls: dict[str, Callable[[], object]] = {name: t.step for name, t in variants.items()}
    calls |= {f"product {d}": matrix_product(getattr(torch, d)) for d in ("bfloat16", "float32")}
    seconds = interleaved(calls, rounds)
    # Forward once, backward twice; an addition with each multiplication.
    work = dict.fromkeys(variants, 6.0 * n_multiplications * BATCH)
    work |= {name: 2.0 * MATRIX**3 for name in calls if name not in variants}
    return {
        "about": {
            "machine": machine(), "versions": versions("hashcade", "torch"), "rounds": rounds,
            "threads": torch.get_num_threads(),
        },
        "multiplications": n_multiplications,
        "compile_seconds": compile_seconds,
        "step_ms": {name: quartiles([1e3 * s for s in seconds[name]]) for name in variants},
        "ratio": {name: ratio(seconds[name], seconds["bfloat16"]) for name in variants},
        "gflops": {k: quartiles([work[k] / s / 1e9 for s in seconds[k]]) for k in calls},
        "shares_ms": shares(variants["bfloat16"]),
    }  # fmt: skip


def page(results: dict[str, Any]) -> str:
    about, gflops = results["about"], results["gflops"]
    packages = ", ".join(f"{name} {value}" for name, value in about["versions"].items())
    compiled = results["compile_seconds"]
    lines = [
        "# A training step of the fast image network",
        "",
        f"Written by `make bench-image-step`. {about['machine']['cpu']}, {about['threads']}"
        f" threads; {packages}. Medians with quartiles, of {about['rounds']} rounds in which all"
        " take turns.",
        "",
        f"A step of the warm-up with {BATCH} images. The convolutions take"
        f" {results['multiplications'] / 1e6:.0f} million multiplications for an image forward, and"
        " twice as many backward. GFLOP/s are those of the convolutions over the time of the whole"
        " step, forward and backward.",
        "",
        "| | step, ms | over bfloat16 | images per second | GFLOP/s |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, (low, middle, high) in results["step_ms"].items():
        factor = results["ratio"][name]
        lines.append(
            f"| {name} | {middle:.0f} ({low:.0f}–{high:.0f}) | {factor[1]:.2f}"
            f" ({factor[0]:.2f}–{factor[2]:.2f}) | {1e3 * BATCH / middle:,.0f}"
            f" | {gflops[name][1]:.0f} |"
        )
    lines += [
        "",
        f"A product of matrices of {MATRIX:,} × {MATRIX:,} on the same threads:"
        f" {gflops['product bfloat16'][1]:.0f} GFLOP/s in bfloat16,"
        f" {gflops['product float32'][1]:.0f} in float32."
        + (f" `torch.compile` took {compiled:.0f} s." if compiled else ""),
        "",
        "By kind of operation, bfloat16, under the profiler:",
        "",
        "| | ms | share |",
        "|---|---:|---:|",
    ]
    total = sum(results["shares_ms"].values())
    for kind, milliseconds in results["shares_ms"].items():
        lines.append(f"| {kind} | {milliseconds:.1f} | {milliseconds / total:.0%} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page")
    options = parser.parse_args()
    results = measure(options.rounds)
    text = page(results)
    (options.out / "image-step.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.out / "image-step.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
