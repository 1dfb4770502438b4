"""Training (algorithm 1 of the paper).

All randomness is a function of (seed, stage, step), and the only state between steps is that of the
weights and the optimizers. So a resumed run is bit-identical (with as many CPU threads).
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hashcade._io import read_file, replace_file
from hashcade._progress import Progress, duration
from hashcade._validate import checked_choice
from hashcade.errors import ConfigError
from hashcade.learn.assignment import Ints
from hashcade.learn.config import SCHEDULES, VALIDATIONS, ResolvedConfig, StageConfig
from hashcade.learn.distributed import Ranks
from hashcade.learn.fast import FastNet, gains_from_bfloat16
from hashcade.learn.files import Array, Run, StageState, pack, unpack
from hashcade.learn.model import HashModel, new_model
from hashcade.learn.prototypes import STAGES
from hashcade.learn.sampler import ClassSampler, ShuffledItems
from hashcade.learn.stages import Metrics, Stage
from hashcade.learn.training_data import TrainingData

_SAVE_SECONDS = 60.0  # between checkpoints, unless there is a validation earlier
_DECAY = 0.3  # of the paper's schedule
_TRIALS, _TRIAL_SECONDS = 12, 2.0  # steps that measure the speed of a stage, and their time limit
_DIGEST_ROWS = 65536  # rows at a time: they may be memory-mapped
_SAFETY = 0.85  # share of a budget that is planned: other programs may need a core


class _Cost(NamedTuple):
    """Seconds of a stage: of its validations, and of all its steps."""

    steps: int
    fixed: float
    step_seconds: float


class Trainer:
    """Trains models on one data set.

    ``base`` are weights of a base network, with or without its embedding; the stages that train
    them are skipped.
    """

    def __init__(
        self, data: TrainingData, device: torch.device, seed: int, run_dir: Path | None,
        progress: Progress, base: dict[str, Tensor] | None, ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        self.data, self.progress, self.base = data, progress, base
        self._ranks = ranks or Ranks()
        self._device, self._seed, self._run_dir = device, seed, run_dir
        self._limits: dict[str, float] = {}  # seconds per stage, within a budget
        self._fingerprint: dict[str, Any] = {"random_state": seed}
        if run_dir is not None:
            self._fingerprint["data"] = _digest({"items": data.items, "labels": data.labels})
            if base is not None:
                self._fingerprint["base"] = _digest(base)

    def check_ranks(self, config: ResolvedConfig) -> None:
        """Raise ``ConfigError`` if ranks have different labels, shapes of items or settings."""
        digest = _digest({"labels": self.data.labels})
        settings = (self._seed, tuple(self.data.items.shape), config.to_json())
        self._ranks.check_equal(f"{digest} {settings!r}", "items, labels and settings")

    def train(self, config: ResolvedConfig, subdir: str = "") -> tuple[HashModel, Metrics]:
        """Train all stages; return the model with the best weights, and the last metrics."""
        model, stages = self._new_model(config), self._stages(config)
        names, fingerprint = [s.name for s in stages], self._fingerprint | config.to_json()
        if isinstance(config.backbone, nn.Module):  # its initial weights are the user's
            fingerprint["backbone_weights"] = _digest(config.backbone.state_dict())
        run = Run(self._run_dir and self._run_dir / subdir, names, fingerprint)
        checkpoint = self._restore(run)
        first = names.index(checkpoint[0].stage) if checkpoint else 0
        if not subdir and self._ranks.first(lambda: self.progress.on):
            done = checkpoint[0].step if checkpoint else 0
            self.progress.say(self._announcement(config, stages[first:], done))
        metrics: Metrics = {}
        # Dropout uses torch's global generator: it is seeded at every step, and restored.
        threads = threads_for(config, self._device)
        with torch.random.fork_rng(), interrupt_later() as interrupt, threads:
            for stage_config in stages[first:]:
                stage = STAGES[stage_config.name](stage_config, model, self.data)
                metrics = self._train_stage(stage, run, interrupt, checkpoint)
                checkpoint = None
        return model.eval(), metrics

    def _restore(self, run: Run) -> tuple[StageState, dict[str, Array]] | None:
        """The last checkpoint, which the first rank reads for all."""
        checkpoint = run.restore()
        state = self._ranks.first(lambda: checkpoint and vars(checkpoint[0]))
        if state is None:
            return None
        return StageState(**state), self._ranks.first_arrays(checkpoint[1] if checkpoint else {})

    def within(self, config: ResolvedConfig, budget: float) -> ResolvedConfig:
        """A config with as many steps as fit into ``budget`` seconds, by measured speed.

        If the machine becomes slower, a stage ends after its share of the time. The plan is stored
        in ``run_dir``: a resumed run has the same plan, and the budget is for the whole run.
        """
        key = hashlib.sha256(repr((budget, self._fingerprint, config.to_json())).encode())
        path = None if self._run_dir is None else self._run_dir / "budget.json"

        def read_plan() -> dict[str, Any] | None:
            return json.loads(read_file(path)) if path is not None and path.exists() else None

        plan = self._ranks.first(read_plan)
        if self._run_dir is not None and plan is not None and plan["key"] != key.hexdigest():
            message = f"{self._run_dir} holds a run with another budget or other settings"
            raise ConfigError(message, hint="choose another run_dir, or remove that one")
        if plan is None:
            start = time.perf_counter()
            names, costs = [s.name for s in self._stages(config)], self._costs(config)
            spent = 2 * (time.perf_counter() - start)  # it is measured again for the announcement
            fixed, total = (sum(column) for column in list(zip(*costs, strict=True))[1:])
            fraction = min(1.0, max(0.0, _SAFETY * budget - spent - fixed) / max(total, 1e-9))
            steps = {name: int(fraction * c.steps) for name, c in zip(names, costs, strict=True)}
            stretch = max(0.0, budget - spent) / max(fixed + fraction * total, 1e-9)
            seconds = {
                name: stretch * (cost.fixed + fraction * cost.step_seconds)
                for name, cost in zip(names, costs, strict=True)
            }
            new_plan: dict[str, Any] = {"key": key.hexdigest(), "steps": steps, "seconds": seconds}
            plan = self._ranks.first(lambda: new_plan)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, json.dumps(plan))
        steps, self._limits = dict(plan["steps"]), dict(plan["seconds"])
        stages = [
            stage.with_steps(min(stage.steps, max(1, steps[stage.name])))
            if stage.name in steps else stage
            for stage in config.stages
        ]  # fmt: skip
        return replace(config, stages=tuple(stages))

    def _announcement(
        self, config: ResolvedConfig, stages: Sequence[StageConfig], done: int
    ) -> str:
        """One line about all stages, and when they will be done."""
        seconds = sum(cost.fixed + cost.step_seconds for cost in self._costs(config, stages, done))
        parts = [
            f"{s.name} {s.steps:,} × {s.classes_per_batch * s.items_per_class}" for s in stages
        ]
        end = time.localtime(time.time() + seconds)
        until = time.strftime("%H:%M:%S" if seconds < 5400 else "%a %H:%M", end)
        return f"training: {', '.join(parts)} items; about {duration(seconds)}, until {until}"

    def _costs(
        self, config: ResolvedConfig, stages: Sequence[StageConfig] | None = None, done: int = 0
    ) -> list[_Cost]:
        """Estimate the time of stages, by a few steps of each with a temporary model.

        Of the first one ``done`` steps are done already.
        """
        model, costs = self._new_model(config), []
        with torch.random.fork_rng(), threads_for(config, self._device):
            for stage_config in self._stages(config) if stages is None else stages:
                stage = STAGES[stage_config.name](stage_config, model, self.data)
                optimizers, sampler = stage.optimizers(), stage.sampler(self._seed)
                batches, times = self.data.training[sampler.epoch(0)], [0.0]
                for step in range(min(_TRIALS, stage_config.steps)):
                    if self._ranks.first(lambda: sum(times)) < _TRIAL_SECONDS:  # noqa: B023
                        start = time.perf_counter()
                        rows = batches[step % len(batches)]
                        self._gradient_step(stage, optimizers, rows, step)
                        times.append(time.perf_counter() - start)
                start = time.perf_counter()
                stage.validate()
                fixed = VALIDATIONS * (time.perf_counter() - start)
                steps, done = stage_config.steps - done, 0
                # Without the first step, which includes initialization.
                costs.append(_Cost(steps, fixed, steps * float(np.median(times[2:] or times))))
        return costs

    def _new_model(self, config: ResolvedConfig) -> HashModel:
        model = new_model(config, self._seed).to(self._device)
        model.prepare.learn(self.data.normalization_items())
        if self.base is not None:
            model.load_state_dict(self.base, strict=False)
        return model

    def _stages(self, config: ResolvedConfig) -> tuple[StageConfig, ...]:
        skipped: tuple[str, ...] = ()
        if self.base is not None:
            has_embedding = any(name.startswith("embedding.") for name in self.base)
            skipped = ("warmup", "base") if has_embedding else ("warmup",)
        return tuple(s for s in config.stages if s.name not in skipped)

    def _gradient_step(
        self, stage: Stage, optimizers: Sequence[torch.optim.Optimizer], rows: Ints, step: int,
        items: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """One step on a batch of rows, int64[n]; returns the loss.

        ``items`` are the augmented items of the batch, if they are prepared already.
        """
        config, device_type = stage.config, self._device.type
        torch.manual_seed(self._seed_of(config, step))
        items = self._augmented(config, rows, step) if items is None else items
        items = items.to(self._device, non_blocking=True)
        labels = torch.from_numpy(self.data.labels[rows]).to(self._device)
        stage.train_mode()
        self._ranks.check_layers(stage.model)
        fast = isinstance(stage.model.base, FastNet) and gains_from_bfloat16(self._device)
        use_bfloat16 = fast or device_type == "cuda"
        with torch.autocast(device_type, dtype=torch.bfloat16, enabled=use_bfloat16):
            local_outputs = stage.outputs(items, self._ranks.share(len(rows)))
        outputs = self._ranks.gather(local_outputs.float(), len(rows))
        finite = bool(outputs.isfinite().all())  # the solver requires it
        loss = stage.loss(outputs, labels) if finite else outputs.sum()
        if not math.isfinite(value := float(loss.detach())):
            hint = f"set a learning_rate below {config.learning_rate:g}"
            raise ConfigError(f"training diverged: the loss is {value}", hint=hint)
        factor = learning_rate_factor(config.schedule, step, config.steps)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * group["factor"] * factor
            optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        loss_parameters = {id(parameter) for parameter in stage.loss_parameters()}  # on every rank
        groups = (group for optimizer in optimizers for group in optimizer.param_groups)
        parameters = (parameter for group in groups for parameter in group["params"])
        self._ranks.sum_gradients(p for p in parameters if id(p) not in loss_parameters)
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()

    def _seed_of(self, config: StageConfig, step: int) -> int:
        sequence = np.random.SeedSequence([self._seed, int.from_bytes(config.name.encode()), step])
        return int(sequence.generate_state(1, np.uint64)[0] >> 2)

    def _augmented(self, config: StageConfig, rows: Ints, step: int) -> Tensor:
        return self.data.augmented(rows, config.augment, self._seed_of(config, step) + 1)

    def _batches(
        self, config: StageConfig, sampler: ClassSampler | ShuffledItems, first: int
    ) -> Generator[tuple[Ints, Tensor | None], None, None]:
        """Rows of every step from ``first`` on, and items that take time to prepare.

        These are prepared in a thread, during the previous step.
        """
        n_batches = sampler.batches_per_epoch

        def rows_by_step() -> Iterator[tuple[int, Ints]]:
            epoch, batches = -1, np.empty((0, 0), np.int64)
            for step in range(first, config.steps):
                if step // n_batches != epoch:
                    epoch = step // n_batches
                    batches = self.data.training[sampler.epoch(epoch)]
                yield step, batches[step % n_batches]

        if self.data.items.ndim != 4 and not self.data.mapped:
            yield from ((step_rows, None) for _, step_rows in rows_by_step())
            return
        with ThreadPoolExecutor(1, "hashcade-batches") as thread:
            pending: deque[tuple[Ints, Future[Tensor]]] = deque()
            for step, step_rows in rows_by_step():
                pending.append((step_rows, thread.submit(self._augmented, config, step_rows, step)))
                if len(pending) > 1:
                    previous_rows, items = pending.popleft()
                    yield previous_rows, items.result()
            for step_rows, items in pending:
                yield step_rows, items.result()

    def _train_stage(
        self, stage: Stage, run: Run, interrupt: threading.Event,
        checkpoint: tuple[StageState, dict[str, Array]] | None,
    ) -> Metrics:  # fmt: skip
        config, model = stage.config, stage.model
        sampler = stage.sampler(self._seed)
        self.progress.say(f"{config.name}: {sampler.describe()}")
        optimizers = stage.optimizers()
        if checkpoint is None:
            state = StageState(config.name, best_metrics=self._ranks.first(stage.start))
            self._ranks.equalize(model)
            best = copy.deepcopy(model.state_dict())
        else:
            state, tensors = checkpoint
            best = unpack(model, optimizers, tensors)
            position = f"step {state.step:,} of {config.steps:,}"
            self.progress.say(f"{config.name}: resuming after {position}")
        batches = self._batches(config, sampler, state.step)
        last_save = tick = time.perf_counter()
        start_time, tick_step = tick - state.seconds, state.step
        losses: list[Tensor] = []

        limit = self._limits.get(config.name, math.inf)

        def elapsed() -> float:
            seconds = time.perf_counter() - start_time
            return seconds if limit == math.inf else self._ranks.first(lambda: seconds)

        while state.step < config.steps and state.seconds < limit:
            step = state.step
            rows, items = next(batches)
            losses.append(self._gradient_step(stage, optimizers, rows, step, items))
            state.step += 1

            # ---- at intervals: validate, keep the best weights, log, save
            now = time.perf_counter()
            state.seconds = elapsed()
            speed = (state.step - tick_step) * sampler.batch_size / (now - tick)
            last = state.step == config.steps or state.seconds >= limit
            validating = state.step % config.validate_every == 0 or last
            if validating:
                self._ranks.equalize(model)
                metrics = self._ranks.first(stage.validate)
                if stage.keeps_last or _merit(metrics) >= _merit(state.best_metrics):
                    best, state.best_metrics = copy.deepcopy(model.state_dict()), metrics
                state.seconds = elapsed()
                record = {
                    "stage": config.name,
                    "step": state.step,
                    "loss": float(torch.stack(losses).mean()),
                    **metrics,
                    "learning_rate": config.learning_rate
                    * learning_rate_factor(config.schedule, step, config.steps),
                    "items_per_second": speed,
                    "solver_share": stage.solver_seconds / (now - tick),
                    "seconds": state.seconds,
                }
                self.progress.say(_describe(record))
                run.log(record)
            else:
                note = f"loss {float(losses[-1]):.3f}  {speed:,.0f} items/s"
                self.progress.update(config.name, state.step, config.steps, note)
            stopping = self._ranks.any(interrupt.is_set())
            if validating or stopping or now - last_save > _SAVE_SECONDS:
                run.save(state, pack(model, optimizers, best))
                last_save = time.perf_counter()
            if stopping:
                raise KeyboardInterrupt(f"stopped after step {state.step} of {config.steps}")
            if validating:
                tick, tick_step = time.perf_counter(), state.step
                losses, stage.solver_seconds = [], 0.0

        batches.close()
        model.load_state_dict(best)
        return state.best_metrics


def learning_rate_factor(schedule: str | int, step: int, steps: int) -> float:
    """Factor on the peak learning rate at a step, from 0 to ``steps - 1``.

    ``one-cycle`` rises for a tenth of the steps and then decays to zero along half a cosine.
    ``paper`` is multiplied by 0.3 after every 20k of 70k steps, a number after every so many
    steps. ``constant`` is 1.
    """
    if isinstance(schedule, int):
        return float(_DECAY ** (step // schedule))
    checked_choice("schedule", schedule, SCHEDULES)
    if schedule == "constant":
        return 1.0
    if schedule == "paper":
        return float(_DECAY ** (step * 7 // (2 * steps)))
    rise = max(1, steps // 10)
    if step < rise:
        return (step + 1) / rise
    return 0.5 + 0.5 * math.cos(math.pi * (step - rise) / max(1, steps - rise))


@contextmanager
def threads_for(config: ResolvedConfig, device: torch.device) -> Iterator[None]:
    """Train networks on embeddings in one thread.

    Two threads are hardly faster with matrices of this size, and many times slower if one of them
    waits for a core that another process uses.
    """
    n_threads = torch.get_num_threads()
    if config.is_dense and device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


@contextmanager
def interrupt_later() -> Iterator[threading.Event]:
    """Let the first Ctrl-C set an event, to stop after a step; the second one interrupts."""
    interrupt = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if interrupt.is_set():
            raise KeyboardInterrupt
        interrupt.set()

    is_main = threading.current_thread() is threading.main_thread()  # others get no signals
    previous = signal.signal(signal.SIGINT, handle) if is_main else None
    try:
        yield interrupt
    finally:
        if previous is not None:
            signal.signal(signal.SIGINT, previous)


def _merit(metrics: Metrics) -> tuple[float, float]:
    # With easy data precision is 100 % long before every class has its own bucket.
    return metrics.get("precision_at_1", 0.0), metrics.get("bucket_nmi", 0.0)


def _digest(values: Mapping[str, Tensor | Array]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(values.items()):
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        digest.update(repr((name, array.shape, str(array.dtype))).encode())
        rows = np.atleast_1d(array)
        for start in range(0, len(rows), _DIGEST_ROWS):
            digest.update(np.ascontiguousarray(rows[start : start + _DIGEST_ROWS]).data)
    return digest.hexdigest()


def _describe(record: Mapping[str, Any]) -> str:
    text = f"{record['stage']} {record['step']:,}  loss {record['loss']:.3f}"
    if "precision_at_1" in record:
        text += f"  precision@1 {record['precision_at_1']:.1f} %"
    if "speedup_factor" in record:
        text += f"  speed-up {record['speedup_factor']:.1f}"
    return f"{text}  {record['items_per_second']:,.0f} items/s"
