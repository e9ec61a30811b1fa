"""What the report says of integers: weights, sums, what flows, where floats are; its numbers beside the model's own arrays."""

from __future__ import annotations

import copy
import hashlib
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from qfold.dialects.element_types import i4, pack, ui4
from qfold.frontend import load_model
from qfold.tools.driver import Options, compile_loaded
from qfold.tools.qfold import main
from qfold.tools.report import Report
from qfold.tools.report_schema import problems_of
from qfold.tools.report_summary import summary_lines
from qfold.tools.report_view import print_report
from tests.frontend.helpers import build, node
from tests.tools.integer_models import F32, Array, Network, mixed, nbits, pact, qdq, qlinear


def reported(network: Network, **options: Any) -> Report:
    model = load_model(network.model.SerializeToString())
    report = compile_loaded(model, Options(**options)).report
    assert problems_of(report) == []
    return report


def weights(report: Report) -> dict[str, dict[str, Any]]:
    """The constants that are quantised weights, by sha256."""
    return {c["sha256"]: c for c in report["constants"] if c["quantized"]}


def sha256(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def by_node(entries: list[dict[str, Any]], node: str) -> dict[str, Any]:
    (found,) = (e for e in entries if node in e["nodes"])
    return found


def bounds(
    weight: Array, zero: int, data: tuple[int, int], data_zero: int, axes: int | tuple[int, ...]
) -> tuple[int, int]:
    """Between which sums of products with `weight` lie, element by element of the outer dimension, added up one by one."""
    low, high = min(0, data[0] - data_zero), max(0, data[1] - data_zero)
    w = weight.astype(np.int64) - zero
    return (
        int(np.minimum(w * low, w * high).sum(axis=axes).min()),
        int(np.maximum(w * low, w * high).sum(axis=axes).max()),
    )


# Weights and sums


def test_qdq_weights_are_those_of_the_model():
    network = qdq()
    report = reported(network)
    found = weights(report)
    w0, w1 = (network.arrays[name] for name in ("w0", "w1"))
    assert set(found) == {sha256(w0), sha256(w1)}
    first, second = found[sha256(w0)], found[sha256(w1)]
    assert (first["element_type"], first["shape"], first["bytes"]) == ("i8", [9, 6], w0.nbytes)
    assert (first["granularity"], first["zero_point"]) == ("axis", [0, 0])
    assert (second["element_type"], second["shape"], second["bytes"]) == ("ui8", [6, 5], w1.nbytes)
    assert (second["granularity"], second["zero_point"]) == ("tensor", [3, 3])
    assert {first["stored"], second["stored"]} == {"as it is"}
    assert "first" in first["users"] and "second" in second["users"]
    totals = report["totals"]
    assert totals["quantized_weight_bytes"] == w0.nbytes + w1.nbytes
    assert totals["multiplied"] == {"matmul": 2, "conv": 0} and not any(totals["fused"].values())
    assert totals["integer_macs"] == totals["macs"] == 4 * 9 * 6 + 4 * 6 * 5
    assert totals["float_copies_of_quantized_weights"] == totals["run_time_dequantizations"] == 0


def test_sums_lie_where_the_weights_say():
    network = qdq()
    products = reported(network)["products"]
    first, second = by_node(products, "first"), by_node(products, "second")
    low, high = bounds(network.arrays["w0"], 0, (0, 255), 128, 0)
    assert (first["k"], first["low"], first["high"]) == (9, low, high)
    assert first["bits"] == max(int(high).bit_length(), int(-low - 1).bit_length()) + 1
    # The largest product is -128 * -128.
    assert first["largest_k"] * 128 * 128 < 2**31 <= (first["largest_k"] + 1) * 128 * 128
    low, high = bounds(network.arrays["w1"], 3, (0, 255), 0, 0)
    assert (second["k"], second["low"], second["high"]) == (6, low, high)
    assert (first["left"], first["right"], first["result"]) == ("ui8", "i8", "ui8")
    assert second["result"] == "f32" and second["dispatch"] != first["dispatch"]


def test_qlinear_convolutions():
    network = qlinear()
    report = reported(network)
    found = weights(report)
    w, v = network.arrays["w"], network.arrays["v"]
    assert set(found) == {sha256(w), sha256(v)}
    # One scale for each output channel, which only the multipliers of the result show.
    assert found[sha256(w)]["granularity"] == "axis" and found[sha256(v)]["granularity"] == "tensor"
    assert found[sha256(w)]["zero_point"] == [0, 0] and found[sha256(v)]["zero_point"] == [120] * 2
    conv, point = (by_node(report["products"], name) for name in ("conv", "point"))
    assert (conv["op"], conv["k"]) == ("qmm.quant_conv", 18)
    assert (conv["low"], conv["high"]) == bounds(w, 0, (0, 255), 10, (1, 2, 3))
    assert (point["low"], point["high"]) == bounds(v, 120, (0, 255), 10, (1, 2, 3))
    assert report["islands"] == [] and report["totals"]["not_fused"] == 0
    totals = report["totals"]
    assert totals["integer_tensors"] == totals["tensors"] == 4
    assert totals["integer_tensor_bytes"] == totals["tensor_bytes"] == 50 + 100 + 16 + 12
    assert [t["name"] for t in report["tensors"]] == ["x", "c", "p", "y"]


def test_requant_shift_narrows_what_it_declares():
    network = pact()
    report = reported(network)
    narrow = network.arrays["v"].astype(np.int8)
    assert set(weights(report)) == {sha256(narrow)}
    islands = {i["node"]: i["reason"] for i in report["islands"]}
    assert set(islands) == {"conv", "shift_b"}
    assert islands["conv"].startswith("reads the input 'x', which is f32; --input-type")
    assert islands["shift_b"] == "reads what 'conv' computes in f32"
    (b,) = (t for t in report["tensors"] if t["role"] == "inner")
    assert (b["name"], b["element_type"], b["shape"]) == ("b", "ui8", [1, 4, 4, 4])


def test_with_a_declared_input_nothing_is_a_float():
    network = pact()
    model = load_model(network.model.SerializeToString())
    from qfold.dialects.element_types import ui8

    report = compile_loaded(model, Options(input_types={"x": ui8})).report
    assert problems_of(report) == [] and report["islands"] == []
    w, v = (network.arrays[n].astype(np.int8) for n in ("w", "v"))
    assert set(weights(report)) == {sha256(w), sha256(v)}
    assert [t["element_type"] for t in report["tensors"]][:2] == ["ui8", "ui8"]


def test_blocks_of_four_bits():
    network = nbits()
    report = reported(network)
    nibbles = network.arrays["w"].reshape(5, -1)
    q = np.stack([nibbles & 15, nibbles >> 4], -1).reshape(5, -1)[:, :24]
    zeros = np.stack([network.arrays["z"] & 15, network.arrays["z"] >> 4], -1).reshape(5, -1)
    (weight,) = weights(report).values()
    signed = pack((q.astype(np.int16) - 8).astype(np.int8), i4)
    assert weight["sha256"] == hashlib.sha256(signed).hexdigest()
    assert weight["stored"] == "sign bit flipped" and weight["granularity"] == "block"
    assert weight["zero_point"] == [int(zeros[:, :2].min()), int(zeros[:, :2].max())]
    assert weight["bytes"] == len(pack(q, ui4)) == 60
    assert report["products"] == [] == report["islands"]
    assert report["totals"]["fused"]["matmul"] == 1 and report["totals"]["integer_macs"] == 0


def test_products_of_integers_beside_products_of_floats():
    network = mixed()
    report = reported(network)
    totals = report["totals"]
    assert totals["multiplied"]["matmul"] == totals["fused"]["matmul"] == 1
    assert (totals["integer_macs"], totals["macs"]) == (3 * 8 * 6, 3 * 8 * (6 + 7))
    assert set(weights(report)) == {sha256(network.arrays["w"]), sha256(network.arrays["v"])}
    statuses = {n["name"]: n["status"] for n in report["nodes"]}
    assert statuses["integers"] == statuses["floats"] == "fused"
    (e,) = (t for t in report["tensors"] if t["name"] == "e")
    assert e["element_type"] == "f32" and e["float_reason"] == "read by MatMul (floats)"
    lines = "\n".join(summary_lines(report))
    assert "products of integers: 1 matmul, 0 convolutions: 46.2 % of all" in lines
    assert "fused with a dequantised weight: 1 matmul, 0 convolutions, 0 gathers" in lines


# Floats


def test_what_flows_and_where_floats_are():
    report = reported(qdq())
    # Without the largest element of each row, which the softmax may find in a call of its own.
    tensors = [t for t in report["tensors"] if len(t["shape"]) == 2]
    assert [(t["name"], t["role"], t["element_type"], t["shape"]) for t in tensors] == [
        ("x", "input", "f32", [4, 9]),
        ("xq", "inner", "ui8", [4, 9]),
        ("rq", "inner", "ui8", [4, 6]),
        ("pq", "inner", "ui8", [4, 6]),
        ("y", "output", "f32", [4, 5]),
    ]
    first, second = (by_node(report["products"], n)["dispatch"] for n in ("first", "second"))
    x, xq, rq, pq, y = tensors
    assert x["producers"] == [] == y["consumers"] and x["consumers"] == xq["producers"] == [0]
    assert xq["consumers"] == rq["producers"] == [first]
    assert pq["consumers"] == y["producers"] == [second]
    (island,) = report["islands"]
    assert set(rq["consumers"]) | set(pq["producers"]) <= set(island.pop("dispatches"))
    assert island == {
        "node": "softmax",
        "op_type": "Softmax",
        "reason": "no integer form of Softmax in the model",
    }
    notes = {n["name"]: n["notes"] for n in report["nodes"] if n["notes"]}
    assert list(notes) == ["softmax"] and "f32 before a quantise" in notes["softmax"][0]
    assert report["totals"]["not_fused"] == 0


def test_a_product_that_could_not_be_fused_is_no_note():
    """A float beside integers: the matmul stays in floats, and the report says so."""
    arrays = {"s": np.array(0.1, F32), "z": np.array(0, np.uint8)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q"),
        node("DequantizeLinear", ["xq", "s", "z"], ["xf"], "dq"),
        node("Transpose", ["x"], ["t"], "t", perm=[1, 0]),
        node("MatMul", ["xf", "t"], ["y"], "matmul"),
    ]
    report = reported(Network(build(nodes, {"x": (F32, (3, 8))}, ["y"], arrays), arrays))
    (entry,) = (n for n in report["nodes"] if n["name"] == "matmul")
    assert entry["status"] == "not_fused" and not entry["notes"]
    assert "an operand of f32 beside one of integers" in entry["reasons"][0]
    assert report["totals"]["not_fused"] == sum(n["status"] == "not_fused" for n in report["nodes"])


def test_dynamic_quantisation_says_why_a_tensor_is_a_float():
    rng = np.random.default_rng(5)
    arrays = {
        "w": rng.integers(-128, 128, (8, 6)).astype(np.int8),
        "v": rng.integers(-128, 128, (6, 7)).astype(np.int8),
    }
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["a", "as", "az"], "quantize"),
        node("MatMulInteger", ["a", "w", "az"], ["m"], "first"),
        node("Cast", ["m"], ["f"], "cast", to=1),
        node("Mul", ["f", "as"], ["r"], "scale"),
        node("DynamicQuantizeLinear", ["r"], ["b", "bs", "bz"], "again"),
        node("MatMulInteger", ["b", "v", "bz"], ["y"], "second"),
    ]
    report = reported(Network(build(nodes, {"x": (F32, (3, 8))}, ["y"], arrays), arrays))
    reasons = {t["name"]: t["float_reason"] for t in report["tensors"] if t["shape"] == [3, 6]}
    assert reasons["r"] == "quantised at run time"
    # Scales and zero points are arithmetic, but no tensors that flow.
    assert {i["node"] for i in report["islands"]} <= {"scale"}
    assert report["totals"]["tensors"] == sum(bool(t["shape"]) for t in report["tensors"])


def weight_only(n: int) -> Network:
    """x [3, 8] by a dequantised int8 [8, n]."""
    rng = np.random.default_rng(6)
    arrays = {"w": rng.integers(-128, 128, (8, n)).astype(np.int8), "s": np.array(0.1, F32)}
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["f"], "dq"),
        node("MatMul", ["x", "f"], ["y"], "matmul"),
    ]
    return Network(build(nodes, {"x": (F32, (3, 8))}, ["y"], arrays), arrays)


def test_activations_that_an_option_quantises_are_counted():
    network = weight_only(32)
    report = reported(network, dynamic_activations=True)
    assert report["totals"]["run_time_quantized"] == report["totals"]["multiplied"]["matmul"] == 1
    assert set(weights(report)) == {sha256(network.arrays["w"])}
    text = "activations of 1 product are quantised at run time: an approximation"
    assert text in summary_lines(report)
    exact = reported(network)
    assert exact["totals"]["run_time_quantized"] == 0
    assert not any("quantised at run time" in line for line in summary_lines(exact))


def test_activations_that_stay_floats_in_spite_of_the_option_say_why():
    report = reported(weight_only(2), dynamic_activations=True)
    (notes,) = (n["notes"] for n in report["nodes"] if n["name"] == "matmul")
    assert len(notes) == 1 and notes[0].startswith("none: found an activation with 2 products")
    lines = summary_lines(report)
    assert "no activations are quantised at run time: nothing is approximated" in lines
    assert not any("an approximation" in line for line in lines)
    assert report["totals"]["run_time_quantized"] == 0 and report["totals"]["fused"]["matmul"] == 1


# The schema and the view


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda r: r["products"][0].update(dispatch=99), "names a dispatch that does not exist"),
        (lambda r: r["tensors"][1].update(producers=[7]), "names a dispatch that does not exist"),
        (lambda r: r["tensors"].pop(), "report.totals.tensors is"),
        (lambda r: r["tensors"][1].update(bytes=1), "tensor_bytes is"),
        (lambda r: r["islands"][0].update(node="nobody"), "'nobody' is no node"),
        (lambda r: r["islands"][0].pop("reason"), "reason is missing"),
        (lambda r: r["constants"][0].update(quantized=False), "says how it is quantised"),
        (lambda r: r["totals"].update(quantized_weight_bytes=1), "quantized_weight_bytes is 1"),
        (lambda r: r["totals"].update(integer_macs=10**9), "integer_macs is more than"),
        (lambda r: r["products"][0].update(requantize="f16"), "'f16', not one of"),
    ],
)
def test_the_schema_catches_what_does_not_agree(edit: Any, problem: str):
    changed = copy.deepcopy(reported(qdq()))
    edit(changed)
    assert any(problem in found for found in problems_of(changed)), problems_of(changed)


def shown(report: Report) -> str:
    stream = StringIO()
    print_report(report, Console(file=stream, width=140))
    return stream.getvalue()


def test_the_view_of_integers():
    report = reported(qdq())
    text, totals = shown(report), report["totals"]
    floats = 4 * (4 * 9 + 4 * 5)
    share = 1 - floats / totals["tensor_bytes"]
    assert (
        f"integers: {totals['tensors'] - 2} of {totals['tensors']} tensors ({100 * share:.0f} % of bytes); "
        "float islands: Softmax (softmax)"
    ) in text
    assert "sums of products take at most 19 of 32 bits (second)" in text
    assert "per tensor, zero point 3" in text and "per channel, zero point 0" in text
    assert "no integer form of Softmax in the model" in text
    assert "ui8 x i8 -> ui8" in text and "fused, integers" in text
    # Nodes that only quantise or dequantise are in the rows of what they belong to.
    assert "dq_w0f" not in text and "that quantise or dequantise, which are part" in text
    assert all(len(line) <= 140 for line in text.splitlines())


def test_the_view_of_floats_has_no_tables_of_integers():
    text = shown(reported(nbits()))
    for words in ("Products of integers", "Tensors between", "Float islands", "integers:"):
        assert words not in text


def test_report_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "model.onnx").write_bytes(qlinear().model.SerializeToString())
    out = str(tmp_path / "out")
    assert main(["compile", str(tmp_path / "model.onnx"), "-o", out]) == 0
    assert "float islands: none" in capsys.readouterr().out
    assert main(["report", out]) == 0
    assert "2 convolutions: 100 % of all multiply-accumulates" in capsys.readouterr().out
