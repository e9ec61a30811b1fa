"""The dialect `mini`: one op, a linear layer with an int8 weight and a clamp."""

from __future__ import annotations

from xdsl.dialects.builtin import FloatAttr, TensorType
from xdsl.ir import Dialect
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure

from qfold.dialects.qmm import QuantAttr, WeightAttr


@irdl_op_definition
class LinearOp(IRDLOperation):
    """`y = min(x @ dequantize(weight), limit)`."""

    name = "mini.linear"
    x = operand_def(TensorType)
    weight = prop_def(WeightAttr)
    quant = prop_def(QuantAttr)
    limit = prop_def(FloatAttr)
    y = result_def(TensorType)
    assembly_format = "$x attr-dict `:` functional-type(operands, results)"
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())


MINI = Dialect("mini", [LinearOp])
