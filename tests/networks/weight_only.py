"""Makes weight-only quantised versions of float networks, as exporters in the field write them.

    python -m tests.networks.weight_only in.onnx out.onnx --granularity axis --storage uint8 --asymmetric --form qdq

Every constant weight of a MatMul, Gemm or Conv (and, with `--embeddings`, every Gather table) becomes an integer initializer
behind the chosen form of dequantisation. Activations stay float.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]

STORAGE = {
    "int8": (TensorProto.INT8, -128, 127),
    "uint8": (TensorProto.UINT8, 0, 255),
    "int4": (TensorProto.INT4, -8, 7),
    "uint4": (TensorProto.UINT4, 0, 15),
}
GRANULARITIES = ("tensor", "axis", "block")
FORMS = ("qdq", "arith", "deeploy")


@dataclass(frozen=True)
class Scheme:
    """How weights are quantised and how the dequantisation is written.

    `form`: "qdq" DequantizeLinear; "arith" Cast -> Sub -> Mul; "deeploy" a `Dequant` node (8 bits, per tensor).
    """

    granularity: str = "axis"
    storage: str = "int8"
    asymmetric: bool = False
    block_size: int = 16
    form: str = "qdq"
    embeddings: bool = False

    def __str__(self) -> str:
        block = self.block_size if self.granularity == "block" else ""
        sign = "asym" if self.asymmetric else "sym"
        return f"{self.storage}-{self.granularity}{block}-{sign}-{self.form}"


@dataclass
class _Quantised:
    q: Array
    scale: Array
    zero_point: Array
    axis: int | None
    block_size: int | None


def quantize(weight: Array, scheme: Scheme, axis: int, k_axis: int | None) -> _Quantised:
    """Round-to-nearest quantisation of `weight`; per axis along `axis`, per block along `k_axis` (None: per axis instead)."""
    _, low, high = STORAGE[scheme.storage]
    blocked = scheme.granularity == "block" and k_axis is not None
    if scheme.granularity == "tensor":
        groups, where = weight.reshape(1, -1), None
    elif blocked:
        assert k_axis is not None
        blocks = -(-weight.shape[k_axis] // scheme.block_size)
        pad = [(0, 0)] * weight.ndim
        pad[k_axis] = (0, blocks * scheme.block_size - weight.shape[k_axis])
        padded = np.moveaxis(np.pad(weight, pad, mode="edge"), k_axis, -1)
        groups = padded.reshape(-1, scheme.block_size)
        where = k_axis
    else:
        groups, where = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1), axis
    least, most = groups.min(axis=1), groups.max(axis=1)
    if scheme.asymmetric:
        least, most = np.minimum(least, 0), np.maximum(most, 0)
        scale = np.maximum((most - least) / (high - low), 1e-8).astype(np.float32)
        zero = np.clip(np.rint(low - least / scale), low, high)
    else:
        centre = (low + high + 1) // 2
        scale = np.maximum(np.abs(groups).max(axis=1) / (high - centre), 1e-8).astype(np.float32)
        zero = np.full(scale.shape, centre)
    if scheme.granularity == "tensor":
        full_scale, full_zero = scale.reshape(()), zero.reshape(())
        scale, zero = full_scale, full_zero
    elif blocked:
        assert k_axis is not None
        other = [n for d, n in enumerate(weight.shape) if d != k_axis]
        scale = np.moveaxis(scale.reshape(*other, -1), -1, k_axis)
        zero = np.moveaxis(zero.reshape(*other, -1), -1, k_axis)
        index = np.arange(weight.shape[k_axis]) // scheme.block_size
        full_scale, full_zero = np.take(scale, index, k_axis), np.take(zero, index, k_axis)
    else:
        view = [-1 if d == axis else 1 for d in range(weight.ndim)]
        full_scale, full_zero = scale.reshape(view), zero.reshape(view)
    q = np.clip(np.rint(weight / full_scale) + full_zero, low, high).astype(np.int64)
    return _Quantised(
        q, scale, zero.astype(np.int64), where, scheme.block_size if blocked else None
    )


def quantize_weights(model: onnx.ModelProto, scheme: Scheme) -> tuple[onnx.ModelProto, int]:
    """A weight-only quantised copy of `model`, and how many readers (nodes) got a quantised weight."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    if scheme.form == "qdq" or "4" in scheme.storage:
        _raise_opset(model, 21)
    graph = model.graph
    constants = _constants(graph)
    nodes: list[onnx.NodeProto] = []
    made: dict[tuple[str, int, int | None], str] = {}
    readers = 0
    for node in list(graph.node):
        place = _weight_of(node, constants, scheme)
        if place is not None:
            index, axis, k_axis = place
            name = node.input[index]
            key = (name, axis, k_axis)
            if key not in made:
                quantised = quantize(constants[name], scheme, axis, k_axis)
                made[key] = _write(graph, nodes, f"{name}_q{len(made)}", quantised, scheme)
            node.input[index] = made[key]
            readers += 1
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    _drop_unused(graph)
    model.ir_version = max(model.ir_version, 10)
    return model, readers


def _constants(graph: onnx.GraphProto) -> dict[str, Array]:
    found = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        elif node.op_type == "Identity" and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def _weight_of(
    node: onnx.NodeProto, constants: dict[str, Array], scheme: Scheme
) -> tuple[int, int, int | None] | None:
    """(input index, per-channel axis, K axis or None when it can't be blocked) of the node's constant weight."""
    index = 0 if node.op_type == "Gather" else 1
    if len(node.input) <= index or node.input[index] not in constants:
        return None
    weight = constants[node.input[index]]
    if weight.dtype != np.float32 or weight.ndim < 2:
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "MatMul" and weight.ndim == 2:
        return 1, 1, 0
    if node.op_type == "Gemm":
        rows, columns = weight.ndim - 2, weight.ndim - 1
        return (1, rows, columns) if attributes.get("transB", 0) else (1, columns, rows)
    if node.op_type == "Conv":
        return 1, 0, None
    if node.op_type == "Gather" and scheme.embeddings and attributes.get("axis", 0) == 0:
        return 0, 0, None
    return None


def _write(
    graph: onnx.GraphProto,
    nodes: list[onnx.NodeProto],
    name: str,
    w: _Quantised,
    scheme: Scheme,
) -> str:
    """Add the integer initializer and its dequantisation; returns the float value's name."""
    type_, _, _ = STORAGE[scheme.storage]

    def integers(suffix: str, values: Array) -> str:
        tensor = helper.make_tensor(
            f"{name}_{suffix}", type_, values.shape, values.reshape(-1).tolist()
        )
        graph.initializer.append(tensor)
        return tensor.name

    def floats(suffix: str, values: Array) -> str:
        graph.initializer.append(
            numpy_helper.from_array(np.asarray(values, np.float32), f"{name}_{suffix}")
        )
        return f"{name}_{suffix}"

    out = f"{name}_float"
    if scheme.form == "qdq":
        attributes = {} if w.axis is None else {"axis": w.axis}
        if w.block_size is not None:
            attributes["block_size"] = w.block_size
        inputs = [integers("int", w.q), floats("scale", w.scale), integers("zero", w.zero_point)]
        nodes.append(
            helper.make_node("DequantizeLinear", inputs, [out], name=f"{name}_dq", **attributes)
        )
        return out
    if w.block_size is not None:
        raise ValueError(f"the form {scheme.form} has no blocks")
    if scheme.form == "deeploy":
        if w.axis is not None or type_ not in (TensorProto.INT8, TensorProto.UINT8):
            raise ValueError("Dequant nodes are 8-bit and per tensor")
        nodes.append(
            helper.make_node(
                "Dequant",
                [integers("int", w.q)],
                [out],
                name=f"{name}_dequant",
                scale=float(w.scale),
                zero_point=float(w.zero_point),
                bit_width=8,
                signed=int(type_ == TensorProto.INT8),
            )
        )
        return out
    view = [-1 if d == w.axis else 1 for d in range(w.q.ndim)] if w.axis is not None else []
    value = f"{name}_cast"
    nodes.append(
        helper.make_node(
            "Cast", [integers("int", w.q)], [value], name=f"{name}_cast_node", to=TensorProto.FLOAT
        )
    )
    if np.any(w.zero_point):
        zero = floats("zero", w.zero_point.reshape(view))
        nodes.append(
            helper.make_node("Sub", [value, zero], [f"{name}_sub"], name=f"{name}_sub_node")
        )
        value = f"{name}_sub"
    scale = floats("scale", w.scale.reshape(view))
    nodes.append(helper.make_node("Mul", [scale, value], [out], name=f"{name}_mul_node"))
    return out


def _raise_opset(model: onnx.ModelProto, version: int) -> None:
    """Move to a newer opset: `axes` attributes become inputs. Softmax here is over the last axis, where 12 and 13 agree."""
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            if entry.version >= version:
                return
            entry.version = version
    for node in model.graph.node:
        if node.op_type not in ("Squeeze", "Unsqueeze") and not node.op_type.startswith("Reduce"):
            continue
        for attribute in list(node.attribute):
            if attribute.name == "axes":
                name = f"{node.output[0]}_axes"
                model.graph.initializer.append(
                    numpy_helper.from_array(np.array(attribute.ints, np.int64), name)
                )
                node.attribute.remove(attribute)
                node.input.append(name)


def _drop_unused(graph: onnx.GraphProto) -> None:
    while True:
        used = {i for n in graph.node for i in n.input} | {o.name for o in graph.output}
        dead = [n for n in graph.node if not any(o in used for o in n.output)]
        for node in dead:
            graph.node.remove(node)
        if not dead:
            break
    for tensor in list(graph.initializer):
        if tensor.name not in used:
            graph.initializer.remove(tensor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--granularity", choices=GRANULARITIES, default="axis")
    parser.add_argument("--storage", choices=tuple(STORAGE), default="int8")
    parser.add_argument("--asymmetric", action="store_true")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--form", choices=FORMS, default="qdq")
    parser.add_argument("--embeddings", action="store_true")
    args = parser.parse_args()
    scheme = Scheme(
        args.granularity,
        args.storage,
        args.asymmetric,
        args.block_size,
        args.form,
        args.embeddings,
    )
    model, readers = quantize_weights(onnx.load(args.source), scheme)
    onnx.save(model, args.target)
    print(f"{args.target}: {readers} weights read as {scheme}")


if __name__ == "__main__":
    main()
