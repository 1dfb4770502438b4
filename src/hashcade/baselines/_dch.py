"""Deep Cauchy Hashing on embeddings, "DCH" in the paper's tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hashcade.baselines._base import Baseline, Floats, State
from hashcade.baselines._bits import bit_shape, code_scores
from hashcade.baselines._cauchy import cauchy_cross_entropy, cauchy_quantization
from hashcade.codes._check import checked_count, checked_penalty, checked_seed
from hashcade.codes._shape import CodeShape
from hashcade.learn._sampler import ClassSampler
from hashcade.learn._schedules import rate_factor


class DCH(Baseline):
    """Bits that are learned from labels with the losses of Deep Cauchy Hashing (CVPR 2018).

    A network with one hidden layer and tanh gives continuous codes; their signs are the code of an
    item, and the code is its bucket. It is trained by Adam, on batches of ``classes_per_batch`` ×
    ``items_per_class`` items, on the sum of :func:`cauchy_cross_entropy` and ``quantization`` times
    :func:`cauchy_quantization`. The DCH paper trains a whole AlexNet; here it stands on the same
    embeddings as all other methods, with the same two layers to learn with as a ``Hasher`` has.

    With ``sparsity`` above 1 an item lies in the buckets of the codes with the largest inner
    products with its continuous code: those that are reached by flipping its least certain bits.
    The paper compares DCH at ``sparsity=1`` alone.

    Parameters
    ----------
    n_bits
        There are ``2 ** n_bits`` buckets. The paper has ``2 ** n_bits = width · depth``.
    sparsity
        Buckets per item.
    gamma
        Scale γ of the Cauchy distribution, in bits: the Hamming distance at which two items are as
        likely similar as not. None: ``n_bits``. The smaller it is, the more classes crowd into few
        codes: on embeddings of Cifar-100 (a tenth of the training set held out, 8 bits) γ of 4
        and 8 gave speed-ups of 71 and 98 at about the same precision.
    quantization
        λ, weight of the quantisation loss.
    hidden_size
        Size of the hidden layer.
    steps
        Batches. None: ten epochs, at least 1000.
    rate
        Peak learning rate; it rises for a tenth of the steps and falls to zero.
    classes_per_batch, items_per_class
        Composition of a batch.
    random_state
        Seed.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.repeat([0, 1, 2], 40)
    >>> X = np.eye(3)[y] + 0.1 * np.random.default_rng(0).normal(size=(120, 3))
    >>> dch = DCH(n_bits=3, steps=100).fit(X, y)
    >>> len(set(dch.transform(np.eye(3)).ravel().tolist()))  # a bucket for each
    3
    """

    _needs_labels = True

    def __init__(
        self,
        *,
        n_bits: int = 6,
        sparsity: int = 1,
        gamma: float | None = None,
        quantization: float = 0.1,
        hidden_size: int = 512,
        steps: int | None = None,
        rate: float = 3e-3,
        classes_per_batch: int = 64,
        items_per_class: int = 4,
        random_state: int = 0,
    ) -> None:
        self.n_bits = n_bits
        self.sparsity = sparsity
        self.gamma = gamma
        self.quantization = quantization
        self.hidden_size = hidden_size
        self.steps = steps
        self.rate = rate
        self.classes_per_batch = classes_per_batch
        self.items_per_class = items_per_class
        self.random_state = random_state

    def _learn(
        self, items: Floats, labels: npt.NDArray[np.int64] | None
    ) -> tuple[CodeShape, State]:
        assert labels is not None
        # ---- settings
        shape = bit_shape(self.n_bits, self.sparsity)
        seed = checked_seed(self.random_state)
        gamma = float(self.n_bits) if self.gamma is None else checked_penalty("gamma", self.gamma)
        if gamma == 0.0:
            raise ValueError(f"gamma={self.gamma!r} must be > 0")
        weight = checked_penalty("quantization", self.quantization)
        rate = checked_penalty("rate", self.rate)
        sampler = ClassSampler(
            labels,
            classes_per_batch=checked_count("classes_per_batch", self.classes_per_batch),
            items_per_class=checked_count("items_per_class", self.items_per_class),
            random_state=seed,
        )
        steps = max(1000, -(-10 * len(items) // sampler.batch_size))
        if self.steps is not None:
            steps = checked_count("steps", self.steps)

        # ---- the network, on embeddings brought to unit spread
        centre = items.mean(axis=0, dtype=np.float64)
        spread = max(float(items.std(axis=0, dtype=np.float64).mean()), 1e-12)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            hidden = nn.Linear(items.shape[1], checked_count("hidden_size", self.hidden_size))
            last = nn.Linear(hidden.out_features, shape.width.bit_length() - 1)
        inputs = torch.from_numpy(((items - centre) / spread).astype(np.float32))
        targets = torch.from_numpy(labels)

        # ---- training
        parameters = [*hidden.parameters(), *last.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=rate)
        batches = np.empty((0, 0), np.int64)
        for step in range(steps):
            at = step % sampler.batches_per_epoch
            if at == 0:
                batches = sampler.epoch(step // sampler.batches_per_epoch)
            for group in optimizer.param_groups:
                group["lr"] = rate * rate_factor("one-cycle", step, steps)
            chosen = torch.from_numpy(batches[at])
            codes = torch.tanh(last(torch.relu(hidden(inputs[chosen]))))
            loss = cauchy_cross_entropy(codes, targets[chosen], gamma=gamma)
            loss = loss + weight * cauchy_quantization(codes, gamma=gamma)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        # ---- the same without torch: centre and spread go into the first layer
        weights = hidden.weight.detach().double().numpy() / spread  # (hidden, size)
        bias = hidden.bias.detach().double().numpy() - weights @ centre
        return shape, {
            "hidden_weight": _plain(weights.T),
            "hidden_bias": _plain(bias),
            "last_weight": _plain(_array(last.weight).T),
            "last_bias": _plain(_array(last.bias)),
        }

    def _score(self, items: Floats, state: State) -> Floats:
        hidden = items @ state["hidden_weight"] + state["hidden_bias"]
        np.maximum(hidden, 0.0, out=hidden)
        return code_scores(np.tanh(hidden @ state["last_weight"] + state["last_bias"]))


def _array(tensor: Tensor) -> npt.NDArray[np.float32]:
    return np.asarray(tensor.detach().numpy())


def _plain(values: npt.NDArray[np.floating]) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float32)
