"""A report in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qfold.tools.report import Report

CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
"""Operators that become part of what they lead to."""

_MOST_ISLANDS = 6
"""Kinds of operators in the line that sums up."""


def bytes_text(count: int) -> str:
    """`9,999 B`, `1,536.0 KiB`, `21.9 MiB`: at most five digits before the point."""
    if count < 10_000:
        return f"{count:,} B"
    size, unit = count / 1024, "KiB"
    if size >= 10_000:
        size, unit = size / 1024, "MiB"
    return f"{size:,.1f} {unit}"


def _counted(count: int, one: str, many: str | None = None) -> str:
    """`1 matmul`, `2 matmuls`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def summary_lines(report: Report) -> list[str]:
    """The totals, a line each."""
    totals = report["totals"]
    fused = totals["fused"]
    lines = [
        f"{report['model']}: {_counted(totals['onnx_nodes'], 'ONNX node')} -> "
        f"{_counted(totals['dispatches'], 'kernel call')} for {report['target']}"
    ]
    multiplied = totals["multiplied"]
    integers = sum(multiplied.values())
    if integers:
        share = totals["integer_macs"] / totals["macs"] if totals["macs"] else 0.0
        lines.append(
            f"products of integers: {_counted(multiplied['matmul'], 'matmul')}, "
            f"{_counted(multiplied['conv'], 'convolution')}: {100 * share:.3g} % of all multiply-accumulates"
        )
    if not integers or any(fused.values()):
        lines.append(
            f"fused with a dequantised weight: {_counted(fused['matmul'], 'matmul')}, "
            f"{_counted(fused['conv'], 'convolution')}, {_counted(fused['gather'], 'gather')}"
        )
    if report["options"].get("dynamic_activations"):
        products = totals["run_time_quantized"]
        lines.append(
            f"activations of {_counted(products, 'product')} are quantised at run time: an approximation"
            if products
            else "no activations are quantised at run time: nothing is approximated"
        )
    lines += [
        f"not fused: {_counted(totals['not_fused'], 'node')}; float copies of a quantised weight: "
        f"{totals['float_copies_of_quantized_weights']} in the build, {totals['run_time_dequantizations']} made at run time",
        f"{totals['macs']:,} multiply-accumulates; weights {bytes_text(totals['weight_bytes'])}, of them quantised "
        f"{bytes_text(totals['quantized_weight_bytes'])}",
    ]
    if integers:
        lines += _integer_lines(report)
    machine = report["machine"]
    if machine["isa"] is not None:
        isa = machine["isa"]
        registers = "one register file" if isa["float_registers"] == "x" else "float registers"
        lines.append(
            f"{machine['cores']} cores of {isa['march']}{' with XpulpV2' if isa['xpulpv2'] else ''}, {registers}"
        )
    if totals["staged"]:
        lines.append(
            f"{totals['staged']} of the calls work on tiles in L1: {totals['transfers']:,} transfers, "
            f"{bytes_text(totals['transfer_bytes'])}"
        )
    lines += [_memory_text(memory) for memory in report["memory"]]
    return lines


def _integer_lines(report: Report) -> list[str]:
    """How much of what flows is integers, where floats are, and how near the sums come to 32 bits."""
    totals = report["totals"]
    share = totals["integer_tensor_bytes"] / totals["tensor_bytes"] if totals["tensor_bytes"] else 1
    islands: dict[str, list[str]] = {}
    for island in report["islands"]:
        islands.setdefault(island["op_type"], []).append(island["node"])
    named = [
        f"{kind} x{len(nodes)}" if len(nodes) > 1 else f"{kind} ({nodes[0]})"
        for kind, nodes in islands.items()
    ]
    lines = [
        f"integers: {totals['integer_tensors']} of {totals['tensors']} tensors ({_percent(share)} of bytes); "
        f"float islands: {some(named, _MOST_ISLANDS) or 'none'}"
    ]
    products = report["products"]
    if products:
        most = max(products, key=lambda p: p["bits"])
        lines.append(
            f"sums of products take at most {most['bits']} of 32 bits ({some(own_nodes(report, most['nodes']), 1)})"
        )
    return lines


def _percent(share: float) -> str:
    """A share of less than everything is never shown as 100 %."""
    return f"{min(100 * share, 99.9):.1f} %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def some(names: Sequence[str], most: int = 2) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" +{len(names) - most}" if len(names) > most else "")


def own_nodes(report: Report, names: Sequence[str]) -> list[str]:
    """Nodes without those that quantise and dequantise only; all where there are no others."""
    helpers = {n["name"] for n in report["nodes"] if n["op_type"] in CONVERSIONS}
    return [name for name in names if name not in helpers] or list(names)


def _memory_text(memory: dict[str, Any]) -> str:
    size = "" if memory["size"] is None else f" of {bytes_text(memory['size'])}"
    start = f"memory level {memory['level']}{size}: "
    if memory["stack_bytes"]:
        return (
            f"{start}tiles {bytes_text(memory['arena_bytes'])} in the largest call, stacks "
            f"{bytes_text(memory['stack_bytes'])}, runtime {bytes_text(memory['reserved_bytes'])}"
        )
    return (
        f"{start}arena {bytes_text(memory['arena_bytes'])} (lower bound {bytes_text(memory['lower_bound_bytes'])}), "
        f"{len(memory['buffers'])} buffers"
    )
