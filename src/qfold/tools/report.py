"""`report.json`: what became of each ONNX node, which kernel computes it from which bytes, and what memory that takes.

docs/report.md describes the fields; `report_schema.py` checks them; `report_view.py` shows them in a terminal.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from xdsl.dialects.builtin import ModuleOp, StringAttr

from qfold import __version__
from qfold.dialects import qmm
from qfold.dialects.element_types import STORAGE_TYPES, numpy_dtype
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.ir.locations import node_names
from qfold.ir.quantized import trace_quantized
from qfold.targets import Target, target_named
from qfold.tools.amplification import largest_hoisting_factor
from qfold.tools.arrays import TensorSpec, main_function
from qfold.tools.leafs import LeafRecord, Operand, every_leaf
from qfold.tools.manifest import KernelRecord, manifest, program_of
from qfold.tools.memory_plan import MemoryReport, memory_report
from qfold.tools.report_schema import VERSION

if TYPE_CHECKING:
    from qfold.backend.riscv import GeneratedKernel

SCHEMA = "qfold-report"

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


@dataclass
class NodeFacts:
    """What the tensor level says about one ONNX node."""

    ops: Counter[str] = field(default_factory=Counter[str])
    fused: bool = False
    hoisted: bool = False
    reasons: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class TensorFacts:
    """What the report takes from the tensor level, after fusion and before quantisation is lowered."""

    nodes: Mapping[str, NodeFacts]
    ir_ops: int
    fused: Mapping[str, int]
    quantized: Sequence[tuple[WeightAttr, QuantAttr]]
    run_time_dequantizations: int
    """Dequantises of constants that are left: each makes a float copy in memory."""
    hoisting_factor: float
    """The largest of the hoisted contractions: see `amplification`."""


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
    facts: TensorFacts
    kernels: ModuleOp
    """Kernel level."""
    generated: Mapping[str, GeneratedKernel] = field(default_factory=dict[str, "GeneratedKernel"])
    """Kernels in assembly, by C symbol."""


class _IrOp(TypedDict):
    op: str
    count: int


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


def tensor_facts(module: ModuleOp) -> TensorFacts:
    """Reads a tensor-level module; nothing of it is kept but the attributes of its weights."""
    nodes: dict[str, NodeFacts] = {}
    main = main_function(module)
    for op in main.body.block.ops:
        if op.name in _SILENT:
            continue
        for name in node_names(op):
            node = nodes.setdefault(name, NodeFacts())
            node.ops[op.name] += 1
            node.fused |= isinstance(op, _FUSED)
            if isinstance(op, qmm.DequantMatmulOp | qmm.DequantConvOp):
                node.hoisted |= op.hoisted is not None
            reason = op.attributes.get(REASON)
            if isinstance(reason, StringAttr) and reason.data not in node.reasons:
                node.reasons.append(reason.data)
    kinds = {
        "matmul": qmm.DequantMatmulOp,
        "conv": qmm.DequantConvOp,
        "gather": qmm.DequantGatherOp,
    }
    return TensorFacts(
        nodes,
        sum(1 for _ in main.body.block.ops),
        {k: sum(isinstance(op, t) for op in main.body.block.ops) for k, t in kinds.items()},
        [*quantized_weights(module)],
        sum(
            isinstance(op, qmm.DequantizeOp) and trace_quantized(op.result) is not None
            for op in module.walk()
        ),
        largest_hoisting_factor(module),
    )


def _status(facts: NodeFacts, calls: Sequence[KernelRecord]) -> str:
    if facts.reasons:
        return "not_fused"
    if facts.fused:
        return "fused"
    return "lowered" if facts.ops or calls else "folded"


def _weights_of(calls: Sequence[KernelRecord]) -> list[str]:
    return list(
        dict.fromkeys(o.constant for c in calls for o in c.operands if o.constant is not None)
    )


def build_report(inputs: ReportInputs) -> Report:
    """The report of one compilation; the same bytes for the same input."""
    facts = inputs.facts
    program = program_of(inputs.kernels)
    calls = manifest(program)
    constants = {w.symbol: w.weight for w in program.weights}
    memory = memory_report(inputs.kernels, calls)
    quantized_hashes = {w.sha256 for w, _ in facts.quantized}
    copies = float_copies(facts.quantized, [*constants.values()])
    # The model's own nodes in order, then those of function bodies, which only locations name.
    types = {n.name: n for n in inputs.nodes}
    calls_of: dict[str, list[KernelRecord]] = {name: [] for name in (*types, *facts.nodes)}
    for call in calls:
        for name in call.nodes:
            calls_of.setdefault(name, []).append(call)
    nodes: list[dict[str, Any]] = []
    for name, own in calls_of.items():
        onnx, node = types.get(name), facts.nodes.get(name, NodeFacts())
        nodes.append(
            {
                "name": name,
                "op_type": onnx.op_type if onnx else None,
                "domain": onnx.domain if onnx else None,
                "status": _status(node, own),
                "hoisted": node.hoisted,
                "reasons": node.reasons,
                "ir_ops": [_IrOp(op=op, count=count) for op, count in sorted(node.ops.items())],
                "dispatches": [c.ordinal for c in own],
                "kernels": list(dict.fromkeys(c.symbol for c in own)),
                "macs": sum(c.macs for c in own),
                "weight_bytes": sum(constants[s].nbytes for s in _weights_of(own)),
            }
        )
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "qfold": __version__,
        "model": inputs.model,
        "target": inputs.target,
        "machine": _machine_entry(target_named(inputs.target)),
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
                "op": c.op,
                "nodes": list(c.nodes),
                "staged": c.staged,
                "unstaged_reason": c.unstaged_reason,
                "operands": [_operand_entry(o) | {"constant": o.constant} for o in c.operands],
                "calls": [{"kernel": leaf.symbol, "count": leaf.calls} for leaf in c.leafs],
                "transfers": {
                    "count": c.transfers.count,
                    "bytes_in": c.transfers.bytes_in,
                    "bytes_out": c.transfers.bytes_out,
                },
                "l1_bytes": c.l1_bytes,
                "macs": c.macs,
                "iterations": c.iterations,
                "weight_bytes": c.weight_bytes,
            }
            for c in calls
        ],
        "kernels": [
            _kernel_entry(leaf, inputs.generated.get(leaf.symbol))
            for leaf in every_leaf([c.leafs for c in calls]).values()
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
                        n
                        for c in calls
                        if any(o.constant == symbol for o in c.operands)
                        for n in c.nodes
                    )
                ),
            }
            for symbol, weight in constants.items()
        ],
        "memory": [_memory_entry(m) for m in memory],
        "totals": {
            "onnx_nodes": len(inputs.nodes),
            "ir_ops": facts.ir_ops,
            "dispatches": len(calls),
            "staged": sum(c.staged for c in calls),
            "transfers": sum(c.transfers.count for c in calls),
            "transfer_bytes": sum(c.transfers.bytes_in + c.transfers.bytes_out for c in calls),
            "fused": dict(facts.fused),
            "not_fused": sum(n["status"] == "not_fused" for n in nodes),
            "float_copies_of_quantized_weights": len(copies),
            "run_time_dequantizations": facts.run_time_dequantizations,
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


def assembly_functions(report: Report) -> dict[str, list[str]]:
    """The assembly functions of each generated kernel, by the kernel's symbol."""
    return {
        kernel["symbol"]: [f["symbol"] for f in kernel["generated"]["functions"]]
        for kernel in report["kernels"]
        if kernel["generated"] is not None
    }


def _spec_entry(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "element_type": str(spec.element_type),
        "shape": list(spec.shape),
    }


def _machine_entry(target: Target) -> dict[str, Any]:
    isa = target.isa
    return {
        "cores": target.cores,
        "isa": None
        if isa is None
        else {
            "name": isa.name,
            "march": isa.march,
            "float_registers": isa.float_registers,
            "xpulpv2": isa.xpulpv2,
        },
    }


def _operand_entry(operand: Operand) -> dict[str, Any]:
    return {
        "name": operand.name,
        "type": operand.ir_type,
        "c_type": operand.c_type,
        "written": operand.written,
    }


def _kernel_entry(leaf: LeafRecord, generated: GeneratedKernel | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "symbol": leaf.symbol,
        "kernel": leaf.kernel,
        "op": leaf.op,
        "calls": leaf.calls,
        "operands": [_operand_entry(o) for o in leaf.operands],
        "split": list(leaf.split),
        "macs": leaf.macs,
        "iterations": leaf.iterations,
        "generated": None,
    }
    if generated is not None:
        entry["generated"] = {
            "functions": [
                {
                    "symbol": f.symbol,
                    "registers": len(f.registers),
                    "saved": len(f.saved),
                    "frame_bytes": f.frame_bytes,
                    "code_bytes": f.code_bytes,
                }
                for f in generated.functions
            ],
            "facts": {k: v for k, v in generated.facts.items() if k != "functions"},
        }
    return entry


def _memory_entry(memory: MemoryReport) -> dict[str, Any]:
    return {
        "level": memory.level,
        "name": memory.name,
        "size": memory.size,
        "arena_bytes": memory.arena_bytes,
        "lower_bound_bytes": memory.lower_bound,
        "weight_bytes": memory.weight_bytes,
        "stack_bytes": memory.stack_bytes,
        "reserved_bytes": memory.reserved_bytes,
        "buffers": [
            {"offset": b.offset, "bytes": b.size, "first": b.first, "last": b.last, "name": b.name}
            for b in memory.buffers
        ],
    }
