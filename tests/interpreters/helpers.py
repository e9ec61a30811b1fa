"""Small modules from text."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.context import Context
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.dialects.linalg import Linalg
from xdsl.dialects.math import Math
from xdsl.dialects.memref import MemRef
from xdsl.dialects.scf import Scf
from xdsl.dialects.tensor import Tensor
from xdsl.parser import Parser

from qfold.dialects.pulp import PULP
from qfold.dialects.qkernel import QKERNEL
from qfold.dialects.qmm import QMM


def parse(text: str, *, verify: bool = True) -> ModuleOp:
    """The module that `text` holds."""
    context = Context()
    dialects = (Builtin, Func, Arith, Math, Tensor, Linalg, MemRef, Scf, QMM, QKERNEL, PULP)
    for dialect in dialects:
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    if verify:
        module.verify()
    return module


def random(seed: int, *shape: int) -> npt.NDArray[Any]:
    """Standard normal f32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def elementwise(body: str, inputs: list[str], result: str, n: int) -> ModuleOp:
    """A generic over vectors of `n` elements, whose scalar `body` computes %r : result from %a0, %a1 ..."""
    args = ", ".join(f"%x{i} : tensor<{n}x{t}>" for i, t in enumerate(inputs))
    names = ", ".join(f"%x{i}" for i in range(len(inputs)))
    types = ", ".join(f"tensor<{n}x{t}>" for t in inputs)
    block = ", ".join(f"%a{i} : {t}" for i, t in enumerate(inputs))
    maps = ", ".join(["affine_map<(d0) -> (d0)>"] * (len(inputs) + 1))
    return parse(
        f"""
        func.func @main({args}) -> tensor<{n}x{result}> {{
          %e = tensor.empty() : tensor<{n}x{result}>
          %y = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
              ins({names} : {types}) outs(%e : tensor<{n}x{result}>) {{
          ^bb0({block}, %out : {result}):
            {body}
            linalg.yield %r : {result}
          }} -> tensor<{n}x{result}>
          func.return %y : tensor<{n}x{result}>
        }}
        """
    )
