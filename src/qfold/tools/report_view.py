"""A report as tables in a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qfold.tools.report import Report

_STYLES = {"fused": "green", "not_fused": "yellow", "lowered": "", "folded": "dim"}


def bytes_text(count: int) -> str:
    """`9,999 B`, `1,536.0 KiB`, `21.9 MiB`: at most five digits before the point."""
    if count < 10_000:
        return f"{count:,} B"
    size, unit = count / 1024, "KiB"
    if size >= 10_000:
        size, unit = size / 1024, "MiB"
    return f"{size:,.1f} {unit}"


def _table(title: str, *columns: tuple[str, str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    for name, justify in columns:
        # Names are long and worth reading whole; numbers never wrap.
        table.add_column(
            name,
            justify="right" if justify == "right" else "left",
            overflow="fold",
            no_wrap=justify == "right",
        )
    return table


def summary_lines(report: Report) -> list[str]:
    """The totals, a line each."""
    totals = report["totals"]
    fused = totals["fused"]
    lines = [
        f"{report['model']}: {totals['onnx_nodes']} ONNX nodes -> {totals['dispatches']} kernel calls for {report['target']}",
        f"fused with a dequantised weight: {fused['matmul']} matmuls, {fused['conv']} convolutions, {fused['gather']} gathers",
        f"not fused: {totals['not_fused']} nodes; float copies of a quantised weight: "
        f"{totals['float_copies_of_quantized_weights']} in the build, {totals['run_time_dequantizations']} made at run time",
        f"{totals['macs']:,} multiply-accumulates; weights {bytes_text(totals['weight_bytes'])}, of them quantised "
        f"{bytes_text(totals['quantized_weight_bytes'])}",
    ]
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


def _nodes_table(report: Report) -> Table:
    table = _table(
        "Nodes",
        ("ONNX node", "left"),
        ("operator", "left"),
        ("became", "left"),
        ("status", "left"),
        ("kernels", "left"),
        ("MACs", "right"),
        ("weights", "right"),
    )
    for node in report["nodes"]:
        status: str = node["status"].replace("_", " ") + (", hoisted" if node["hoisted"] else "")
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
            Text("\n".join(node["kernels"])),
            f"{node['macs']:,}" if node["macs"] else "",
            f"{node['weight_bytes']:,}" if node["weight_bytes"] else "",
        )
    return table


def _dispatches_table(report: Report) -> Table:
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
    table = _table("Kernel calls", *columns)
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


def _kernels_table(report: Report) -> Table:
    table = _table(
        "Kernels",
        ("function", "left"),
        ("kernel", "left"),
        ("calls", "right"),
        ("split", "right"),
        ("assembly", "left"),
        ("predicted", "left"),
        ("MACs a call", "right"),
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


def _constants_table(report: Report) -> Table:
    table = _table(
        "Constants",
        ("symbol", "left"),
        ("sha256", "left"),
        ("type", "left"),
        ("bytes", "right"),
        ("users", "left"),
    )
    for constant in report["constants"]:
        table.add_row(
            Text(constant["symbol"]),
            Text(constant["sha256"][:16]),
            Text(constant["element_type"] + (" quantised" if constant["quantized"] else "")),
            f"{constant['bytes']:,}",
            Text("\n".join(constant["users"])),
        )
    return table


def print_report(report: Report, console: Console) -> None:
    """Everything that a person asks of a report."""
    console.print(_nodes_table(report))
    console.print(_dispatches_table(report))
    if any(kernel["split"] for kernel in report["kernels"]):
        console.print(_kernels_table(report))
    console.print(_constants_table(report))
    for line in summary_lines(report):
        console.print(Text(line))
