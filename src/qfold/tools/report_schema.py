"""The structure of `report.json`, as data, and a check against it. docs/report.md says what the fields mean."""

from __future__ import annotations

from typing import Any, cast

VERSION = 3
"""Of reports that this version of qfold writes and reads."""

Schema = Any
"""A type, a tuple of alternatives, a one-element list (of anything), a dictionary of fields, or one of the classes below."""


class MappingOf:
    """Any keys, each with a value of one schema."""

    def __init__(self, value: Schema):
        self.value = value


class OneOf:
    """One of a few strings."""

    def __init__(self, *values: str):
        self.values = values


class OrNull:
    """Something of one schema, or null."""

    def __init__(self, value: Schema):
        self.value = value


_TEXT_OR_NULL = (str, type(None))

_TENSOR = {
    "name": str,
    "element_type": str,
    "shape": [int],
    "scale": (float, type(None)),
    "zero_point": (int, type(None)),
    "layout": (str, type(None)),
    "note": (str, type(None)),
}

_OPERAND = {"name": str, "type": str, "c_type": str, "written": bool}

_NUMBER_OR_NULL = (int, type(None))

_ISA = {"name": str, "march": str, "float_registers": OneOf("x", "f"), "xpulpv2": bool}

_GENERATED = {
    "functions": [
        {"symbol": str, "registers": int, "saved": int, "frame_bytes": int, "code_bytes": int}
    ],
    "facts": MappingOf((str, int, float, bool, list, dict, type(None))),
}

REPORT_SCHEMA: Schema = {
    "schema": OneOf("qfold-report"),
    "version": int,
    "qfold": str,
    "model": str,
    "target": str,
    "machine": {"cores": int, "isa": OrNull(_ISA)},
    "options": MappingOf(bool),
    "dims": MappingOf(int),
    "inputs": [_TENSOR],
    "outputs": [_TENSOR],
    "nodes": [
        {
            "name": str,
            "op_type": _TEXT_OR_NULL,
            "domain": _TEXT_OR_NULL,
            "status": OneOf("fused", "not_fused", "lowered", "folded"),
            "hoisted": bool,
            "reasons": [str],
            "notes": [str],
            "ir_ops": [{"op": str, "count": int}],
            "dispatches": [int],
            "kernels": [str],
            "macs": int,
            "weight_bytes": int,
        }
    ],
    "dispatches": [
        {
            "ordinal": int,
            "symbol": str,
            "kernel": str,
            "op": str,
            "nodes": [str],
            "staged": bool,
            "unstaged_reason": _TEXT_OR_NULL,
            "operands": [{**_OPERAND, "constant": _TEXT_OR_NULL}],
            "calls": [{"kernel": str, "count": int}],
            "transfers": {"count": int, "bytes_in": int, "bytes_out": int},
            "l1_bytes": int,
            "macs": int,
            "iterations": int,
            "weight_bytes": int,
        }
    ],
    "kernels": [
        {
            "symbol": str,
            "kernel": str,
            "op": str,
            "calls": int,
            "operands": [_OPERAND],
            "split": [int],
            "macs": int,
            "iterations": int,
            "generated": OrNull(_GENERATED),
        }
    ],
    "constants": [
        {
            "symbol": str,
            "sha256": str,
            "bytes": int,
            "element_type": str,
            "shape": [int],
            "quantized": bool,
            "granularity": OrNull(OneOf("tensor", "axis", "block")),
            "zero_point": OrNull([int]),
            "stored": _TEXT_OR_NULL,
            "users": [str],
        }
    ],
    "products": [
        {
            "nodes": [str],
            "dispatch": _NUMBER_OR_NULL,
            "op": OneOf("qmm.quant_matmul", "qmm.quant_conv"),
            "left": str,
            "right": str,
            "result": str,
            "k": int,
            "low": int,
            "high": int,
            "bits": int,
            "largest_k": int,
            "requantize": OrNull(OneOf("i32", "mulhi", "i64", "f64", "f32")),
        }
    ],
    "tensors": [
        {
            "name": str,
            "role": OneOf("input", "output", "inner"),
            "element_type": str,
            "shape": [int],
            "bytes": int,
            "producers": [int],
            "consumers": [int],
            "float_reason": _TEXT_OR_NULL,
        }
    ],
    "islands": [{"node": str, "op_type": str, "dispatches": [int], "reason": str}],
    "memory": [
        {
            "level": int,
            "name": str,
            "size": _NUMBER_OR_NULL,
            "arena_bytes": int,
            "lower_bound_bytes": int,
            "weight_bytes": int,
            "stack_bytes": int,
            "reserved_bytes": int,
            "buffers": [
                {"offset": int, "bytes": int, "first": int, "last": int, "name": _TEXT_OR_NULL}
            ],
        }
    ],
    "totals": {
        "onnx_nodes": int,
        "ir_ops": int,
        "dispatches": int,
        "staged": int,
        "transfers": int,
        "transfer_bytes": int,
        "fused": {"matmul": int, "conv": int, "gather": int},
        "multiplied": {"matmul": int, "conv": int},
        "not_fused": int,
        "float_copies_of_quantized_weights": int,
        "run_time_dequantizations": int,
        "macs": int,
        "integer_macs": int,
        "weight_bytes": int,
        "quantized_weight_bytes": int,
        "tensors": int,
        "integer_tensors": int,
        "tensor_bytes": int,
        "integer_tensor_bytes": int,
        "run_time_quantized": int,
        "arena_bytes": int,
    },
}


def _name(kind: type) -> str:
    names: dict[type, str] = {
        str: "a string",
        int: "an integer",
        float: "a number",
        bool: "true or false",
        list: "a list",
        dict: "an object",
    }
    return names.get(kind, "null")


def _check(value: Any, schema: Schema, path: str, found: list[str]) -> None:
    match schema:
        case MappingOf():
            if not isinstance(value, dict):
                found.append(f"{path} is not an object")
                return
            for key, inner in cast("dict[str, Any]", value).items():
                _check(inner, schema.value, f"{path}.{key}", found)
        case OrNull():
            if value is not None:
                _check(value, schema.value, path, found)
        case OneOf():
            if value not in schema.values:
                found.append(f"{path} is {value!r}, not one of {', '.join(schema.values)}")
        case list():
            if not isinstance(value, list):
                found.append(f"{path} is not a list")
                return
            for index, inner in enumerate(cast("list[Any]", value)):
                _check(inner, cast("list[Schema]", schema)[0], f"{path}[{index}]", found)
        case dict():
            fields = cast("dict[str, Schema]", schema)
            if not isinstance(value, dict):
                found.append(f"{path} is not an object")
                return
            entries = cast("dict[str, Any]", value)
            found.extend(f"{path}.{key} is missing" for key in fields if key not in entries)
            found.extend(f"{path}.{key} is unknown" for key in entries if key not in fields)
            for key, inner in fields.items():
                if key in entries:
                    _check(entries[key], inner, f"{path}.{key}", found)
        case _:
            kinds = cast("tuple[type, ...]", schema if isinstance(schema, tuple) else (schema,))
            # bool is a subclass of int, and true is no count.
            right = type(value) in kinds
            if not right:
                found.append(f"{path} is {value!r}, not {' or '.join(map(_name, kinds))}")


def _version(report: Any) -> Any:
    """What a report says it is; of something else the version that it should be."""
    if isinstance(report, dict):
        return cast("dict[str, Any]", report).get("version", VERSION)
    return VERSION


def problems_of(report: Any) -> list[str]:
    """What is wrong with the structure of a report, and with the references inside of it; empty when nothing is."""
    found: list[str] = []
    version = _version(report)
    if version != VERSION:
        return [f"report.version is {version!r}, not {VERSION}"]
    _check(report, REPORT_SCHEMA, "report", found)
    if found:
        return found
    ordinals = [d["ordinal"] for d in report["dispatches"]]
    symbols = {d["symbol"] for d in report["dispatches"]}
    constants = {c["symbol"] for c in report["constants"]}
    if ordinals != list(range(len(ordinals))):
        found.append(f"report.dispatches are not numbered in order: {ordinals}")
    for node in report["nodes"]:
        if not set(node["dispatches"]) <= set(ordinals) or not set(node["kernels"]) <= symbols:
            found.append(f"node {node['name']!r} names a dispatch or kernel that does not exist")
        if (node["status"] == "not_fused") != bool(node["reasons"]):
            found.append(
                f"node {node['name']!r} is {node['status']} with reasons {node['reasons']}"
            )
    for dispatch in report["dispatches"]:
        for operand in dispatch["operands"]:
            if operand["constant"] is not None and operand["constant"] not in constants:
                found.append(
                    f"dispatch {dispatch['ordinal']} reads an unknown {operand['constant']!r}"
                )
    kernels = {k["symbol"]: k for k in report["kernels"]}
    called = dict.fromkeys(kernels, 0)
    for dispatch in report["dispatches"]:
        macs = 0
        for call in dispatch["calls"]:
            if call["kernel"] not in kernels:
                found.append(f"dispatch {dispatch['ordinal']} calls an unknown {call['kernel']!r}")
                continue
            called[call["kernel"]] += call["count"]
            macs += call["count"] * kernels[call["kernel"]]["macs"]
        if macs != dispatch["macs"]:
            found.append(f"dispatch {dispatch['ordinal']}: macs is not the sum over its calls")
    found += [
        f"kernel {symbol!r} has {kernels[symbol]['calls']} calls, the dispatches make {count}"
        for symbol, count in called.items()
        if kernels[symbol]["calls"] != count
    ]
    found += _flow_problems(report, set(ordinals))
    totals = report["totals"]
    for total, entries, key in (
        ("macs", "dispatches", "macs"),
        ("weight_bytes", "constants", "bytes"),
        ("arena_bytes", "memory", "arena_bytes"),
    ):
        if totals[total] != sum(e[key] for e in report[entries]):
            found.append(f"report.totals.{total} is not the sum over report.{entries}")
    for memory in report["memory"]:
        if memory["lower_bound_bytes"] > memory["arena_bytes"]:
            found.append(f"memory level {memory['level']} is planned below its lower bound")
    return found


def _flow_problems(report: Any, ordinals: set[int]) -> list[str]:
    """What is wrong with the references and sums of what a report says about integers."""
    found: list[str] = []
    named = {n["name"] for n in report["nodes"]}
    for kind, name, calls in (
        *(("products", p["nodes"], [p["dispatch"]]) for p in report["products"]),
        *(("tensors", t["name"], t["producers"] + t["consumers"]) for t in report["tensors"]),
        *(("islands", i["node"], i["dispatches"]) for i in report["islands"]),
    ):
        if not set(calls) - {None} <= ordinals:
            found.append(f"report.{kind}: {name!r} names a dispatch that does not exist")
    for island in report["islands"]:
        if island["node"] not in named:
            found.append(f"report.islands: {island['node']!r} is no node")
    for constant in report["constants"]:
        told = [constant[key] is not None for key in ("granularity", "zero_point", "stored")]
        if told != [constant["quantized"]] * 3:
            found.append(f"constant {constant['symbol']!r} says how it is quantised, or does not")
    shaped = [t for t in report["tensors"] if t["shape"]]
    integers = [t for t in shaped if not t["element_type"].startswith(("f", "bf"))]
    quantized = [c["bytes"] for c in report["constants"] if c["quantized"]]
    totals = report["totals"]
    for total, expected in (
        ("tensors", len(shaped)),
        ("integer_tensors", len(integers)),
        ("tensor_bytes", sum(t["bytes"] for t in shaped)),
        ("integer_tensor_bytes", sum(t["bytes"] for t in integers)),
        ("quantized_weight_bytes", sum(quantized)),
    ):
        if totals[total] != expected:
            found.append(f"report.totals.{total} is {totals[total]}, the entries make {expected}")
    if totals["integer_macs"] > totals["macs"]:
        found.append("report.totals.integer_macs is more than all macs")
    return found
