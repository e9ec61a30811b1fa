"""`report.json`: what became of each ONNX node, which kernel computes it from which bytes, and what memory that takes.

docs/report.md describes the fields; `report_schema.py` checks them; `report_view.py` shows them in a terminal.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
from xdsl.dialects.builtin import ModuleOp, StringAttr

from qfold import __version__
from qfold.dialects import qmm
from qfold.dialects.element_types import STORAGE_TYPES, numpy_dtype
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.ir.globals import global_weight
from qfold.ir.locations import node_names
from qfold.ir.quantized import trace_quantized
from qfold.tools.arrays import TensorSpec, main_function
from qfold.tools.manifest import Dispatch, dispatches, globals_of
from qfold.tools.memory_plan import MemoryReport, memory_report

SCHEMA, VERSION = "qfold-report", 1

Report = dict[str, Any]

REASON = "qmm.reason"
_FUSED = (qmm.DequantMatmulOp, qmm.DequantConvOp, qmm.DequantGatherOp)
_SILENT = ("tensor.empty", "arith.constant", "qmm.constant", "func.return", "linalg.fill")
"""Ops that compute nothing a node would be known by."""


@dataclass(frozen=True)
class OnnxNode:
    """One node of the model, as the report names it."""

    name: str
    op_type: str
    domain: str = ""


@dataclass(frozen=True)
class ReportInputs:
    """What a report is made from."""

    model: str
    nodes: Sequence[OnnxNode]
    dims: Mapping[str, int]
    options: Mapping[str, bool]
    target: str
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    imported: ModuleOp
    """Tensor level, as the frontend made it."""
    optimized: ModuleOp
    """Tensor level, the last one before bufferisation that still has `qmm` ops and reasons."""
    kernels: ModuleOp
    """Kernel level."""


class _IrOp(TypedDict):
    op: str
    count: int


@dataclass
class _Node:
    ops: Counter[str] = field(default_factory=Counter[str])
    fused: bool = False
    hoisted: bool = False
    reasons: list[str] = field(default_factory=list[str])
    dispatches: list[Dispatch] = field(default_factory=list[Dispatch])


def quantized_weights(module: ModuleOp) -> Iterator[tuple[WeightAttr, QuantAttr]]:
    """Each quantised constant of a tensor-level module, as often as it is dequantised."""
    for op in module.walk():
        if isinstance(op, _FUSED):
            yield op.weight, op.quant
        elif isinstance(op, qmm.DequantizeOp):
            traced = trace_quantized(op.result)
            if traced is not None and not isinstance(traced, str):
                yield traced.weight, traced.quant


def float_copies(
    quantized: Sequence[tuple[WeightAttr, QuantAttr]], constants: Sequence[WeightAttr]
) -> list[str]:
    """The sha256 of each float constant that holds the numbers of a dequantised weight, in any order or shape."""
    by_count: dict[int, list[tuple[WeightAttr, QuantAttr]]] = {}
    for weight, quant in quantized:
        count = int(np.prod(weight.shape))
        if count > 1:
            by_count.setdefault(count, []).append((weight, quant))
    copies: list[str] = []
    digests: dict[int, set[bytes]] = {}
    for constant in constants:
        count = int(np.prod(constant.shape))
        if constant.element_type in STORAGE_TYPES or count not in by_count or constant.is_elided:
            continue
        if numpy_dtype(constant.element_type).kind != "f":
            continue
        if count not in digests:
            digests[count] = {_digest(q.dequantize(w.array())) for w, q in by_count[count]}
        if _digest(constant.array().astype(np.float32)) in digests[count]:
            copies.append(constant.sha256)
    return copies


def _digest(values: np.ndarray) -> bytes:
    return hashlib.sha256(np.sort(values, axis=None).tobytes()).digest()


def run_time_dequantizations(module: ModuleOp) -> list[qmm.DequantizeOp]:
    """The dequantises of constants that a tensor-level module still does at run time: each makes a float copy in memory."""
    found: list[qmm.DequantizeOp] = []
    for op in module.walk():
        if isinstance(op, qmm.DequantizeOp) and trace_quantized(op.result) is not None:
            found.append(op)
    return found


def _gather_nodes(inputs: ReportInputs, calls: Sequence[Dispatch]) -> dict[str, _Node]:
    """What the IR says about each ONNX node, in the model's order; nodes of function bodies come after."""
    nodes: dict[str, _Node] = {n.name: _Node() for n in inputs.nodes}
    for op in main_function(inputs.optimized).body.block.ops:
        if op.name in _SILENT:
            continue
        for name in node_names(op):
            node = nodes.setdefault(name, _Node())
            node.ops[op.name] += 1
            node.fused |= isinstance(op, _FUSED)
            if isinstance(op, qmm.DequantMatmulOp | qmm.DequantConvOp):
                node.hoisted |= op.hoisted is not None
            reason = op.attributes.get(REASON)
            if isinstance(reason, StringAttr) and reason.data not in node.reasons:
                node.reasons.append(reason.data)
    for call in calls:
        for name in call.nodes:
            nodes.setdefault(name, _Node()).dispatches.append(call)
    return nodes


def _status(node: _Node) -> str:
    if node.reasons:
        return "not_fused"
    if node.fused:
        return "fused"
    return "lowered" if node.ops or node.dispatches else "folded"


def _operand_entries(call: Dispatch) -> list[dict[str, Any]]:
    return [
        {
            "role": o.role,
            "element_type": str(o.type.get_element_type()),
            "c_type": o.c_type,
            "shape": list(o.type.get_shape()),
            "source": o.source,
            "name": o.name,
        }
        for o in call.operands
    ]


def _weights_of(calls: Sequence[Dispatch]) -> list[str]:
    return list(dict.fromkeys(o.name for c in calls for o in c.operands if o.source == "weight" and o.name))


def build_report(inputs: ReportInputs) -> Report:
    """The report of one compilation; the same bytes for the same input."""
    calls = dispatches(inputs.kernels)
    constants = {name: global_weight(op) for name, op in globals_of(inputs.kernels).items()}
    memory = memory_report(inputs.kernels)
    quantized = [*quantized_weights(inputs.optimized)]
    quantized_hashes = {w.sha256 for w, _ in quantized}
    copies = float_copies(quantized, [*constants.values()])
    run_time = run_time_dequantizations(inputs.optimized)
    gathered = _gather_nodes(inputs, calls)
    types = {n.name: n for n in inputs.nodes}
    nodes: list[dict[str, Any]] = []
    for name, node in gathered.items():
        onnx = types.get(name)
        nodes.append(
            {
                "name": name,
                "op_type": onnx.op_type if onnx else None,
                "domain": onnx.domain if onnx else None,
                "status": _status(node),
                "hoisted": node.hoisted,
                "reasons": node.reasons,
                "ir_ops": [_IrOp(op=op, count=count) for op, count in sorted(node.ops.items())],
                "dispatches": [c.ordinal for c in node.dispatches],
                "kernels": list(dict.fromkeys(c.symbol for c in node.dispatches)),
                "macs": sum(c.macs for c in node.dispatches),
                "weight_bytes": sum(constants[s].nbytes for s in _weights_of(node.dispatches)),
            }
        )
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "qfold": __version__,
        "model": inputs.model,
        "target": inputs.target,
        "options": dict(inputs.options),
        "dims": dict(inputs.dims),
        "inputs": [_spec_entry(s) for s in inputs.inputs],
        "outputs": [_spec_entry(s) for s in inputs.outputs],
        "nodes": nodes,
        "dispatches": [
            {
                "ordinal": c.ordinal,
                "symbol": c.symbol,
                "kernel": c.kernel,
                "op": c.op.name,
                "nodes": list(c.nodes),
                "operands": _operand_entries(c),
                "macs": c.macs,
                "weight_bytes": sum(constants[s].nbytes for s in _weights_of([c])),
            }
            for c in calls
        ],
        "constants": [
            {
                "symbol": symbol,
                "sha256": weight.sha256,
                "bytes": weight.nbytes,
                "element_type": str(weight.element_type),
                "quantized": weight.sha256 in quantized_hashes
                and weight.element_type in STORAGE_TYPES,
                "users": list(
                    dict.fromkeys(
                        n for c in calls if any(o.name == symbol for o in c.operands) for n in c.nodes
                    )
                ),
            }
            for symbol, weight in constants.items()
        ],
        "memory": [_memory_entry(m) for m in memory],
        "totals": {
            "onnx_nodes": len(inputs.nodes),
            "ir_ops": sum(1 for _ in main_function(inputs.optimized).body.block.ops),
            "dispatches": len(calls),
            "fused": _count_fused(inputs.optimized),
            "not_fused": sum(1 for n in gathered.values() if _status(n) == "not_fused"),
            "float_copies_of_quantized_weights": len(copies),
            "run_time_dequantizations": len(run_time),
            "macs": sum(c.macs for c in calls),
            "weight_bytes": sum(w.nbytes for w in constants.values()),
            "quantized_weight_bytes": sum(
                w.nbytes
                for w in constants.values()
                if w.sha256 in quantized_hashes and w.element_type in STORAGE_TYPES
            ),
            "arena_bytes": sum(m.arena_bytes for m in memory),
        },
    }


def _count_fused(module: ModuleOp) -> dict[str, int]:
    """How many fused ops of each kind there are."""
    main = main_function(module)
    kinds = {"matmul": qmm.DequantMatmulOp, "conv": qmm.DequantConvOp, "gather": qmm.DequantGatherOp}
    return {k: sum(isinstance(op, t) for op in main.body.block.ops) for k, t in kinds.items()}


def _spec_entry(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "element_type": str(spec.element_type),
        "shape": list(spec.shape),
    }


def _memory_entry(memory: MemoryReport) -> dict[str, Any]:
    return {
        "level": memory.level,
        "arena_bytes": memory.arena_bytes,
        "lower_bound_bytes": memory.lower_bound,
        "weight_bytes": memory.weight_bytes,
        "buffers": [
            {"offset": b.offset, "bytes": b.size, "first": b.first, "last": b.last, "name": b.name}
            for b in memory.buffers
        ],
    }
