"""Export of a trained hasher as one ONNX file, for use without Python or torch.

Written layer by layer: torch's exporter takes many seconds, needs another package, and changes with
every version; a dozen kinds of layers are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from hashcade._extras import require_extra
from hashcade._io import replace_file
from hashcade.codes import CodeShape
from hashcade.errors import ConfigError
from hashcade.learn.assignment import Ints
from hashcade.learn.config import ResolvedConfig
from hashcade.learn.fast import FastNet, Residual
from hashcade.learn.model import HashModel, HiddenAndInputs
from hashcade.learn.networks import MLP, NIN, StrideNet

_OPSET = 20  # the first with Gelu
_IR_VERSION = 9  # as old as this opset, so that older runtimes can read it


class _Graph:
    """Nodes and constants so far; results are passed to other nodes by name."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def add(self, kind: str, *inputs: Any, n_outputs: int = 1, **attributes: Any) -> str:
        """Add a node; inputs are names or constants. Returns the name of the last result."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        outputs = [f"t{len(self.nodes)}_{number}" for number in range(n_outputs)]
        self.nodes.append(self.onnx.helper.make_node(kind, names, outputs, **attributes))
        return outputs[-1]


def export_onnx(path: Path, model: HashModel, config: ResolvedConfig) -> None:
    """Write the file; see ``Hasher.to_onnx``."""
    onnx: Any = require_extra("onnx", "onnx")
    graph, shape, types = _Graph(onnx), config.shape, onnx.TensorProto
    outputs = {
        "bucket_ids": (types.INT64, [shape.sparsity]),
        "scores": (types.FLOAT, [shape.depth, shape.width]),
        "vectors": (types.FLOAT, [config.vector_size]),
    }
    for name, result in zip(outputs, _outputs(graph, model, config), strict=True):
        graph.nodes.append(onnx.helper.make_node("Identity", [result], [name]))
    value = onnx.helper.make_tensor_value_info
    output_infos = [value(name, kind, ["n", *size]) for name, (kind, size) in outputs.items()]
    item_type = types.UINT8 if config.takes_images else types.FLOAT
    input_infos = [value("items", item_type, ["n", *config.item_shape])]
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "hashcade", input_infos, output_infos, graph.constants),
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="hashcade",
    )
    onnx.checker.check_model(proto, full_check=True)
    replace_file(path, proto.SerializeToString())


def _outputs(graph: _Graph, model: HashModel, config: ResolvedConfig) -> tuple[str, str, str]:
    """Buckets, scores and vectors."""
    prepare: Any = model.prepare
    if config.takes_images:
        pixels = graph.add("Cast", "items", to=int(graph.onnx.TensorProto.FLOAT))
        channels_first = graph.add("Transpose", pixels, perm=[0, 3, 1, 2])
        prepared = graph.add("Sub", graph.add("Div", channels_first, np.float32(255)), prepare.mean)
    else:
        prepared = graph.add("Div", graph.add("Sub", "items", prepare.mean), prepare.scale)
    hidden = _layers(graph, model.head[:-1], _layers(graph, model.hash_base, prepared))
    raw = _layers(graph, model.head[-1], hidden)
    sides = np.array([-1, config.shape.depth, config.shape.width])
    scores = graph.add("Reshape", raw, sides)  # (n, depth, width)
    if config.unit_length and not config.uses_prototypes:
        scores = _unit_length(graph, scores, axis=2)
    vectors = points = "items"
    if model.vector_head is not None:
        points = _unit_length(graph, _layers(graph, model.vector_head, hidden), axis=1)
    if config.rerank == "learned":
        vectors = points
    elif model.embedding is not None:
        vectors = _layers(graph, model.embedding, _layers(graph, model.base, prepared))
        if config.unit_length:
            vectors = _unit_length(graph, vectors, axis=1)
    if config.uses_prototypes:
        return _buckets_of_prototypes(graph, model, points, vectors), scores, vectors
    if config.uses_codebook:
        book = np.unique(model.codebook.numpy(), axis=0)
        return _buckets_of_book(graph, book, config.shape, scores), scores, vectors
    return _buckets_of_path(graph, config.shape, scores), scores, vectors


def _buckets_of_book(graph: _Graph, book: Ints, shape: CodeShape, scores: str) -> str:
    """The buckets of the best code, by the rule of ``CodebookAssignment``."""
    levels = np.arange(shape.depth) * shape.width
    slot_indices = (shape.paths(book.ravel()) + levels).T  # (depth, n_codes · sparsity)
    flat = graph.add("Reshape", scores, np.array([-1, shape.depth * shape.width]))
    exact = graph.add("Cast", flat, to=int(graph.onnx.TensorProto.DOUBLE))
    level_scores = graph.add("Gather", exact, slot_indices, axis=1)
    sums = graph.add("ReduceSum", level_scores, np.array([1]), keepdims=0)
    code_scores = graph.add("Reshape", sums, np.array([-1, *book.shape]))
    fit = graph.add("ReduceMean", code_scores, np.array([2]), keepdims=0)
    best = graph.add("ArgMax", fit, axis=1, keepdims=0)  # (n,)
    buckets = graph.add("Gather", book, best, axis=0)  # (n, sparsity)
    if shape.sparsity == 1:
        return buckets
    row = graph.add("Unsqueeze", best, np.array([1]))  # (n, 1)
    sums = graph.add("GatherND", code_scores, row, batch_dims=1)  # (n, sparsity)
    order = graph.add("TopK", sums, np.array([shape.sparsity]), n_outputs=2, axis=1)
    return graph.add("GatherElements", buckets, order, axis=1)


def _buckets_of_prototypes(graph: _Graph, model: HashModel, points: str, vectors: str) -> str:
    """The buckets of the nearest of all prototypes; the library compares only a shortlist."""
    has_parts = model.config.has_parts
    nearness = _nearness(graph, vectors if has_parts else points, model.prototypes.detach())
    if has_parts:  # first the class by points, then one of its parts by vectors
        class_of_part = model.class_of_part
        first = class_of_part.diff(prepend=class_of_part.new_tensor([-1])) > 0
        class_scores = _nearness(graph, points, model.class_prototypes[first])
        best_class = graph.add("ArgMax", class_scores, axis=1, keepdims=1)  # (n, 1)
        is_part = graph.add("Equal", best_class, class_of_part[None])
        nearness = graph.add("Where", is_part, nearness, np.float32(-np.inf))
    best = graph.add("ArgMax", nearness, axis=1, keepdims=0)  # (n,)
    return graph.add("Gather", model.codebook, best, axis=0)  # (n, sparsity)


def _nearness(graph: _Graph, points: str, prototypes: Tensor) -> str:
    """Minus half the squared distances, up to a constant per point."""
    products = graph.add("MatMul", points, prototypes.T)
    return graph.add("Sub", products, prototypes.square().sum(dim=1) / 2)


def _buckets_of_path(graph: _Graph, shape: CodeShape, scores: str) -> str:
    """From slots to ids. Of equal scores ONNX takes the first, as the library does."""
    width, parent = graph.constant(np.int64(shape.width)), graph.constant(np.int64(0))
    for level in range(shape.depth):
        level_scores = graph.add("Gather", scores, np.int64(level), axis=1)  # (n, width)
        count = np.array([shape.sparsity if level == shape.depth - 1 else 1])
        slots = graph.add("TopK", level_scores, count, n_outputs=2, axis=1)  # (n, count)
        parent = graph.add("Add", graph.add("Mul", parent, width), slots)
    return parent


def _unit_length(graph: _Graph, values: str, *, axis: int) -> str:
    norm = graph.add("ReduceL2", values, np.array([axis]), keepdims=1)
    return graph.add("Div", values, graph.add("Max", norm, np.float32(1e-12)))


# -- layers ----------------------------------------------------------------------------------

_Writer = Callable[[_Graph, Any, str], str]


def _layers(graph: _Graph, module: nn.Module, values: str) -> str:
    """Write a layer, or a sequence. Types are compared exactly: a subclass may differ."""
    inner: Any = module.layers if type(module) in (NIN, StrideNet, MLP) else module
    if type(inner) is nn.Sequential:
        for layer in inner:
            values = _layers(graph, layer, values)
        return values
    if type(inner) not in _WRITERS:
        raise _unsupported(inner, "")
    return _WRITERS[type(inner)](graph, inner, values)


def _unsupported(layer: nn.Module, detail: str) -> ConfigError:
    message = f"{type(layer).__name__}{detail} cannot be written as ONNX"
    return ConfigError(message, hint="export a network of your own with torch.onnx")


def _expect(layer: nn.Module, **expected: tuple[object, ...]) -> None:
    """Raise ``ConfigError`` for a layer with a setting that is not supported."""
    for name, values in expected.items():
        if (value := getattr(layer, name)) not in values:
            raise _unsupported(layer, f" with {name}={value!r}")


def _weights(layer: Any) -> list[Tensor]:
    return [layer.weight] if layer.bias is None else [layer.weight, layer.bias]


def _conv(graph: _Graph, layer: Any, values: str) -> str:
    _expect(layer, padding_mode=("zeros",))
    if isinstance(layer.padding, str):
        raise _unsupported(layer, f" with padding={layer.padding!r}")
    return graph.add(
        "Conv", values, *_weights(layer), strides=list(layer.stride),
        pads=[*layer.padding, *layer.padding], dilations=list(layer.dilation), group=layer.groups,
    )  # fmt: skip


def _norm(graph: _Graph, layer: Any, values: str) -> str:
    _expect(layer, affine=(True,), track_running_stats=(True,))
    numbers = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
    return graph.add("BatchNormalization", values, *numbers, epsilon=layer.eps)


def _pool(kind: str, **expected: tuple[object, ...]) -> _Writer:
    def write(graph: _Graph, layer: Any, values: str) -> str:
        _expect(layer, **expected)
        sides = (layer.kernel_size, layer.stride, layer.padding)
        side, stride, pad = ([v, v] if isinstance(v, int) else list(v) for v in sides)
        settings: dict[str, Any] = {"pads": [*pad, *pad], "ceil_mode": int(layer.ceil_mode)}
        return graph.add(kind, values, kernel_shape=side, strides=stride, **settings)

    return write


def _plain(kind: str, **expected: tuple[object, ...]) -> _Writer:
    def write(graph: _Graph, layer: Any, values: str) -> str:
        _expect(layer, **expected)
        return graph.add(kind, values)

    return write


def _hidden_and_inputs(graph: _Graph, layer: Any, values: str) -> str:
    hidden = graph.add("Relu", _layers(graph, layer.layer, values))
    return graph.add("Concat", hidden, values, axis=1)


def _fast(graph: _Graph, layer: Any, values: str) -> str:
    if not layer.mirrored:
        return _layers(graph, layer.layers, values)
    # Images and their mirror images in one pass, so that the weights are stored once.
    reverse = (np.array([-1]), np.array([np.iinfo(np.int64).min]), np.array([3]), np.array([-1]))
    images = graph.add("Concat", values, graph.add("Slice", values, *reverse), axis=0)
    features = graph.add("Reshape", _layers(graph, layer.layers, images), np.array([2, -1, 256]))
    return graph.add("ReduceMean", features, np.array([0]), keepdims=0)


def _residual(graph: _Graph, layer: Any, values: str) -> str:
    return graph.add("Add", values, _layers(graph, layer.layers, values))


_WRITERS: dict[type[nn.Module], _Writer] = {
    HiddenAndInputs: _hidden_and_inputs,
    FastNet: _fast,
    Residual: _residual,
    nn.Identity: lambda graph, layer, x: x,
    nn.Dropout: lambda graph, layer, x: x,
    nn.Linear: lambda graph, layer, x: graph.add("Gemm", x, *_weights(layer), transB=1),
    nn.Conv2d: _conv,
    nn.BatchNorm1d: _norm,
    nn.BatchNorm2d: _norm,
    nn.ReLU: _plain("Relu"),
    nn.GELU: lambda graph, layer, x: graph.add("Gelu", x, approximate=layer.approximate),
    nn.LeakyReLU: lambda graph, layer, x: graph.add("LeakyRelu", x, alpha=layer.negative_slope),
    nn.MaxPool2d: _pool("MaxPool", dilation=(1,), return_indices=(False,)),
    nn.AvgPool2d: _pool("AveragePool", divisor_override=(None,), padding=(0,)),
    nn.AdaptiveAvgPool2d: _plain("GlobalAveragePool", output_size=(1, (1, 1))),
    nn.AdaptiveMaxPool2d: _plain("GlobalMaxPool", output_size=(1, (1, 1))),
    nn.Flatten: _plain("Flatten", start_dim=(1,), end_dim=(-1,)),
}
