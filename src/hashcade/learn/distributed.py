"""Distributed training with torchrun: the same model as with one process.

Each rank passes its share of every batch through the network. The outputs are gathered, so every
rank solves the same codes and computes the loss of the whole batch; the gradients are summed.
(Averaging gradients of the losses of shares would be another method: fewer classes per solve, fewer
negatives.) Decisions by time or files are made by the first rank, the only one that writes files.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from hashcade.errors import ConfigError, HashcadeError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hashcade.learn.files import Array

T = TypeVar("T")

_TIMEOUT = timedelta(hours=12)  # the first rank may take long to solve or validate


def is_first_rank() -> bool:
    """Whether this process writes files and shows progress: rank 0 of torchrun, or the only one."""
    return _world_size() == 1 or int(os.environ["RANK"]) == 0


def _world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def local_gpu() -> str | None:
    """The number of the GPU for this process, if torchrun started it."""
    return os.environ.get("LOCAL_RANK") if _world_size() > 1 else None


def _leave() -> None:
    """End the process group, if there is one."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


class Ranks:
    """The processes that train together; without torchrun only this one."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.size, self._device = rank, size, device

    @classmethod
    def join(cls, device: torch.device) -> Ranks:
        """Join the process group of torchrun, with gloo or, on GPUs, nccl."""
        if _world_size() == 1:
            return cls()
        import torch.distributed as dist

        if not dist.is_initialized():
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=_TIMEOUT)
            # Threads of a group that outlives the interpreter can abort the process.
            atexit.register(_leave)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    @contextmanager
    def together(self) -> Iterator[None]:
        """If this rank fails, end the process group: the others would wait for it."""
        try:
            yield
        except BaseException:
            if self.size > 1:
                _leave()
            raise

    # -- a step ----------------------------------------------------------------------------------

    def share(self, n: int) -> slice:
        """The rows of a batch of ``n`` that this rank passes through the network."""
        n_rows = -(-n // self.size)
        return slice(min(n, self.rank * n_rows), min(n, (self.rank + 1) * n_rows))

    def gather(self, local: Tensor, n: int) -> Tensor:
        """The outputs of all ranks for a batch of ``n``, with gradients for the local rows."""
        if self.size == 1:
            return local
        import torch
        import torch.distributed as dist

        share, n_rows = self.share(n), -(-n // self.size)
        padded = local.new_zeros(n_rows, *local.shape[1:])  # all ranks must send the same size
        padded[: len(local)] = local.detach()
        gathered = local.new_empty(self.size * n_rows, *local.shape[1:])
        with self._rank_errors():
            dist.all_gather(list(torch.split(gathered, n_rows)), padded)
        return torch.cat([gathered[: share.start], local, gathered[share.stop : n]])

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sum the gradients of the ranks' shares."""
        if self.size == 1:
            return
        import torch
        import torch.distributed as dist

        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            with self._rank_errors():
                dist.all_reduce(flat)
            parts = torch.split(flat, [gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.reshape(gradient.shape))

    # -- agreement -------------------------------------------------------------------------------

    def any(self, condition: bool) -> bool:
        """Whether a condition holds on any rank."""
        if self.size == 1:
            return condition
        import torch
        import torch.distributed as dist

        number = torch.tensor(float(condition), device=self._device)
        with self._rank_errors():
            dist.all_reduce(number)
        return bool(number > 0)

    def first(self, function: Callable[[], T]) -> T:
        """The result of a function on the first rank, broadcast to all; it must fit into JSON."""
        if self.size == 1:
            return function()
        text = json.dumps(function()).encode() if self.rank == 0 else b""
        return json.loads(self._broadcast_bytes(text))  # type: ignore[no-any-return]

    def first_arrays(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """The arrays of the first rank, broadcast to all."""
        if self.size == 1:
            return arrays
        import safetensors.numpy

        blob = safetensors.numpy.save(arrays) if self.rank == 0 else b""
        return safetensors.numpy.load(self._broadcast_bytes(blob))

    def equalize(self, model: nn.Module) -> None:
        """Broadcast the weights of the first rank: machines may round differently."""
        if self.size == 1:
            return
        import torch.distributed as dist

        with self._rank_errors():
            for weights in model.state_dict().values():
                dist.broadcast(weights, 0)

    def check_equal(self, digest: str, what: str) -> None:
        """Raise ``ConfigError`` if ranks have different digests."""
        if self.any(self.first(lambda: digest) != digest):
            message = f"{what} must be the same on all {self.size} ranks"
            raise ConfigError(message, hint="give every rank the same data and settings")

    def check_layers(self, model: nn.Module) -> None:
        """Raise ``ConfigError`` for layers whose training needs the whole batch."""
        if self.size == 1:
            return
        from torch.nn.modules.batchnorm import _BatchNorm
        from torch.nn.modules.dropout import _DropoutNd

        for module in model.modules():
            draws = isinstance(module, _DropoutNd) and module.p > 0
            if module.training and (draws or isinstance(module, _BatchNorm)):
                name = type(module).__name__
                message = f"the network has {name}, which {self.size} ranks cannot train as one"
                raise ConfigError(message, hint="train it in one process, or freeze it")

    def _broadcast_bytes(self, content: bytes) -> bytes:
        import torch
        import torch.distributed as dist

        length = torch.tensor(len(content), device=self._device)
        with self._rank_errors():
            dist.broadcast(length, 0)
            values = torch.empty(int(length), dtype=torch.uint8)
            if self.rank == 0:
                values.copy_(torch.from_numpy(np.frombuffer(content, np.uint8).copy()))
            values = values.to(self._device)
            dist.broadcast(values, 0)
        return values.cpu().numpy().tobytes()

    @contextmanager
    def _rank_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            message = f"rank {self.rank} lost contact with another rank, which ended"
            raise HashcadeError(message, hint="its own message says why") from error
