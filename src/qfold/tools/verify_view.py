"""The result of `qfold verify` as tables and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from qfold.tools.approximation import Cost
from qfold.tools.comparison import OutputResult
from qfold.tools.tables import FittedTable
from qfold.tools.terminal import Terminal
from qfold.tools.verify import Verification
from qfold.tools.work import WorkTable

_WORST = 5
"""Dispatches shown unless something fails or more is asked for."""

_LARGEST = 12
"""Dispatches whose work is shown unless more is asked for."""


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.3g}"


def _steps(differing: int, largest: float) -> str:
    """How integers compare: `bit-exact`, or how many differ and by how much."""
    return "bit-exact" if not differing else f"{differing:,} differ, by up to {_number(largest)}"


def _integer_bound(bound: float) -> str:
    return "exact" if bound == 0 else _number(bound)


def _golden_cells(output: OutputResult) -> list[str]:
    """How an output compares with what was expected, and how far off it might be."""
    golden = output.golden
    if golden is None:
        return ["", ""]
    if output.is_integer:
        return [_steps(golden.differing, golden.error), _integer_bound(golden.bound)]
    equal = "bit-exact" if not golden.differing else _number(golden.error)
    return [equal, _number(golden.bound)]


def _mark(ok: bool) -> Text:
    return Text("ok", style="green") if ok else Text("FAILED", style="bold red")


def _table(title: str, *columns: str, optional: Sequence[str] = ()) -> FittedTable:
    """`optional`: headers of columns that a narrow terminal does without, the first first."""
    table = FittedTable(title, optional)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 or not name else "right", overflow="fold")
    return table


def print_verification(result: Verification, terminal: Terminal) -> None:
    """What passed and what failed, and by how much."""
    golden = any(o.golden for o in result.outputs)
    columns = ["output", "elements", "max error", "f32 reference's own", "bound", "ratio", ""]
    if golden:
        columns[6:6] = ["to expected", "bound"]
    table = _table(
        "Outputs, against float64 end to end", *columns, optional=("f32 reference's own", "ratio")
    )
    for o in result.outputs:
        if o.is_integer:
            cells = [_steps(o.differing, o.error), "", _integer_bound(o.bound), ""]
        else:
            cells = [_number(n) for n in (o.error, o.reference_error, o.bound)] + [f"{o.ratio:.3f}"]
        if golden:
            cells += _golden_cells(o)
        table.add_row(Text(o.name), f"{o.elements:,} {o.element_type}", *cells, _mark(o.ok))
    terminal.out.print(table)

    if result.approximation is not None:
        _print_costs(result.approximation, terminal)

    ranked = sorted(result.dispatches, key=lambda d: (d.ok, -d.ratio))
    failed = sum(not d.ok for d in ranked)
    shown = ranked if terminal.verbose else ranked[: max(_WORST, min(failed, 20))]
    table = _table(
        f"Kernel calls, each on the inputs that it had: the {len(shown)} nearest to their bound of {len(ranked)}",
        "kernel call",
        "ONNX nodes",
        "error",
        "bound",
        "ratio",
        "",
        optional=("ONNX nodes", "ratio"),
    )
    table.columns[1].justify = "left"
    for d in shown:
        table.add_row(
            Text(f"{d.ordinal} {d.symbol} {d.operand}"),
            Text(_nodes(d.nodes)),
            *(
                ("bit-exact", "exact", "")
                if d.exact == d.elements
                else (_number(d.error), _number(d.bound), f"{d.ratio:.3f}")
            ),
            _mark(d.ok),
        )
    terminal.out.print(table)
    elements = sum(d.elements for d in result.dispatches)
    exact = sum(d.exact for d in result.dispatches)
    if exact:
        calls = sum(d.exact == d.elements for d in result.dispatches)
        terminal.line(
            f"bit-exact: {exact:,} of {elements:,} numbers that kernel calls wrote are integers that may not be off at all; "
            f"{calls} of {len(ranked)} calls wrote nothing else"
        )

    if result.work is not None:
        _print_work(result.work, terminal)

    table = _table("Audit of the object code", "check", "looked at", "")
    table.columns[1].justify = "left"
    for a in result.audit:
        table.add_row(Text(a.check), Text(a.detail), _mark(a.ok))
    terminal.out.print(table)
    for a in result.audit:
        for problem in a.problems:
            terminal.line(f"{a.check}: {problem}", "red")
    if any(o.golden and o.golden.differing and not o.is_integer for o in result.outputs):
        terminal.line(
            "The expected outputs are float results themselves: they may be off as far as an output may, hence twice the bound."
        )
    if not all(o.is_integer for o in result.outputs):
        terminal.line(
            f"bound = {result.factor:.3g} x the f32 reference's own distance from float64, and a few ulp; see docs/numerics.md",
            "dim",
        )
    if result.approximates:
        terminal.line(
            "An approximating build: compared with the approximation in float64, whose distance from the exact network is in the "
            "bound twice.",
            "dim",
        )
    verdict = "verified" if result.ok else "NOT verified"
    terminal.line(f"{result.model}: {verdict}", "bold green" if result.ok else "bold red")


def _print_costs(costs: Sequence[Cost], terminal: Terminal) -> None:
    """What the approximation costs, an output a row."""
    table = _table(
        "Cost of the approximation: outputs against the exact network in float64",
        "output",
        "max error",
        "of its range",
        "RMS error",
        "SNR, dB",
        "largest score agrees",
    )
    for c in costs:
        agreement = ""
        if c.agreement is not None:
            agreement = f"{c.agreement.agree} of {c.agreement.vectors}"
        table.add_row(
            Text(c.name),
            _number(c.error),
            f"{c.relative:.3%}",
            _number(c.rms),
            f"{c.snr:.1f}",
            agreement,
        )
    terminal.out.print(table)
    for c in costs:
        if c.lost:
            terminal.line(
                f"{c.name}: {c.lost} of {c.elements} elements are finite in one of the two only",
                "yellow",
            )


def _print_work(work: WorkTable, terminal: Terminal) -> None:
    """What each dispatch took: those that took most, all of them if more is asked for."""
    ranked = sorted(work.rows, key=lambda r: -r.largest)
    shown = work.rows if terminal.verbose else ranked[:_LARGEST]
    which = "all" if len(shown) == len(work.rows) else f"the {len(shown)} that took most of"
    table = _table(
        f"{work.unit.capitalize()} by kernel call: {which} {len(work.rows)}",
        "kernel call",
        "ONNX nodes",
        "kernel",
        "largest core",
        "all cores",
        "MACs",
        f"{work.unit} / MAC",
        "share",
        optional=("kernel", "ONNX nodes", "all cores", "MACs"),
    )
    for column in (1, 2):
        table.columns[column].justify = "left"
    for row in shown:
        table.add_row(
            Text(f"{row.ordinal} {row.symbol}"),
            Text(_nodes(row.nodes)),
            Text(row.kernel),
            f"{row.largest:,}",
            f"{row.total:,}",
            f"{row.macs:,}" if row.macs else "",
            "" if row.per_mac is None else f"{row.per_mac:.2f}",
            f"{work.share(row):.1%}",
        )
    terminal.out.print(table)
    total = sum(row.total for row in work.rows)
    macs = sum(row.macs for row in work.rows)
    per_mac = f", {total / macs:.2f} for each of {macs:,} multiply-accumulates" if macs else ""
    terminal.line(
        f"{work.critical:,} {work.unit} on the largest core of each call ({work.elapsed:,} from start to end, waiting included), "
        f"{total:,} on all{per_mac}"
    )
    used = [
        f"{used:,}" for used, size in zip(work.stack_used, work.stack_bytes, strict=True) if size
    ]
    if used:
        terminal.line(
            f"stacks of {max(work.stack_bytes):,} bytes, used by each core: {', '.join(used)}"
        )


def _nodes(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" +{len(names) - 2}" if len(names) > 2 else "")


def _work_json(work: WorkTable) -> dict[str, Any]:
    return {
        "unit": work.unit,
        "elapsed": work.elapsed,
        "critical": work.critical,
        "stack_bytes": list(work.stack_bytes),
        "stack_used": list(work.stack_used),
        "dispatches": [
            {
                **asdict(row),
                "largest": row.largest,
                "total": row.total,
                "per_mac": row.per_mac,
                "share": work.share(row),
            }
            for row in work.rows
        ],
    }


def verification_json(result: Verification) -> dict[str, Any]:
    """The same as data; infinities become null."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
        return value

    return {
        "schema": "qfold-verification",
        "version": 2,
        "model": result.model,
        "ok": result.ok,
        "factor": result.factor,
        "outputs": [plain({**asdict(o), "ratio": o.ratio, "ok": o.ok}) for o in result.outputs],
        "dispatches": [plain({**asdict(d), "ok": d.ok}) for d in result.dispatches],
        "audit": [plain({**asdict(a), "ok": a.ok}) for a in result.audit],
        "work": None if result.work is None else plain(_work_json(result.work)),
        "approximates": result.approximates,
        "approximation": None
        if result.approximation is None
        else [plain(asdict(c)) for c in result.approximation],
    }
