"""Convolutions whose padding is a stored integer: every form of the printer, against numpy in int64."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import IntegerType, ModuleOp
from xdsl.utils.exceptions import VerifyException

from qfold.backend.run import build_module
from qfold.dialects import qmm
from qfold.dialects.element_types import i4, i8, ui8
from qfold.dialects.integer_operands import zero_point_type
from qfold.interpreters import run
from qfold.ir.builder import TensorBuilder
from qfold.transforms.convert_qmm_to_linalg import ConvertQmmToLinalgPass
from qfold.transforms.pipelines import compile_pipeline, run_passes
from tests.backend.level3 import SANITIZED
from tests.execution.quantized_cases import Suite, constant, conv, integers
from tests.transforms.graphs import Node
from tests.transforms.graphs import module as graph


def add(
    suite: Suite,
    name: str,
    rng: np.random.Generator,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    types: tuple[IntegerType, IntegerType],
    padding: int,
    *,
    w_zero: int | None = None,
    **window: Any,
) -> None:
    rank = len(x_shape) - 2
    window = {
        "strides": [1] * rank,
        "pads": [1] * 2 * rank,
        "dilations": [1] * rank,
        "groups": 1,
    } | window
    data, weight = types
    x, w = integers(rng, data, *x_shape), integers(rng, weight, *w_shape)
    pads = window["pads"]
    margins = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    whole = np.pad(x, margins, constant_values=padding)

    def build(builder: TensorBuilder, *args: Any) -> Any:
        zero = None if w_zero is None else constant(builder, w_zero, zero_point_type(weight))
        op = qmm.QuantConvOp(
            args[0], constant(builder, w, weight), w_zero_point=zero, pad_value=padding, **window
        )
        return builder.insert(op).result

    expected = conv(whole, w, {**window, "pads": [0] * 2 * rank}, 0, w_zero or 0)
    suite.add(name, [(data, x)], build, [expected])


@cache
def suite() -> Suite:
    s, rng = Suite(), np.random.default_rng(7)
    add(s, "gathered", rng, (2, 5, 9, 7), (6, 5, 3, 3), (ui8, i8), 255)
    add(s, "few", rng, (1, 5, 9, 7), (3, 5, 3, 3), (i8, i8), -128, w_zero=100)
    add(s, "depthwise", rng, (1, 6, 8, 9), (6, 1, 3, 3), (i8, i8), -5, groups=6)
    add(
        s,
        "depthwise_strided",
        rng,
        (2, 4, 8, 9),
        (8, 1, 3, 3),
        (ui8, ui8),
        7,
        groups=4,
        strides=[2, 2],
    )
    add(s, "line", rng, (2, 3, 11), (4, 3, 3), (ui8, i8), 128, pads=[1, 2], strides=[2])
    add(s, "line_few", rng, (2, 3, 300), (2, 3, 5), (i8, i4), 127, pads=[4, 0], dilations=[2])
    add(s, "dilated", rng, (1, 4, 10, 11), (8, 2, 3, 2), (i8, i4), 127, strides=[2, 3],
        pads=[1, 1, 0, 2], dilations=[2, 1], groups=2)  # fmt: skip
    add(s, "beyond", rng, (1, 2, 3, 3), (3, 2, 2, 2), (ui8, i8), 77, pads=[3, 3, 3, 3])
    add(s, "one_pixel", rng, (1, 3, 1, 1), (2, 3, 3, 3), (i8, i8), 1)
    add(s, "columns_only", rng, (1, 3, 1, 9), (4, 3, 1, 3), (i8, i8), 1, pads=[0, 1, 0, 1])
    add(s, "rows_only", rng, (1, 3, 9, 4), (3, 3, 3, 1), (i8, i8), -1, pads=[2, 0, 1, 0])
    add(s, "around_a_pixel", rng, (1, 3, 2, 2), (5, 3, 1, 1), (ui8, ui8), 9, w_zero=200)
    add(s, "no_pads", rng, (1, 3, 5, 5), (5, 3, 3, 3), (ui8, i8), 9, pads=[0, 0, 0, 0])
    return s


@cache
def compiled(target: str) -> ModuleOp:
    module = suite().module()
    context = Context()
    context.load_dialect(Arith)
    run_passes(context, module, compile_pipeline(target), verify_each=True)
    return module


@pytest.mark.parametrize("level", ["tensors", "generics", "kernels"])
def test_interpreted(level: str) -> None:
    module = suite().module() if level != "kernels" else compiled("host")
    arrays = suite().arrays()
    if level == "generics":
        ConvertQmmToLinalgPass().apply(Context(), module)
        arrays = [v.view(np.int8) for v in arrays]
    for (key, y), found in zip(suite().expected().items(), run(module, arrays), strict=True):
        assert np.array_equal(found, y), key


@pytest.mark.parametrize("domain", ["f64", "bounded"])
def test_exact_in_each_domain(domain: Any) -> None:
    for (key, y), found in zip(
        suite().expected().items(),
        run(suite().module(), suite().arrays(), domain=domain),
        strict=True,
    ):
        assert np.array_equal(getattr(found, "value", found), y), key


@pytest.mark.parametrize("target", ["host", "threads"])
def test_compiled(target: str) -> None:
    flags: dict[str, Any] = dict(SANITIZED)
    if target == "threads":
        flags = {"native": False, "extra_cflags": ["-O1", "-fsanitize=undefined"]}
    executable = build_module(compiled(target), **flags)
    found = executable.run(suite().values())
    executable.close()
    for key, y in suite().expected().items():
        assert np.array_equal(found[key], y), key


@pytest.mark.parametrize(
    ("padding", "zero_point", "message"),
    [(-1, False, "pad_value -1 is no element"), (3, True, "not both")],
)
def test_what_padding_cannot_be(padding: int, zero_point: bool, message: str) -> None:
    def build(node: Node, x: Any, w: Any) -> Any:
        builder = node("conv")
        zero = constant(builder, 3, ui8) if zero_point else None
        op = qmm.QuantConvOp(
            x,
            w,
            x_zero_point=zero,
            pad_value=padding,
            strides=[1],
            pads=[1, 1],
            dilations=[1],
            groups=1,
        )
        return builder.insert(op).result

    with pytest.raises(VerifyException, match=message):
        graph(build, (1, 2, 5), (3, 2, 3), types=[ui8, i8]).verify()
