"""A copy between strided memrefs as calls of the DMA: rows of bytes, in as few transfers as there can be."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from xdsl.dialects.builtin import NoneAttr

from qfold.backend.c.layout import Linear, variable
from qfold.backend.c.program import NotLevel3
from qfold.backend.c.text import Writer
from qfold.dialects import pulp
from qfold.dialects.element_types import bit_width
from qfold.ir.layouts import Layout
from qfold.ir.locations import describe_location


@dataclass(frozen=True)
class _Dim:
    extent: int
    source: int
    """Bytes from one to the next."""
    destination: int


@dataclass(frozen=True)
class Transfer:
    """`row_bytes` contiguous bytes, repeated along `dims` from the outermost."""

    row_bytes: int
    dims: tuple[_Dim, ...]
    element_bits: int

    @staticmethod
    def of(op: pulp.DmaStartOp) -> Transfer:
        """`NotLevel3` for rows that are not whole bytes, negative steps, or nothing to copy."""
        source, destination = Layout.of(op.source_type), Layout.of(op.destination_type)
        bits = bit_width(op.source_type.get_element_type())
        bits = max(bits, 8) if bits != 4 else 4  # a bool takes a byte
        steps = zip(source.shape, source.strides, destination.strides, strict=True)
        dims = [(n, a * bits, b * bits) for n, a, b in steps if n != 1]
        row = bits
        while dims and dims[-1][1:] == (row, row):
            row *= dims.pop()[0]
        merged: list[tuple[int, int, int]] = []
        for n, a, b in reversed(dims):
            if merged and (a, b) == tuple(merged[-1][0] * s for s in merged[-1][1:]):
                merged[-1] = (merged[-1][0] * n, *merged[-1][1:])
            else:
                merged.append((n, a, b))
        what = f"{describe_location(op)} from {op.source_type} to {op.destination_type}"
        if 0 in source.shape:
            raise NotLevel3(f"{what} copies nothing")
        if not merged and isinstance(op.destination_type.layout, NoneAttr):
            row += -row % 8  # no view: what is left of the last byte belongs to nobody
        if any(v % 8 for v in (row, *(s for d in merged for s in d[1:]))):
            raise NotLevel3(f"{what} would copy parts of bytes")
        if any(s < 0 for d in merged for s in d[1:]):
            raise NotLevel3(f"{what} goes backwards")
        found = tuple(_Dim(n, a // 8, b // 8) for n, a, b in reversed(merged))
        return Transfer(row // 8, found, bits)

    def print(self, out: Writer, name: str, destination: str, source: str) -> None:
        """Start it and set `name`. Of more than two dimensions, each part is waited for when the next one is started."""
        *outer, rows = self.dims or (None,)
        with ExitStack() as stack:
            moved = [Linear(), Linear()]
            variables: list[str] = []
            for i, dim in enumerate(outer):
                assert dim is not None
                loop = f"part{i}"
                stack.enter_context(out.loop(loop, dim.extent))
                variables.append(loop)
                for j, step in enumerate((dim.destination, dim.source)):
                    moved[j] += variable(loop).scaled(self._elements(step))
            if variables:
                with out.block(f"if ({' + '.join(variables)} > 0)"):
                    out.line(f"qf_dma_wait({name});")
            to, from_ = (
                f"{p} + {m.text()}" if m.terms else p
                for p, m in zip((destination, source), moved, strict=True)
            )
            if rows is None:
                out.line(f"{name} = qf_dma_start({to}, {from_}, {self.row_bytes});")
                return
            strides = f"{rows.destination}, {rows.source}"
            out.line(
                f"{name} = qf_dma_start_2d({to}, {from_}, {self.row_bytes}, {rows.extent}, {strides});"
            )

    def _elements(self, step: int) -> int:
        """Bytes as elements of the C type."""
        return step if self.element_bits == 4 else step * 8 // self.element_bits
