"""`report.json`: what became of each ONNX node, which kernel computes it from which bytes, and what memory that takes.

docs/report.md describes the fields; `report_schema.py` checks them; `report_view.py` shows them in a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from xdsl.dialects.builtin import ModuleOp

from qfold import __version__
from qfold.backend.c.program import Program, WeightData
from qfold.dialects.element_types import is_float
from qfold.targets import Target, target_named
from qfold.tools.arrays import TensorSpec
from qfold.tools.flow import FlowingTensor, Island, OnnxNode, flowing_tensors, islands
from qfold.tools.leafs import LeafRecord, Operand, every_leaf
from qfold.tools.manifest import KernelRecord, manifest, program_of
from qfold.tools.memory_plan import MemoryReport, memory_report
from qfold.tools.report_schema import VERSION
from qfold.tools.stored_weights import StoredWeights
from qfold.tools.tensor_facts import NodeFacts, Product, TensorFacts, float_copies

if TYPE_CHECKING:
    from qfold.backend.riscv import GeneratedKernel

SCHEMA = "qfold-report"

Report = dict[str, Any]


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
    floats = [s.name for s in inputs.inputs if is_float(s.element_type)]
    found_islands = islands(inputs.nodes, facts, program, floats)
    tensors = flowing_tensors(inputs.kernels, program, inputs.nodes, facts, found_islands)
    flowing = [t for t in tensors if t.shape]
    stored = _constant_entries(program, calls, facts)
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
                "notes": node.notes,
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
        "constants": stored,
        "products": _product_entries(facts.products, calls),
        "tensors": [_tensor_entry(t) for t in tensors],
        "islands": [_island_entry(i) for i in found_islands],
        "memory": [_memory_entry(m) for m in memory],
        "totals": {
            "onnx_nodes": len(inputs.nodes),
            "ir_ops": facts.ir_ops,
            "dispatches": len(calls),
            "staged": sum(c.staged for c in calls),
            "transfers": sum(c.transfers.count for c in calls),
            "transfer_bytes": sum(c.transfers.bytes_in + c.transfers.bytes_out for c in calls),
            "fused": dict(facts.fused),
            "multiplied": dict(facts.multiplied),
            "not_fused": sum(n["status"] == "not_fused" for n in nodes),
            "float_copies_of_quantized_weights": len(copies),
            "run_time_dequantizations": facts.run_time_dequantizations,
            "macs": sum(c.macs for c in calls),
            "weight_bytes": sum(w.nbytes for w in constants.values()),
            "integer_macs": sum(
                leaf.calls * leaf.macs for c in calls for leaf in c.leafs if leaf.is_integer
            ),
            "quantized_weight_bytes": sum(c["bytes"] for c in stored if c["quantized"]),
            "tensors": len(flowing),
            "integer_tensors": sum(not t.is_float for t in flowing),
            "tensor_bytes": sum(t.nbytes for t in flowing),
            "integer_tensor_bytes": sum(t.nbytes for t in flowing if not t.is_float),
            "run_time_quantized": facts.run_time_quantized,
            "arena_bytes": sum(m.arena_bytes for m in memory),
        },
    }


def _constant_entries(
    program: Program, calls: Sequence[KernelRecord], facts: TensorFacts
) -> list[dict[str, Any]]:
    """One per constant: what it holds, and who reads it."""
    weights = StoredWeights(facts.weights)
    shapes: dict[str, tuple[int, ...]] = {}
    for dispatch in program.dispatches:
        for place in dispatch.operands:
            if isinstance(place.root, WeightData):
                shapes.setdefault(place.root.symbol, place.type.get_shape())
    entries: list[dict[str, Any]] = []
    for data in program.weights:
        held = weights.find(data.weight)
        users = dict.fromkeys(n for c in calls if data.symbol in _weights_of([c]) for n in c.nodes)
        entries.append(
            {
                "symbol": data.symbol,
                "sha256": data.weight.sha256,
                "bytes": data.weight.nbytes,
                "element_type": str(data.weight.element_type),
                "shape": list(shapes[data.symbol]),
                "quantized": held is not None,
                "granularity": None if held is None else held.weight.granularity,
                "zero_point": None if held is None else list(held.weight.zero_point),
                "stored": None if held is None else held.form,
                "users": list(users),
            }
        )
    return entries


def _product_entries(
    products: Sequence[Product], calls: Sequence[KernelRecord]
) -> list[dict[str, Any]]:
    """One per contraction of integers, with the call that computes it."""
    left = [c for c in calls if any(leaf.is_integer for leaf in c.leafs)]
    entries: list[dict[str, Any]] = []
    for product in products:
        own = next((c for c in left if set(product.nodes) <= set(c.nodes)), None)
        if own is not None:
            left.remove(own)
        entries.append(
            {
                "nodes": list(product.nodes),
                "dispatch": None if own is None else own.ordinal,
                "op": product.op,
                "left": product.left,
                "right": product.right,
                "result": product.result,
                "k": product.k,
                "low": product.low,
                "high": product.high,
                "bits": product.bits,
                "largest_k": product.largest_k,
                "requantize": product.requantize,
            }
        )
    return entries


def _tensor_entry(tensor: FlowingTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "role": tensor.role,
        "element_type": str(tensor.element_type),
        "shape": list(tensor.shape),
        "bytes": tensor.nbytes,
        "producers": list(tensor.producers),
        "consumers": list(tensor.consumers),
        "float_reason": tensor.float_reason,
    }


def _island_entry(island: Island) -> dict[str, Any]:
    return {
        "node": island.node,
        "op_type": island.op_type,
        "dispatches": list(island.dispatches),
        "reason": island.reason,
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
        "scale": None if spec.quant is None else float(spec.quant.scales),
        "zero_point": None if spec.quant is None else int(spec.quant.zero_points),
        "layout": spec.layout,
        "note": spec.note,
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
