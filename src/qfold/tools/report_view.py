"""A report as tables in a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from qfold.tools.interface_view import interface_lines
from qfold.tools.report import Report
from qfold.tools.report_summary import CONVERSIONS, own_nodes, some, summary_lines
from qfold.tools.tables import FittedTable

_PRODUCTS = ("qmm.quant_matmul", "qmm.quant_conv")
_FLOAT_PRODUCTS = ("qmm.matmul", "qmm.conv", "qmm.dequant_matmul", "qmm.dequant_conv")
_FLOATS = ("f16", "bf16", "f32", "f64")

_SMALL, _FEW = 64, 8
"""Constants of so many bytes, which are scales and zero points, have rows if there are so few."""

_RESULTS = {
    None: "stored as it is",
    "i32": "i32",
    "mulhi": "i32, upper halves of 64-bit products",
    "i64": "i64",
    "f64": "f64",
    "f32": "f32",
}
"""In which arithmetic a sum becomes what is stored."""

_STYLES = {"fused": "green", "not_fused": "yellow", "lowered": "", "folded": "dim"}


def _table(title: str, *columns: tuple[str, str], optional: Sequence[str] = ()) -> FittedTable:
    """`columns`: header and justification; `optional`: headers of those that a narrow terminal does without, the first first."""
    table = FittedTable(title, optional)
    for name, justify in columns:
        # Names are long and worth reading whole; numbers never wrap.
        table.add_column(
            name,
            justify="right" if justify == "right" else "left",
            overflow="fold",
            no_wrap=justify == "right",
        )
    return table


def _nodes_table(report: Report) -> FittedTable:
    """The nodes of which something is left, but for those that quantise or dequantise and have become part of others."""
    left = [n for n in report["nodes"] if n["status"] != "folded"]
    shown = [n for n in left if n["op_type"] not in CONVERSIONS or n["reasons"]]
    calls = {i for n in shown for i in n["dispatches"]}
    names = {n["name"] for n in shown}
    shown = [n for n in left if n["name"] in names or not set(n["dispatches"]) <= calls]
    table = _table(
        "Nodes",
        ("ONNX node", "left"),
        ("operator", "left"),
        ("became", "left"),
        ("status", "left"),
        ("calls", "left"),
        ("MACs", "right"),
        ("weights", "right"),
        optional=("became", "operator"),
    )
    multiplying = {i for n in report["nodes"] if _multiplies(n) for i in n["dispatches"]}
    for node in shown:
        integers = any(e["op"] in _PRODUCTS for e in node["ir_ops"])
        # What was fused into a product has none of its own.
        owns = _multiplies(node) or not multiplying & set(node["dispatches"])
        status: str = node["status"].replace("_", " ")
        status += (", integers" if integers else "") + (", hoisted" if node["hoisted"] else "")
        if node["reasons"]:
            status += f": {'; '.join(node['reasons'])}"
        ops = ", ".join(
            e["op"] if e["count"] == 1 else f"{e['op']} x{e['count']}" for e in node["ir_ops"]
        )
        table.add_row(
            Text(node["name"]),
            Text(node["op_type"] or ""),
            Text(ops),
            Text(status, style=_STYLES[node["status"]]),
            _ordinals(node["dispatches"]),
            *(_count(node[key]) if owns else "" for key in ("macs", "weight_bytes")),
        )
    folded = Counter(n["op_type"] or "?" for n in report["nodes"] if n["status"] == "folded")
    parts = [
        f"{len(left) - len(shown)} that quantise or dequantise, which are part of these"
        if len(shown) < len(left)
        else "",
        "nothing is left of " + ", ".join(f"{n} {kind}" for kind, n in folded.most_common())
        if folded
        else "",
    ]
    table.caption = "; ".join(part for part in parts if part) or None
    return table


def _multiplies(node: dict[str, Any]) -> bool:
    return any(e["op"] in (*_PRODUCTS, *_FLOAT_PRODUCTS) for e in node["ir_ops"])


def _ordinals(numbers: Sequence[int]) -> str:
    """`0, 3, 7-12`."""
    parts: list[str] = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        own = [n for _, n in run]
        parts.append(str(own[0]) if len(own) == 1 else f"{own[0]}-{own[-1]}")
    return ", ".join(parts)


def _products_table(report: Report) -> FittedTable:
    table = _table(
        "Products of integers, summed up in 32 bits",
        ("ONNX nodes", "left"),
        ("call", "right"),
        ("integers", "left"),
        ("K", "right"),
        ("sums between", "right"),
        ("bits", "right"),
        ("largest K", "right"),
        ("result by", "left"),
        optional=("largest K", "sums between"),
    )
    for product in report["products"]:
        table.add_row(
            Text(some(own_nodes(report, product["nodes"]))),
            "" if product["dispatch"] is None else str(product["dispatch"]),
            f"{product['left']} x {product['right']} -> {product['result']}",
            f"{product['k']:,}",
            f"{product['low']:,} .. {product['high']:,}",
            str(product["bits"]),
            f"{product['largest_k']:,}",
            _RESULTS[product["requantize"]],
        )
    return table


def _tensors_table(report: Report) -> FittedTable:
    explained = any(t["float_reason"] for t in report["tensors"])
    table = _table(
        "Tensors between kernel calls",
        ("ONNX value", "left"),
        ("type", "left"),
        ("shape", "left"),
        ("bytes", "right"),
        ("from", "left"),
        ("to", "left"),
        *([("why float", "left")] if explained else []),
    )
    shaped = [t for t in report["tensors"] if t["shape"] or t["role"] != "inner"]
    if len(shaped) < len(report["tensors"]):
        table.caption = f"and {len(report['tensors']) - len(shaped)} scales and zero points"
    for tensor in shaped:
        is_float = tensor["element_type"] in _FLOATS
        table.add_row(
            Text(tensor["name"]),
            Text(tensor["element_type"], style="yellow" if is_float else "green"),
            "x".join(map(str, tensor["shape"])),
            f"{tensor['bytes']:,}",
            "input" if tensor["role"] == "input" else _ordinals(tensor["producers"]),
            "output" if tensor["role"] == "output" else _ordinals(tensor["consumers"]),
            *([Text(tensor["float_reason"] or "")] if explained else []),
        )
    return table


def _islands_table(report: Report) -> FittedTable:
    table = _table(
        "Float islands",
        ("ONNX nodes", "left"),
        ("operator", "left"),
        ("calls", "left"),
        ("why", "left"),
    )
    alike: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for island in report["islands"]:
        alike.setdefault((island["op_type"], island["reason"]), []).append(island)
    for (op_type, reason), own in alike.items():
        table.add_row(
            Text(some([i["node"] for i in own])),
            Text(op_type),
            _ordinals(sorted({n for i in own for n in i["dispatches"]})),
            Text(reason),
        )
    return table


def _dispatches_table(report: Report) -> FittedTable:
    on_cluster = any(memory["level"] == 1 for memory in report["memory"])
    columns = [
        ("#", "right"),
        ("function", "left"),
        ("kernels" if on_cluster else "kernel", "left"),
        ("operands", "left"),
        ("MACs", "right"),
    ]
    if on_cluster:
        columns[4:4] = [
            ("L1 bytes", "right"),
            ("DMA in", "right"),
            ("out", "right"),
            ("transfers", "right"),
        ]
    # What a call moves is summed up at the end, which kernels it calls is in their table.
    optional = ("operands", "kernels", "transfers", "out", "DMA in", "L1 bytes")
    table = _table("Kernel calls", *columns, optional=optional)
    for call in report["dispatches"]:
        operands = [o for o in call["operands"] if o["name"] != "l1"]
        cells: list[str | Text] = [
            str(call["ordinal"]),
            Text(call["symbol"]),
            Text(_calls_text(call) if on_cluster else call["kernel"]),
            Text(", ".join(_operand_text(o) for o in operands)),
        ]
        if on_cluster:
            moved = call["transfers"]
            numbers = (call["l1_bytes"], moved["bytes_in"], moved["bytes_out"], moved["count"])
            cells += [_count(n) for n in numbers]
        table.add_row(*cells, _count(call["macs"]))
    return table


def _count(number: int) -> str:
    """Nothing for 0, which says nothing."""
    return f"{number:,}" if number else ""


def _calls_text(dispatch: dict[str, Any]) -> str:
    """What a dispatch calls, a line each; of one that works in L2, why."""
    if not dispatch["staged"]:
        reason = dispatch["unstaged_reason"]
        return f"{dispatch['kernel']} in L2{f': {reason}' if reason else ''}"
    return "\n".join(f"{call['count']} x {call['kernel']}" for call in dispatch["calls"])


def _kernels_table(report: Report) -> FittedTable:
    table = _table(
        "Kernels",
        ("function", "left"),
        ("kernel", "left"),
        ("calls", "right"),
        ("split", "right"),
        ("assembly", "left"),
        ("predicted", "left"),
        ("MACs a call", "right"),
        optional=("predicted", "split", "assembly"),
    )
    for kernel in report["kernels"]:
        generated: dict[str, Any] = kernel["generated"] or {"functions": [], "facts": {}}
        functions = [_function_text(kernel["symbol"], f) for f in generated["functions"]]
        table.add_row(
            Text(kernel["symbol"]),
            Text(kernel["kernel"]),
            f"{kernel['calls']:,}",
            " x ".join(map(str, kernel["split"])),
            Text("\n".join(functions)),
            Text(", ".join(_facts(generated["facts"]))),
            _count(kernel["macs"]),
        )
    return table


def _function_text(kernel: str, function: dict[str, Any]) -> str:
    name = function["symbol"].removeprefix(kernel)
    return f"{name} ({function['registers']} registers, {function['code_bytes']} B)"


_SHOWN_FACTS = {
    "block": "block {}",
    "panel": "panels of {}",
    "addressing": "{} addressing",
    "instructions_per_mac": "{:.3g} instructions per MAC",
    "instructions_per_weight": "{:.3g} instructions per weight",
    "instructions_per_element": "{:.3g} instructions per element",
}
"""The facts of a generator that a reader asks for first, and how they read; report.json has all."""


def _facts(facts: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for name, text in _SHOWN_FACTS.items():
        if name in facts:
            found.append(text.format(facts[name]))
    return found


def _operand_text(operand: dict[str, Any]) -> str:
    # memref<8x3xi8, 2 : i64>: the memory space is the table's, not the operand's.
    shape: str = operand["type"].removeprefix("memref<").split(",")[0].rstrip(">")
    return f"{operand['name']}: {shape}"


def _constants_table(report: Report) -> FittedTable:
    table = _table(
        "Constants",
        ("symbol", "left"),
        ("type", "left"),
        ("shape", "left"),
        ("bytes", "right"),
        ("quantised weight", "left"),
        ("read by", "left"),
        optional=("read by",),
    )
    small = [c for c in report["constants"] if not c["quantized"] and c["bytes"] <= _SMALL]
    if len(small) <= _FEW:
        small = []
    for constant in report["constants"]:
        if constant in small:
            continue
        table.add_row(
            Text(constant["symbol"]),
            Text(constant["element_type"]),
            "x".join(map(str, constant["shape"])),
            f"{constant['bytes']:,}",
            Text(_quantisation(constant)),
            Text(some(own_nodes(report, constant["users"]))),
        )
    if small:
        table.caption = (
            f"and {len(small)} of up to {_SMALL} bytes, {sum(c['bytes'] for c in small):,} together"
        )
    return table


def _quantisation(constant: dict[str, Any]) -> str:
    """`per channel, zero points 0 to 3, packed`; nothing for what is no quantised weight."""
    if not constant["quantized"]:
        return ""
    least, most = constant["zero_point"]
    zero = f"zero point {least}" if least == most else f"zero points {least} to {most}"
    stored = "" if constant["stored"] == "as it is" else f", {constant['stored']}"
    per = {"axis": "channel"}.get(constant["granularity"], constant["granularity"])
    return f"per {per}, {zero}{stored}"


def print_report(report: Report, console: Console) -> None:
    """Everything that a person asks of a report."""
    console.print(_nodes_table(report))
    console.print(_dispatches_table(report))
    if any(kernel["split"] for kernel in report["kernels"]):
        console.print(_kernels_table(report))
    if report["products"]:
        console.print(_products_table(report))
        console.print(_tensors_table(report))
    if report["islands"]:
        console.print(_islands_table(report))
    console.print(_constants_table(report))
    for line in (*interface_lines(report), *summary_lines(report)):
        console.print(Text(line))
