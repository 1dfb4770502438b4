"""Deep Cauchy Hashing (Cao, Long, Liu, Wang; CVPR 2018) on embeddings.

The distance of two codes is d(h, g) = n_bits / 2 · (1 − cos(h, g)), which for codes of ±1 is their
Hamming distance. The probability that they are similar is that of a Cauchy distribution,
p = γ / (γ + d): unlike a sigmoid of the inner product it is large within a small Hamming ball only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from experiments.baselines.base import Baseline, Floats, State, bit_shape, code_scores
from hashcade.codes import CodeShape
from hashcade.learn import ClassSampler, learning_rate_factor

_TINY = 1e-6  # under a logarithm: equal codes of different classes have distance 0


def cauchy_cross_entropy(codes: Tensor, labels: Tensor, *, gamma: float) -> Tensor:
    """Weighted cross-entropy over all pairs of a batch of continuous codes, float[n, n_bits].

    Mean over the pairs i < j of ``w · (s · log(d / γ) + log(1 + γ / d))``, where s is 1 for equal
    labels; similar and dissimilar pairs have half of the weight each, ``w = |S| / |S_s|`` up to a
    factor.
    """
    n_bits = codes.shape[1]
    unit = nn.functional.normalize(codes, dim=1)
    distances = 0.5 * n_bits * (1.0 - unit @ unit.T)  # (n, n)
    above = torch.triu(torch.ones_like(distances, dtype=torch.bool), diagonal=1)
    d = distances[above].clamp(min=0.0)
    similar = (labels[:, None] == labels[None])[above]
    # s · log(d / γ) + log(1 + γ / d) is, case by case, −log p and −log(1 − p).
    near = torch.log1p(d / gamma)
    far = torch.log1p(gamma / (d + _TINY))
    n_similar = int(similar.sum())
    parts = []
    if n_similar > 0:
        parts.append(near[similar].mean())
    if n_similar < len(d):
        parts.append(far[~similar].mean())
    return torch.stack(parts).mean() if parts else codes.sum() * 0.0


def cauchy_quantization(codes: Tensor, *, gamma: float) -> Tensor:
    """Mean of ``log(1 + d(|h|, 1) / γ)``: how far codes float[n, n_bits] are from ±1."""
    n_bits = codes.shape[1]
    size = codes.abs()
    cosine = size.sum(dim=1) / (size.norm(dim=1).clamp(min=1e-12) * n_bits**0.5)
    return torch.log1p(0.5 * n_bits * (1.0 - cosine).clamp(min=0.0) / gamma).mean()


@dataclass(kw_only=True, eq=False)
class DCH(Baseline):
    """Bits learned from labels; the code of an item is its bucket.

    A network with one hidden layer and tanh gives continuous codes, and their signs the bits. It
    is trained by Adam on the sum of :func:`cauchy_cross_entropy` and ``quantization`` times
    :func:`cauchy_quantization`. The DCH paper trains a whole AlexNet; here the method gets the same
    embeddings as all others, with the same two layers to learn as a ``Hasher`` has.

    With ``sparsity`` above 1 an item is in the buckets of the codes with the largest inner products
    with its continuous code. The paper compares DCH at ``sparsity=1`` alone.

    Parameters
    ----------
    n_bits
        There are ``2 ** n_bits`` buckets; in the paper ``2 ** n_bits = width · depth``.
    gamma
        Scale γ of the Cauchy distribution, in bits: the Hamming distance at which two items are as
        likely similar as not. None: ``n_bits``. The smaller it is, the more classes share codes.
    quantization
        λ, weight of the quantization loss.
    steps
        Batches of ``classes_per_batch`` × ``items_per_class``. None: ten epochs, at least 1000.
    learning_rate
        At its peak; it rises for a tenth of the steps and falls to zero.

    Examples
    --------
    >>> y = np.repeat([0, 1, 2], 40)
    >>> X = np.eye(3)[y] + 0.1 * np.random.default_rng(0).normal(size=(120, 3))
    >>> dch = DCH(n_bits=3, steps=100).fit(X, y)
    >>> len(set(dch.encode(np.eye(3)).bucket_ids.ravel().tolist()))  # a bucket for each
    3
    """

    needs_labels: ClassVar[bool] = True
    n_bits: int = 6
    sparsity: int = 1
    gamma: float | None = None
    quantization: float = 0.1
    hidden_size: int = 512
    steps: int | None = None
    learning_rate: float = 3e-3
    classes_per_batch: int = 64
    items_per_class: int = 4
    random_state: int = 0

    def _learn(
        self, items: Floats, labels: npt.NDArray[np.int64] | None
    ) -> tuple[CodeShape, State]:
        assert labels is not None
        # ---- settings
        shape = bit_shape(self.n_bits, self.sparsity)
        gamma = float(self.n_bits if self.gamma is None else self.gamma)
        positive = {
            "gamma": gamma,
            "learning_rate": self.learning_rate,
            "hidden_size": self.hidden_size,
            "steps": 1 if self.steps is None else self.steps,
        }
        for name, value in positive.items():
            if not 0 < value < math.inf:  # false for NaN as well
                raise ValueError(f"{name}={value!r} must be finite and > 0")
        if not 0 <= self.quantization < math.inf:
            raise ValueError(f"quantization={self.quantization!r} must be finite and >= 0")
        sampler = ClassSampler(
            labels,
            classes_per_batch=self.classes_per_batch,
            items_per_class=self.items_per_class,
            random_state=self.random_state,
        )
        steps = self.steps or max(1000, -(-10 * len(items) // sampler.batch_size))

        # ---- the network, on embeddings scaled to unit spread
        centre = items.mean(axis=0, dtype=np.float64)
        spread = max(float(items.std(axis=0, dtype=np.float64).mean()), 1e-12)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            hidden = nn.Linear(items.shape[1], self.hidden_size)
            last = nn.Linear(self.hidden_size, self.n_bits)
        inputs = torch.from_numpy(((items - centre) / spread).astype(np.float32))
        targets = torch.from_numpy(labels)

        # ---- training
        optimizer = torch.optim.Adam([*hidden.parameters(), *last.parameters()])
        batches = np.empty((0, 0), np.int64)
        for step in range(steps):
            epoch, at = divmod(step, sampler.batches_per_epoch)
            if at == 0:
                batches = sampler.epoch(epoch)
            for group in optimizer.param_groups:
                factor = learning_rate_factor("one-cycle", step, steps)
                group["lr"] = self.learning_rate * factor
            rows = torch.from_numpy(batches[at])
            codes = torch.tanh(last(torch.relu(hidden(inputs[rows]))))
            loss = cauchy_cross_entropy(codes, targets[rows], gamma=gamma)
            loss = loss + self.quantization * cauchy_quantization(codes, gamma=gamma)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        # ---- the same without torch: centre and spread go into the first layer
        weights = hidden.weight.detach().double().numpy() / spread  # (hidden, size)
        bias = hidden.bias.detach().double().numpy() - weights @ centre
        arrays = {
            "hidden_weight": weights.T,
            "hidden_bias": bias,
            "last_weight": last.weight.detach().numpy().T,
            "last_bias": last.bias.detach().numpy(),
        }
        return shape, {
            name: np.ascontiguousarray(values, np.float32) for name, values in arrays.items()
        }

    def _score(self, items: Floats) -> Floats:
        hidden = items @ self.state_["hidden_weight"] + self.state_["hidden_bias"]
        np.maximum(hidden, 0.0, out=hidden)
        return code_scores(np.tanh(hidden @ self.state_["last_weight"] + self.state_["last_bias"]))
