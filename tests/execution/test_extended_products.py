"""`arith.mulsi_extended`: both halves of products, interpreted and compiled, against Python's integers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType
from xdsl.utils.exceptions import InterpretationError

from qfold.backend.run import build_module
from qfold.dialects.element_types import i32
from qfold.interpreters import run
from qfold.transforms.pipelines import compile_pipeline, run_passes
from tests.backend.level3 import SANITIZED
from tests.execution.quantized_cases import Array, Suite
from tests.execution.test_quantized import context
from tests.transforms.graphs import Node, module

EXTREMES = [-(2**31), -(2**31) + 1, -(2**16), -1, 0, 1, 2**16 - 1, 2**30, 2**31 - 1]


def operands() -> tuple[Array, Array]:
    pairs = np.array([(a, b) for a in EXTREMES for b in EXTREMES])
    free = np.random.default_rng(0).integers(-(2**31), 2**31, (200, 2))
    a, b = np.concatenate([pairs, free]).astype(np.int32).T
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


@cache
def suite() -> Suite:
    """The lower half, the upper one, and both of one product."""
    made = Suite()
    a, b = operands()
    products = [int(x) * int(y) for x, y in zip(a, b, strict=True)]
    upper = np.array([p >> 32 for p in products], np.int64).astype(np.int32)
    lower = np.array([p & 0xFFFFFFFF for p in products], np.uint32).view(np.int32)
    results = {"high": upper, "low": lower, "both": upper ^ lower}

    def body(name: str) -> Any:
        def compute(s: Any, e: Any) -> Any:
            op = s.insert(arith.MulSIExtendedOp(e[0], e[1]))
            return s(arith.XOrIOp, op.low, op.high) if name == "both" else getattr(op, name)

        return lambda builder, *args: builder.elementwise(list(args), i32, compute)

    for name, expected in results.items():
        made.add(name, [(i32, a), (i32, b)], body(name), [expected])
    return made


@pytest.mark.parametrize("domain", ["exact", "f64", "bounded"])
def test_interpreted(domain: Any) -> None:
    results = run(suite().module(), suite().arrays(), domain=domain)
    for (name, y), found in zip(suite().expected().items(), results, strict=True):
        assert np.array_equal(getattr(found, "value", found), y), name


@pytest.mark.parametrize("optimised", [False, True])
def test_compiled(optimised: bool) -> None:
    made = suite().module()
    run_passes(context(), made, compile_pipeline(), verify_each=True)
    executable = build_module(made) if optimised else build_module(made, **SANITIZED)
    found = executable.run(suite().values())
    executable.close()
    for name, y in suite().expected().items():
        assert np.array_equal(found[name], y), name


def test_more_than_32_bits_are_refused() -> None:
    i64 = IntegerType(64)

    def build(node: Node, x: Any) -> Any:
        return node("n").elementwise(
            [x], i64, lambda s, e: s.insert(arith.MulSIExtendedOp(e[0], e[0])).high
        )

    with pytest.raises(InterpretationError, match="no more than 32 bits"):
        run(module(build, (3,), types=[i64]), [np.ones(3, np.int64)])
