"""`qmm-quantized-io` and `qmm-nhwc-inputs` on what the frontend makes: the same integers by the interpreter, and less IR."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, f32

from qfold.dialects import qmm
from qfold.dialects.element_types import i8
from qfold.dialects.qmm import QuantAttr
from qfold.interpreters.run import run
from qfold.ir.ports import PortFacts
from qfold.tools.driver import make_context
from qfold.transforms.qmm_nhwc_inputs import QmmNhwcInputsPass
from qfold.transforms.qmm_quantized_io import QmmQuantizedIoPass
from tests.frontend.helpers import import_checked, main_of, ops_of
from tests.networks.onnxruntime_quantizer import NETWORKS, STATIC, Static
from tests.transforms.graphs import Node
from tests.transforms.graphs import module as graph


def facts(module: ModuleOp) -> tuple[PortFacts, PortFacts]:
    """Of the one input and the one output."""
    main = main_of(module)
    assert main.arg_attrs is not None and main.res_attrs is not None
    (x,), (y,) = main.arg_attrs.data, main.res_attrs.data
    return PortFacts.of(x.data), PortFacts.of(y.data)


@pytest.mark.parametrize("method", STATIC, ids=str)
@pytest.mark.parametrize("name", ["mlp", "attention"])
def test_every_static_form(name: str, method: Static) -> None:
    network = NETWORKS[name]
    model = method.apply(network)
    around, bare = import_checked(model), import_checked(model)
    QmmQuantizedIoPass().apply(make_context(), bare)
    layout: Any = None
    if name == "attention":
        QmmNhwcInputsPass().apply(make_context(), bare)
        layout = "NLC"
    bare.verify()
    given, result = facts(bare)
    assert given.quant is not None and result.quant is not None
    assert (given.note, result.note, given.layout) == (None, None, layout)
    for kind in (qmm.QuantizeOp, qmm.DequantizeOp):
        assert len(ops_of(bare, kind)) == len(ops_of(around, kind)) - 1
    (x,) = network.inputs.values()
    x = x.copy()
    x.reshape(-1)[:4] = np.nan, np.inf, -np.inf, 1e9
    want = np.asarray(run(around, [x])[0])
    quantized = given.quant.quantize(x)
    if layout:
        quantized = np.ascontiguousarray(np.moveaxis(quantized, 1, -1))
    got = np.asarray(run(bare, [quantized])[0])
    assert got.dtype.itemsize == 1
    np.testing.assert_array_equal(result.quant.dequantize(got), want)


@pytest.mark.parametrize("cast", [arith.SIToFPOp, arith.UIToFPOp])
def test_a_conversion_of_the_other_signedness_stays(cast: Any) -> None:
    def build(node: Node, x: Any) -> Any:
        return node("Cast").elementwise([x], f32, lambda b, e: b(cast, e[0], f32))

    module = graph(build, (4,), types=[i8])
    x = np.array([-128, -1, 0, 127], np.int8)
    before = np.asarray(run(module, [x])[0])
    QmmQuantizedIoPass().apply(make_context(), module)
    module.verify()
    after = np.asarray(run(module, [x])[0])
    assert after.dtype == (np.int8 if cast is arith.SIToFPOp else np.float32)
    np.testing.assert_array_equal(after, before)


def test_several_views_of_an_input() -> None:
    """A chain of views to a quantise, and one that nothing reads: none of them keeps the float alive."""
    quant = QuantAttr.get(i8, 0.5, 3)

    def build(node: Node, x: Any) -> Any:
        builder = node("Transpose")
        turned = builder.transpose(x, [2, 0, 1])
        builder.reshape(builder.reshape(turned, (4, 6)), (24,))
        flat = builder.reshape(turned, (24,))
        return node("QuantizeLinear").insert(qmm.QuantizeOp(flat, quant)).result

    module = graph(build, (2, 3, 4))
    x = np.random.default_rng(0).normal(0, 30, (2, 3, 4)).astype(np.float32)
    before = np.asarray(run(module, [x])[0])
    QmmQuantizedIoPass().apply(make_context(), module)
    module.verify()
    assert not ops_of(module, qmm.QuantizeOp)
    np.testing.assert_array_equal(np.asarray(run(module, [quant.quantize(x)])[0]), before)


def test_once_is_enough() -> None:
    module = import_checked(STATIC[0].apply(NETWORKS["mlp"]))
    QmmQuantizedIoPass().apply(make_context(), module)
    once = str(module)
    QmmQuantizedIoPass().apply(make_context(), module)
    assert str(module) == once
