"""A trained hasher as one ONNX file, for use without Python or torch.

The graph is written layer by layer. torch's own exporter could do it too, but takes many seconds,
needs a second package, and changes with every version; a dozen kinds of layers suffice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from hashcade._extras import require_extra
from hashcade._io import replace_file
from hashcade.errors import ConfigError
from hashcade.learn.config import ResolvedConfig
from hashcade.learn.model import HashModel
from hashcade.learn.networks import MLP, NIN, StrideNet

_OPSET = 20  # the first with Gelu
_IR_VERSION = 9  # of the same time, so that older runtimes read it


class _Graph:
    """Nodes and constants so far. Methods return the name of their result."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def add(self, kind: str, *inputs: str, n_outputs: int = 1, **attributes: Any) -> list[str]:
        outputs = [f"t{len(self.nodes)}_{number}" for number in range(n_outputs)]
        node = self.onnx.helper.make_node(kind, list(inputs), outputs, **attributes)
        self.nodes.append(node)
        return outputs

    def one(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.add(kind, *inputs, **attributes)[0]


def export_onnx(path: Path, model: HashModel, config: ResolvedConfig) -> None:
    """Write the file; see ``Hasher.to_onnx``."""
    onnx: Any = require_extra("onnx", "onnx")
    graph = _Graph(onnx)
    outputs = _outputs(graph, model, config, _prepare(graph, model, "items"))
    types = onnx.TensorProto
    kinds = {"bucket_ids": types.INT64, "scores": types.FLOAT, "vectors": types.FLOAT}
    sizes = {
        "bucket_ids": [config.shape.sparsity],
        "scores": [config.shape.depth, config.shape.width],
        "vectors": [config.vector_size],
    }
    for name, result in outputs.items():
        graph.nodes.append(onnx.helper.make_node("Identity", [result], [name]))
    item_type = types.UINT8 if config.takes_images else types.FLOAT
    value = onnx.helper.make_tensor_value_info
    ends = [value(name, kinds[name], ["n", *sizes[name]]) for name in outputs]
    starts = [value("items", item_type, ["n", *config.item_shape])]
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "hashcade", starts, ends, graph.constants),
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="hashcade",
    )
    onnx.checker.check_model(proto, full_check=True)
    replace_file(path, proto.SerializeToString())


def _prepare(graph: _Graph, model: HashModel, items: str) -> str:
    prepare: Any = model.prepare
    if hasattr(prepare, "scale"):
        centred = graph.one("Sub", items, graph.constant(prepare.mean))
        return graph.one("Div", centred, graph.constant(prepare.scale))
    pixels = graph.one("Cast", items, to=int(graph.onnx.TensorProto.FLOAT))
    channels_first = graph.one("Transpose", pixels, perm=[0, 3, 1, 2])
    scaled = graph.one("Div", channels_first, graph.constant(np.float32(255)))
    return graph.one("Sub", scaled, graph.constant(prepare.mean))


def _outputs(
    graph: _Graph, model: HashModel, config: ResolvedConfig, prepared: str
) -> dict[str, str]:
    shape = config.shape
    raw = _layers(graph, model.head, _layers(graph, model.hash_base, prepared))
    sides = graph.constant(np.array([-1, shape.depth, shape.width]))
    scores = graph.one("Reshape", raw, sides)  # (n, depth, width)
    if config.unit_length:
        scores = _unit_length(graph, scores, axis=2)
    vectors = "items"
    if model.embedding is not None:
        vectors = _layers(graph, model.embedding, _layers(graph, model.base, prepared))
        if config.unit_length:
            vectors = _unit_length(graph, vectors, axis=1)
    if config.uses_codebook:
        buckets = _buckets_of_book(graph, model.codebook.numpy(), config, scores)
    else:
        buckets = _buckets_of_path(graph, config, scores)
    return {"bucket_ids": buckets, "scores": scores, "vectors": vectors}


def _buckets_of_book(graph: _Graph, codebook: Any, config: ResolvedConfig, scores: str) -> str:
    """The buckets of the best code, by the rule of ``assign_to_book``."""
    shape, book = config.shape, np.unique(codebook, axis=0)
    n_codes, sparsity = book.shape
    levels = np.arange(shape.depth) * shape.width
    places = (shape.paths(book.ravel()) + levels).T  # (depth, n_codes · sparsity)
    flat = graph.one("Reshape", scores, graph.constant(np.array([-1, shape.depth * shape.width])))
    exact = graph.one("Cast", flat, to=int(graph.onnx.TensorProto.DOUBLE))
    of_levels = graph.one("Gather", exact, graph.constant(places), axis=1)
    sums = graph.one("ReduceSum", of_levels, graph.constant(np.array([1])), keepdims=0)
    of_codes = graph.one("Reshape", sums, graph.constant(np.array([-1, n_codes, sparsity])))
    fit = graph.one("ReduceMean", of_codes, graph.constant(np.array([2])), keepdims=0)
    best = graph.one("ArgMax", fit, axis=1, keepdims=0)  # (n,)
    buckets = graph.one("Gather", graph.constant(book), best, axis=0)  # (n, sparsity)
    if sparsity == 1:
        return buckets
    row = graph.one("Unsqueeze", best, graph.constant(np.array([1])))  # (n, 1)
    sums = graph.one("GatherND", of_codes, row, batch_dims=1)  # (n, sparsity)
    _, order = graph.add("TopK", sums, graph.constant(np.array([sparsity])), n_outputs=2, axis=1)
    return graph.one("GatherElements", buckets, order, axis=1)


def _buckets_of_path(graph: _Graph, config: ResolvedConfig, scores: str) -> str:
    """Slots to ids. Of equal slots ONNX takes the first, as the library does."""
    width = graph.constant(np.int64(config.shape.width))
    parent = graph.constant(np.int64(0))
    for level in range(config.shape.depth):
        level_scores = graph.one(
            "Gather", scores, graph.constant(np.int64(level)), axis=1
        )  # (n, width)
        n_slots = config.shape.sparsity if level == config.shape.depth - 1 else 1
        count = graph.constant(np.array([n_slots]))
        _, slots = graph.add("TopK", level_scores, count, n_outputs=2, axis=1)  # (n, n_slots)
        parent = graph.one("Add", graph.one("Mul", parent, width), slots)
    return parent


def _unit_length(graph: _Graph, values: str, *, axis: int) -> str:
    axes = graph.constant(np.array([axis]))
    norm = graph.one("ReduceL2", values, axes, keepdims=1)
    return graph.one("Div", values, graph.one("Max", norm, graph.constant(np.float32(1e-12))))


# -- layers ----------------------------------------------------------------------------------

_Writer = Callable[[_Graph, Any, str], str]


def _layers(graph: _Graph, module: nn.Module, values: str) -> str:
    """A layer, or several one after the other.

    Kinds are compared exactly: a subclass may do something else.
    """
    inner: Any = module.layers if type(module) in (NIN, StrideNet, MLP) else module
    if type(inner) is nn.Sequential:
        for layer in inner:
            values = _layers(graph, layer, values)
        return values
    write = _WRITERS.get(type(inner))
    if write is None:
        raise _refusal(inner, "")
    return write(graph, inner, values)


def _refusal(layer: nn.Module, why: str) -> ConfigError:
    return ConfigError(
        f"{type(layer).__name__}{why} cannot be written as ONNX",
        hint="export a network of your own with torch.onnx",
    )


def _expect(layer: nn.Module, **expected: object) -> None:
    """Refuse a layer with a setting that would be lost."""
    for name, value in expected.items():
        if getattr(layer, name) != value:
            raise _refusal(layer, f" with {name}={getattr(layer, name)!r}")


def _weights(graph: _Graph, layer: Any) -> list[str]:
    both = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
    return [graph.constant(number) for number in both]


def _conv(graph: _Graph, layer: Any, values: str) -> str:
    _expect(layer, padding_mode="zeros")
    if isinstance(layer.padding, str):
        raise _refusal(layer, f" with padding={layer.padding!r}")
    return graph.one(
        "Conv", values, *_weights(graph, layer), strides=list(layer.stride),
        pads=[*layer.padding, *layer.padding], dilations=list(layer.dilation), group=layer.groups,
    )  # fmt: skip


def _norm(graph: _Graph, layer: Any, values: str) -> str:
    _expect(layer, affine=True, track_running_stats=True)
    numbers = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
    constants = [graph.constant(number) for number in numbers]
    return graph.one("BatchNormalization", values, *constants, epsilon=layer.eps)


def _pool(kind: str, **expected: object) -> _Writer:
    def write(graph: _Graph, layer: Any, values: str) -> str:
        _expect(layer, **expected)
        sides = (layer.kernel_size, layer.stride, layer.padding)
        side, stride, pad = ([v, v] if isinstance(v, int) else list(v) for v in sides)
        return graph.one(
            kind, values, kernel_shape=side, strides=stride, pads=[*pad, *pad],
            ceil_mode=int(layer.ceil_mode),
        )  # fmt: skip

    return write


def _global_pool(kind: str) -> _Writer:
    def write(graph: _Graph, layer: Any, values: str) -> str:
        if layer.output_size not in (1, (1, 1)):
            raise _refusal(layer, f" with output_size={layer.output_size!r}")
        return graph.one(kind, values)

    return write


def _flatten(graph: _Graph, layer: Any, values: str) -> str:
    _expect(layer, start_dim=1, end_dim=-1)
    return graph.one("Flatten", values)


_WRITERS: dict[type[nn.Module], _Writer] = {
    nn.Identity: lambda graph, layer, x: x,
    nn.Dropout: lambda graph, layer, x: x,
    nn.Linear: lambda graph, layer, x: graph.one("Gemm", x, *_weights(graph, layer), transB=1),
    nn.Conv2d: _conv,
    nn.BatchNorm1d: _norm,
    nn.BatchNorm2d: _norm,
    nn.ReLU: lambda graph, layer, x: graph.one("Relu", x),
    nn.GELU: lambda graph, layer, x: graph.one("Gelu", x, approximate=layer.approximate),
    nn.LeakyReLU: lambda graph, layer, x: graph.one("LeakyRelu", x, alpha=layer.negative_slope),
    nn.MaxPool2d: _pool("MaxPool", dilation=1, return_indices=False),
    nn.AvgPool2d: _pool("AveragePool", divisor_override=None, padding=0),
    nn.AdaptiveAvgPool2d: _global_pool("GlobalAveragePool"),
    nn.AdaptiveMaxPool2d: _global_pool("GlobalMaxPool"),
    nn.Flatten: _flatten,
}
