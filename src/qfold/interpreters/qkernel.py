"""Implementations of `qkernel`: the contractions of `qmm` on memrefs, written in place."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import f32
from xdsl.interpreter import Interpreter, PythonValues, impl, register_impls

from qfold.dialects import qkernel
from qfold.dialects.contraction import (
    EpilogueOperation,
    ints,
    shape_of,
    type_of,
    weight_bias,
)
from qfold.interpreters.contractions import (
    Dequant,
    Window,
    as_image,
    conv,
    dequant_conv,
    dequant_matmul,
    epilogue,
    multiply,
    pack,
    row_sum,
    scaled_matmul,
    swap_last,
    unpack,
    window_sum,
)
from qfold.interpreters.integers import Integers, quant_conv, quant_matmul, storage_of
from qfold.interpreters.packed_integers import (
    as_bytes,
    packed_quant_matmul,
    window_matrix,
)
from qfold.interpreters.qmm import first, groups_of, matmul_weight, window_from
from qfold.interpreters.scalar import DomainFunctions
from qfold.interpreters.values import Array, Value, map_parts
from qfold.ir.panels import in_panels


@register_impls
class QkernelFunctions(DomainFunctions):
    """`qkernel`."""

    def _finish(
        self,
        interpreter: Interpreter,
        op: EpilogueOperation,
        total: Value,
        groups: dict[str, tuple[Value, ...]],
    ) -> PythonValues:
        self.domain.store(
            groups["y"][0], epilogue(interpreter, op, total, groups["epilogue_operands"])
        )
        return ()

    def _exact(self, values: tuple[Value, ...]) -> Array | None:
        value = first(values)
        return None if value is None else self.domain.exact(value)

    @impl(qkernel.MatmulOp)
    def run_matmul(
        self, interpreter: Interpreter, op: qkernel.MatmulOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        (a,), (b,) = groups["a"], groups["b"]
        a = a if op.transpose_a is None else swap_last(a)
        b = b if op.transpose_b is None else swap_last(b)
        return self._finish(interpreter, op, self.domain.contract(f32, a, b), groups)

    @impl(qkernel.DequantMatmulOp)
    def run_dequant_matmul(
        self, interpreter: Interpreter, op: qkernel.DequantMatmulOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        weight = matmul_weight(
            self.domain.exact(groups["w"][0]),
            self.domain.exact(groups["scale"][0]),
            self._exact(groups["zero_point"]),
            op.transpose_b is not None,
            op.block,
        )
        total = dequant_matmul(
            self.domain,
            groups["a"][0],
            weight,
            op.hoisted is not None,
            first(groups["row_sum"]),
            bias=weight_bias(op),
        )
        return self._finish(interpreter, op, total, groups)

    @impl(qkernel.RowSumOp)
    def run_row_sum(
        self, interpreter: Interpreter, op: qkernel.RowSumOp, args: PythonValues
    ) -> PythonValues:
        a, y = args
        self.domain.store(y, row_sum(self.domain, a, None))
        return ()

    @impl(qkernel.PackOp)
    def run_pack(
        self, interpreter: Interpreter, op: qkernel.PackOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        (stored,), (y,) = groups["w"], groups["y"]
        if type_of(op.w).get_element_type() == f32:
            real = stored if op.transpose_b is None else swap_last(stored)
        else:
            scale = self._exact(groups["scale"])
            weight = matmul_weight(
                self.domain.exact(stored),
                # Not used without blocks, where it is rank 0: the kernel leaves the scale to the product.
                np.ones((), np.float32) if scale is None else scale,
                self._exact(groups["zero_point"]),
                op.transpose_b is not None,
                op.block,
            )
            real = weight.centred(self.domain)
            if scale is not None:
                factors = weight.spread(weight.scale).astype(self.domain.dtype(f32))
                real = multiply(self.domain, real, factors)
        self.domain.store(y, pack(real, qkernel.PANEL))
        return ()

    @impl(qkernel.PackedMatmulOp)
    def run_packed_matmul(
        self, interpreter: Interpreter, op: qkernel.PackedMatmulOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        (a,), (p,) = groups["a"], groups["p"]
        scale, zero_point = self._exact(groups["scale"]), self._exact(groups["zero_point"])
        dtype = self.domain.dtype(f32)
        total = scaled_matmul(
            self.domain,
            a,
            unpack(p, shape_of(op.y)[1]),
            None if scale is None else scale.astype(dtype),
            None if zero_point is None else zero_point.astype(dtype),
            first(groups["row_sum"]),
        )
        return self._finish(interpreter, op, total, groups)

    @impl(qkernel.ConvOp)
    def run_conv(
        self, interpreter: Interpreter, op: qkernel.ConvOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        (x,), (w,) = groups["x"], groups["w"]
        window = window_from(op, w.shape[2:])
        total = as_image(conv(self.domain, x, w, window), x, window)
        return self._finish(interpreter, op, total, groups)

    @impl(qkernel.DequantConvOp)
    def run_dequant_conv(
        self, interpreter: Interpreter, op: qkernel.DequantConvOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        x = groups["x"][0]
        w = self.domain.exact(groups["w"][0])

        def per_filter(parameters: Array) -> Array:
            """Rank 0, or one per output channel, so that it broadcasts against the weight."""
            return parameters.reshape(-1, *(1,) * (w.ndim - 1)) if parameters.ndim else parameters

        zero = self._exact(groups["zero_point"])
        total = dequant_conv(
            self.domain,
            x,
            Dequant(
                w,
                per_filter(self.domain.exact(groups["scale"][0])),
                None if zero is None else per_filter(zero),
            ),
            window_from(op, w.shape[2:]),
            op.hoisted is not None,
            first(groups["window_sum"]),
        )
        return self._finish(interpreter, op, total, groups)

    @impl(qkernel.QuantMatmulOp)
    def run_quant_matmul(
        self, interpreter: Interpreter, op: qkernel.QuantMatmulOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        total = quant_matmul(
            self.domain,
            Integers.of(op.a, groups["a"][0], groups["a_zero_point"]),
            Integers.of(op.b, groups["b"][0], groups["b_zero_point"]),
            op.transpose_b is not None,
        )
        return self._finish(interpreter, op, total, groups)

    @impl(qkernel.QuantConvOp)
    def run_quant_conv(
        self, interpreter: Interpreter, op: qkernel.QuantConvOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        (x,), (w,) = groups["x"], groups["w"]
        total = quant_conv(
            self.domain,
            Integers.of(op.x, x, groups["x_zero_point"]),
            Integers.of(op.w, w, groups["w_zero_point"]),
            window_from(op, w.shape[2:]),
            op.padding,
        )
        return self._finish(interpreter, op, total, groups)

    @impl(qkernel.PackBytesOp)
    def run_pack_bytes(
        self, interpreter: Interpreter, op: qkernel.PackBytesOp, args: PythonValues
    ) -> PythonValues:
        w, y = args
        w = as_bytes(self.domain, storage_of(op.w), w if op.transpose_b is None else swap_last(w))
        self.domain.store(y, map_parts(in_panels, w))
        return ()

    @impl(qkernel.PackWindowOp)
    def run_pack_window(
        self, interpreter: Interpreter, op: qkernel.PackWindowOp, args: PythonValues
    ) -> PythonValues:
        x, y = args
        window = Window(
            ints(op.kernel_shape), 1, ints(op.strides), ints(op.pads), ints(op.dilations)
        )
        matrix = window_matrix(self.domain, Integers.of(op.x, x, ()), window, op.padding)
        self.domain.store(y, map_parts(in_panels, matrix))
        return ()

    @impl(qkernel.PackedQuantMatmulOp)
    def run_packed_quant_matmul(
        self, interpreter: Interpreter, op: qkernel.PackedQuantMatmulOp, args: PythonValues
    ) -> PythonValues:
        groups = groups_of(op, args)
        total = packed_quant_matmul(
            self.domain,
            Integers.of(op.a, groups["a"][0], ()),
            Integers.of(op.p, groups["p"][0], ()),
            shape_of(op.y)[1],
        )
        return self._finish(interpreter, op, total, groups)

    @impl(qkernel.WindowSumOp)
    def run_window_sum(
        self, interpreter: Interpreter, op: qkernel.WindowSumOp, args: PythonValues
    ) -> PythonValues:
        x, y = args
        window = window_from(op, ints(op.kernel_shape))
        self.domain.store(y, window_sum(self.domain, x, window))
        return ()
