"""What a network takes and gives, where the user wants that otherwise than the model has it: integers, and channels last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from qfold.tools.arrays import Array, TensorSpec, input_specs, output_specs
from qfold.tools.errors import ToolError
from qfold.transforms.qmm_nhwc_inputs import LAYOUTS, QmmNhwcInputsPass
from qfold.transforms.qmm_quantized_io import QmmQuantizedIoPass

Layout = Literal["nchw", "nhwc"]
_KNOWN: dict[str, Layout] = {"nchw": "nchw", "nhwc": "nhwc"}
ALL = ""
"""The key of what holds for every input that is not named."""


def parse_layouts(entries: Sequence[str]) -> dict[str, Layout]:
    """`["nhwc", "mask=nchw"]` as `{"": "nhwc", "mask": "nchw"}`. `ToolError` for what is neither, or given twice."""
    layouts: dict[str, Layout] = {}
    for entry in entries:
        name, equals, written = entry.rpartition("=")
        layout = _KNOWN.get(written)
        if layout is None or (equals and not name):
            raise ToolError(
                f"an input layout is given as nhwc, nchw or NAME=nhwc, NAME=nchw; found '{entry}'"
            )
        if name in layouts:
            what = f"of input '{name}'" if name else "of all inputs"
            raise ToolError(f"the layout {what} is given twice")
        layouts[name] = layout
    return layouts


def change_interface(
    module: ModuleOp, context: Context, *, quantized_io: bool, layouts: Mapping[str, Layout]
) -> None:
    """Runs `qmm-quantized-io` and `qmm-nhwc-inputs` as asked for, on what the frontend made.

    `ToolError` for a layout of an input that does not exist; `PassFailedException` for one that cannot be NHWC.
    """
    if quantized_io:
        QmmQuantizedIoPass().apply(context, module)
    ranks = {s.name: len(s.shape) for s in input_specs(module)}
    for name in layouts:
        if name != ALL and name not in ranks:
            raise ToolError(
                f"a layout is given for '{name}', which is no input; inputs are {', '.join(ranks) or 'none'}"
            )
    everywhere = layouts.get(ALL)
    names = [n for n, layout in layouts.items() if n != ALL and layout == "nhwc"]
    if everywhere == "nhwc":
        names += [n for n, rank in ranks.items() if rank in LAYOUTS and n not in layouts]
    # Without any name the pass says what stands against all of them.
    if names or everywhere == "nhwc":
        QmmNhwcInputsPass(tuple(names)).apply(context, module)


def handed_over(array: Array, spec: TensorSpec) -> Array:
    """An array as the model has it, as the network takes it."""
    if spec.layout is not None:
        array = np.moveaxis(array, 1, -1)
    if spec.quant is not None and array.dtype.kind == "f":
        array = spec.quant.quantize(array)
    return np.ascontiguousarray(array)


def interface_notes(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Iterator[str]:
    """What to tell who asked for integers: each float that stayed one, and why."""
    for what, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            if spec.note is not None:
                yield f"{what} '{spec.name}' stays {spec.element_type}: {spec.note}"


def module_notes(module: ModuleOp) -> Iterator[str]:
    """The same of a module at the tensor level."""
    yield from interface_notes(input_specs(module), output_specs(module))
