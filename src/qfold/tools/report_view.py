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
    for memory in report["memory"]:
        lines.append(
            f"memory level {memory['level']}: arena {bytes_text(memory['arena_bytes'])} "
            f"(lower bound {bytes_text(memory['lower_bound_bytes'])}), {len(memory['buffers'])} buffers"
        )
    return lines


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
    table = _table(
        "Kernel calls",
        ("#", "right"),
        ("function", "left"),
        ("kernel", "left"),
        ("operands", "left"),
        ("MACs", "right"),
    )
    for call in report["dispatches"]:
        operands = ", ".join(_operand_text(o) for o in call["operands"])
        table.add_row(
            str(call["ordinal"]),
            Text(call["symbol"]),
            Text(call["kernel"]),
            Text(operands),
            f"{call['macs']:,}" if call["macs"] else "",
        )
    return table


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
    console.print(_constants_table(report))
    for line in summary_lines(report):
        console.print(Text(line))
