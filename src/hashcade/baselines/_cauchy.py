"""The losses of Deep Cauchy Hashing (Cao, Long, Liu, Wang; CVPR 2018).

The distance of two codes is d(h, g) = n_bits / 2 · (1 − cos(h, g)), which for codes of ±1 is their
Hamming distance. The probability that they are similar is that of a Cauchy distribution,
p = γ / (γ + d): unlike a sigmoid of the inner product it is large within a small Hamming ball only.
"""

from __future__ import annotations

import torch
from torch import Tensor

_TINY = 1e-6  # under a logarithm: equal codes of different classes have distance 0


def cauchy_cross_entropy(codes: Tensor, labels: Tensor, *, gamma: float) -> Tensor:
    """Weighted cross-entropy over all pairs of a batch.

    Parameters
    ----------
    codes : float[n, n_bits]
        Continuous codes, tanh of the last layer.
    labels : int[n]
        Equal labels are similar.
    gamma
        Scale γ of the Cauchy distribution, in bits.

    Returns
    -------
    Tensor
        Mean over the pairs i < j of ``w · (s · log(d / γ) + log(1 + γ / d))``; similar and
        dissimilar pairs have half of the weight each, ``w = |S| / |S_s|`` up to a factor.
    """
    n_bits = codes.shape[1]
    unit = torch.nn.functional.normalize(codes, dim=1)
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
    """Mean of ``log(1 + d(|h|, 1) / γ)``: how far codes are from ±1.

    Parameters
    ----------
    codes : float[n, n_bits]
        Continuous codes, tanh of the last layer.
    gamma
        Scale γ of the Cauchy distribution, in bits.
    """
    n_bits = codes.shape[1]
    size = codes.abs()
    cosine = size.sum(dim=1) / (size.norm(dim=1).clamp(min=1e-12) * n_bits**0.5)
    return torch.log1p(0.5 * n_bits * (1.0 - cosine).clamp(min=0.0) / gamma).mean()
