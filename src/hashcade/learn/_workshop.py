"""Where plans become trained models: with shared data, and a directory to go on from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hashcade.learn._base import parts_of_base, weights_digest
from hashcade.learn._display import Display
from hashcade.learn._model import HashModel
from hashcade.learn._plan import Plan
from hashcade.learn._run import Run
from hashcade.learn._trainer import TrainingData, train
from hashcade.learn._tune import Changes, Figures, shortened, tune


class Workshop:
    """Trains models on one set of data.

    Parameters
    ----------
    data, device, seed
        What is trained on, where, and from which seed.
    run_dir
        Where checkpoints are kept, or None.
    digest
        Tells these data from others, for the checkpoints.
    base
        Weights of a base that is trained already: then its stage is left out.
    """

    def __init__(
        self,
        data: TrainingData,
        *,
        device: torch.device,
        seed: int,
        run_dir: Path | None,
        digest: str,
        display: Display,
        base: dict[str, Tensor] | None = None,
    ) -> None:
        self._data, self._device, self._seed = data, device, seed
        self._run_dir, self._digest, self._display = run_dir, digest, display
        self._base = base or {}  # what the trials share, once it is trained
        self._given = {"base": weights_digest(base)} if base is not None else {}

    def train(self, plan: Plan) -> tuple[HashModel, Figures]:
        """The model of a plan, and the figures that chose its weights."""
        return self._train(plan, self._run_dir)

    def tune(
        self,
        settings: Mapping[str, Any],
        plan: Plan,
        make: Callable[[Mapping[str, Any]], Plan],
        n_trials: int,
    ) -> tuple[Plan, list[dict[str, Any]]]:
        """The plan with the settings that did best in short trials, and the table of trials.

        The base network is the same in all of them, and trained once, in full.
        """
        place = None if self._run_dir is None else self._run_dir / "tune"
        if plan.stages[0].name == "base" and not self._base:
            base_alone = replace(plan, stages=plan.stages[:1], n_codes=0)
            model, _ = self._train(base_alone, None if place is None else place / "base")
            self._base = parts_of_base(model)
        n_tried = 0

        def try_out(changes: Changes) -> Figures:
            nonlocal n_tried
            n_tried += 1
            trial = shortened(make({**settings, **changes}))
            return self._train(trial, None if place is None else place / f"{n_tried:02d}")[1]

        changes, table = tune(
            settings, plan, len(set(self._data.labels.tolist())), try_out,
            n_trials=n_trials, display=self._display,
        )  # fmt: skip
        return make({**settings, **changes}), table

    def _train(self, plan: Plan, run_dir: Path | None) -> tuple[HashModel, Figures]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            model = plan.make_model()
        model.to(self._device)
        model.prepare.learn(self._data.whole(self._data.training))  # type: ignore[operator]
        stages = plan.stages
        if self._base:
            model.load_state_dict(self._base, strict=False)
            stages = tuple(stage for stage in stages if stage.name != "base")
        fingerprint = {**plan.describe(), "random_state": self._seed, "data": self._digest}
        fingerprint |= self._given
        if isinstance(plan.backbone, nn.Module):  # its first weights are the user's
            fingerprint["backbone_weights"] = weights_digest(plan.backbone.state_dict())
        run = Run(run_dir, [stage.name for stage in stages], fingerprint)
        results = train(model, stages, self._data, seed=self._seed, run=run, display=self._display)
        return model, dict(results[-1].best_figures)
