"""Training, to be read from top to bottom (algorithm 1 of the paper).

Everything random is a function of (seed, stage, step), and nothing is carried from step to step
but the weights and the optimiser's state. So a run that goes on from a checkpoint gives bit for
bit what it would have given without the break (on a CPU, with as many threads).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hashcade.codes._cascade import solve_cascade
from hashcade.data._transforms import augment as augment_images
from hashcade.learn._codebook import assign_to_book, joint_loss, solve_codebook
from hashcade.learn._display import Display
from hashcade.learn._figures import bucket_nmi, exhaustive_precision, search_figures
from hashcade.learn._interrupt import InterruptLater
from hashcade.learn._model import HashModel
from hashcade.learn._run import Progress, Run
from hashcade.learn._sampler import ClassSampler
from hashcade.learn._schedules import rate_factor
from hashcade.learn._stage import Stage

_SAVE_SECONDS = 60.0  # between checkpoints, if no validation comes first


@dataclass(frozen=True)
class TrainingData:
    """Items on the side of training, and items set aside. Labels are numbers 0, 1, 2, ..."""

    items: Tensor  # float32[n, size], float32[n, views, size] or uint8[n, h, w, 3]
    labels: npt.NDArray[np.int64]  # (n,)
    training: npt.NDArray[np.int64]  # indices
    validation: npt.NDArray[np.int64]  # indices; may be none

    def whole(self, chosen: npt.NDArray[np.int64]) -> Tensor:
        """The chosen items as they are; of several views the first."""
        first = self.items[:, 0] if self.items.ndim == 3 else self.items
        return first[torch.from_numpy(chosen).to(first.device)]

    def varied(self, chosen: npt.NDArray[np.int64], augment: str, seed: int) -> Tensor:
        """The chosen items as training sees them: images changed at random, or a random view."""
        rows = torch.from_numpy(chosen).to(self.items.device)
        if self.items.ndim == 3:
            generator = torch.Generator().manual_seed(seed)
            views = torch.randint(self.items.shape[1], (len(chosen),), generator=generator)
            return self.items[rows, views.to(rows.device)]
        if augment == "none":
            return self.items[rows]
        images = self.items[rows].numpy()  # images stay in main memory
        changed = augment_images(
            images,
            np.random.default_rng(seed),
            pad=images.shape[1] // 8,  # 4 for images of 32×32
            mirror=augment == "crop-mirror",
        )
        return torch.from_numpy(changed)


def train(
    model: HashModel,
    stages: Sequence[Stage],
    data: TrainingData,
    *,
    seed: int,
    run: Run,
    display: Display,
) -> list[Progress]:
    """Train the stages one after the other; the model ends with the best weights of each.

    The model must be where it is to be trained (CPU or GPU), with its first weights. With a
    checkpoint in the run's directory training goes on from there.

    Returns
    -------
    list of Progress
        For each stage that was trained now the figures that chose its weights.
    """
    results = []
    names = [stage.name for stage in stages]
    checkpoint = run.restore()
    # Dropout draws from torch's global generator: it is seeded at every step, and given back.
    with torch.random.fork_rng(), InterruptLater() as interrupt:
        for stage in stages:
            if checkpoint and names.index(checkpoint[0].stage) > names.index(stage.name):
                continue  # this stage was finished
            here = checkpoint if checkpoint and checkpoint[0].stage == stage.name else None
            results.append(_train_stage(model, stage, data, seed, run, display, interrupt, here))
    model.eval()
    return results


def _train_stage(
    model: HashModel,
    stage: Stage,
    data: TrainingData,
    seed: int,
    run: Run,
    display: Display,
    interrupt: InterruptLater,
    checkpoint: tuple[Progress, dict[str, Tensor]] | None,
) -> Progress:
    # ---- set up: batches, optimiser, and where we stand
    device = next(model.parameters()).device
    labels = data.labels[data.training]
    sampler = ClassSampler(
        labels,
        classes_per_batch=stage.classes_per_batch,
        items_per_class=stage.items_per_class,
        random_state=seed,
    )
    display.say(f"{stage.name}: {sampler.describe()}")
    if stage.name == "hash" and checkpoint is None:
        model.start_hash_base()
    optimizer = make_optimizer(model, stage)
    progress = Progress(stage.name)
    if stage.name == "joint" and checkpoint is None:
        # The book as the hash stage leaves it is worth looking at: training on may not help.
        write_codebook(model, stage, data)
        progress.best_step, progress.best_figures = 0, validate(model, stage, data)
    best = _copy_state(model)
    if checkpoint is not None:
        progress, tensors = checkpoint
        best = _load_tensors(model, optimizer, tensors)
        display.say(f"{stage.name}: going on after step {progress.step:,} of {stage.steps:,}")
    epoch, batches = -1, np.empty((0, 0), np.int64)
    started = saved = time.perf_counter()
    seconds_before = progress.seconds
    tick, tick_step, losses, solver_seconds = started, progress.step, [], 0.0

    while progress.step < stage.steps:
        # ---- a batch of n classes × m items
        step = progress.step
        torch.manual_seed(_step_seed(seed, stage.name, step))
        if step // sampler.batches_per_epoch != epoch:
            epoch = step // sampler.batches_per_epoch
            batches = data.training[sampler.epoch(epoch)]
        chosen = batches[step % sampler.batches_per_epoch]  # (n · m,)
        items = data.varied(chosen, stage.augment, _step_seed(seed, stage.name, step) + 1)
        items = items.to(device, non_blocking=True)

        # ---- the loss; for the hash stage first the codes, outside autograd
        _train_mode(model, stage)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            outputs = (
                model.vectors(items)
                if stage.name == "base"
                else model.scores(items, dropout=stage.dropout)
            )
        outputs = outputs.float()
        labels_here = torch.from_numpy(data.labels[chosen]).to(device)
        if stage.name == "hash":
            class_scores = class_means(outputs, sampler.items_per_class)
            clock = time.perf_counter()
            class_codes = solve_cascade(
                class_scores,
                model.shape,
                sibling_penalty=stage.sibling_penalty,
                collision_penalty=stage.collision_penalty,
            )
            solver_seconds += time.perf_counter() - clock
            loss = stage.hash_loss(outputs, class_codes)
        elif stage.name == "joint":
            loss = joint_loss(
                outputs, labels_here, model.codebook, model.shape, sharpness=stage.sharpness
            )
        else:
            loss = stage.base_loss(outputs, labels_here)

        # ---- the gradient step
        factor = rate_factor(stage.schedule, step, stage.steps)
        for group in optimizer.param_groups:
            group["lr"] = stage.rate * group["rate_factor"] * factor
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        progress.step += 1
        losses.append(loss.detach())

        # ---- now and then: look at the items set aside, keep the best weights, log, save
        speed = (progress.step - tick_step) * sampler.batch_size / (time.perf_counter() - tick)
        is_due = progress.step % stage.validate_every == 0 or progress.step == stage.steps
        if is_due:
            train_seconds = time.perf_counter() - tick
            figures = validate(model, stage, data)
            if _merit(figures) >= _merit(progress.best_figures):
                best = _copy_state(model)
                progress.best_step, progress.best_figures = progress.step, figures
            progress.seconds = seconds_before + time.perf_counter() - started
            record = {
                "stage": stage.name,
                "step": progress.step,
                "loss": float(torch.stack(losses).mean()),
                **figures,
                "rate": stage.rate * factor,
                "items_per_second": speed,
                "solver_share": solver_seconds / train_seconds,
                "seconds": progress.seconds,
            }
            display.validation(record)
            run.log(record)
        else:
            display.step(stage.name, progress.step, stage.steps, float(losses[-1]), speed)
        if is_due or interrupt.requested or time.perf_counter() - saved > _SAVE_SECONDS:
            progress.seconds = seconds_before + time.perf_counter() - started
            run.save(progress, _all_tensors(model, optimizer, best))
            saved = time.perf_counter()
        if interrupt.requested:
            raise KeyboardInterrupt(f"stopped after step {progress.step} of {stage.steps}")
        if is_due:
            tick, tick_step, losses, solver_seconds = time.perf_counter(), progress.step, [], 0.0

    model.load_state_dict(best)
    return progress


def class_means(scores: Tensor, items_per_class: int) -> npt.NDArray[np.float64]:
    """Class means per level, as the solver takes them: float64[depth, n_classes, width].

    Scores are those of a batch made by the sampler: the items of a class stand side by side.
    """
    n, depth, width = scores.shape
    by_class = scores.detach().reshape(n // items_per_class, items_per_class, depth, width)
    means = by_class.mean(dim=1, dtype=torch.float64).transpose(0, 1)
    return np.ascontiguousarray(means.cpu().numpy())


def make_optimizer(model: HashModel, stage: Stage) -> torch.optim.Adam:
    """Adam with the new layers at the full rate and the network below at a part of it."""
    new: nn.Module | None
    base, new = (
        (model.base, model.embedding) if stage.name == "base" else (model.hash_base, model.head)
    )
    groups = []
    for module, factor, decay in (
        (new, 1.0, stage.weight_decay),
        (base, stage.base_rate, stage.base_weight_decay),
    ):
        parameters = list(module.parameters()) if module is not None else []
        if parameters and factor > 0:
            groups.append({"params": parameters, "rate_factor": factor, "weight_decay": decay})
    return torch.optim.Adam(groups, lr=stage.rate)


@torch.no_grad()
def validate(model: HashModel, stage: Stage, data: TrainingData) -> dict[str, float]:
    """Figures of the stage on the items set aside, searched among themselves."""
    if len(data.validation) == 0:
        return {}
    labels = data.labels[data.validation]
    model.eval()
    items = data.whole(data.validation)
    vectors = in_chunks(model, "vectors", items)
    if stage.name == "base":
        return {"precision_at_1": exhaustive_precision(vectors, labels, n_neighbors=1)}
    scores = in_chunks(model, "scores", items)
    book = model.codebook.cpu().numpy() if stage.name == "joint" else None
    found = search_figures(scores, vectors, labels, model.shape, n_neighbors=1, codebook=book)
    buckets = (
        model.shape.scores_to_bucket_ids(scores)
        if book is None
        else assign_to_book(scores, book, model.shape)
    )
    return {
        "precision_at_1": found.precision,
        "speedup_factor": found.speedup,
        "bucket_nmi": bucket_nmi(buckets[:, 0], labels),
    }


@torch.no_grad()
def write_codebook(model: HashModel, stage: Stage, data: TrainingData) -> None:
    """Give the model a code for every class, from all items on the side of training."""
    model.eval()
    codebook = solve_codebook(
        in_chunks(model, "scores", data.whole(data.training)),
        data.labels[data.training],
        len(model.codebook),
        model.shape,
        sibling_penalty=stage.sibling_penalty,
        collision_penalty=stage.collision_penalty,
    )
    model.codebook.copy_(torch.from_numpy(codebook))


@torch.no_grad()
def in_chunks(
    model: HashModel, what: str, items: Tensor, chunk: int = 1024
) -> npt.NDArray[np.float32]:
    """``model.vectors`` or ``model.scores`` of many items."""
    device = next(model.parameters()).device
    function = getattr(model, what)
    parts = [
        function(items[at : at + chunk].to(device)).float().cpu().numpy()
        for at in range(0, max(1, len(items)), chunk)
    ]
    return np.concatenate(parts)


def _merit(figures: dict[str, float]) -> tuple[float, float]:
    """What weights are chosen by: precision, and the purity of buckets where it is equal.

    Easy data reach full precision long before every class has a bucket of its own. Of equals the
    later ones are taken; so the last, if nothing was set aside.
    """
    return figures.get("precision_at_1", 0.0), figures.get("bucket_nmi", 0.0)


# -- state -----------------------------------------------------------------------------------


def _train_mode(model: HashModel, stage: Stage) -> None:
    """Training mode for what is trained; a frozen network keeps its running statistics."""
    model.train()
    if stage.name != "base":
        model.base.eval()
        model.hash_base.train(stage.base_rate > 0)


def _step_seed(seed: int, stage: str, step: int) -> int:
    """A seed for what a step draws, the same on every machine."""
    words = np.random.SeedSequence([seed, int.from_bytes(stage.encode()), step])
    return int(words.generate_state(1, np.uint64)[0] >> 2)


def _copy_state(model: HashModel) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _all_tensors(
    model: HashModel, optimizer: torch.optim.Optimizer, best: dict[str, Tensor]
) -> dict[str, Tensor]:
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"best/{name}": value for name, value in best.items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{key}": value for key, value in state.items()}
    # A copy each: safetensors refuses tensors that share memory.
    return {name: value.detach().clone() for name, value in tensors.items()}


def _load_tensors(
    model: HashModel, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Put a checkpoint's tensors in their places; returns the best weights."""
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimizer": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = value
    model.load_state_dict(parts["model"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in parts["optimizer"].items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return parts["best"]
