"""qmm-verify-buffers: what xDSL's own verifiers let pass."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects import get_all_dialects as get_xdsl_dialects
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import PassFailedException

from qfold.dialects import get_all_dialects
from qfold.transforms.qmm_verify_buffers import QmmVerifyBuffersPass


def parse(body: str, arguments: str = "%x: memref<4x6xf32>", outside: str = "") -> ModuleOp:
    """A module that xDSL's verifiers accept."""
    context = Context()
    for name, factory in (get_xdsl_dialects() | get_all_dialects()).items():
        context.register_dialect(name, factory)
    text = f"{outside}\nfunc.func @main({arguments}) {{\n{body}\nfunc.return\n}}"
    module = Parser(context, text).parse_module()
    module.verify()
    return module


def verify(module: ModuleOp) -> None:
    QmmVerifyBuffersPass().apply(Context(), module)


COPY = """
  linalg.generic {indexing_maps = [MAP, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
      ins(IN) outs(OUT) {
  ^bb0(%a: f32, %b: f32):
    %r = arith.addf %a, %a : f32
    linalg.yield %r : f32
  }
"""


def generic(map_: str, source: str, target: str) -> str:
    return COPY.replace("MAP", f"affine_map<{map_}>").replace("IN", source).replace("OUT", target)


GOOD = [
    "%v = memref.collapse_shape %x [[0, 1]] : memref<4x6xf32> into memref<24xf32>",
    "%v = memref.expand_shape %x [[0], [1, 2]] output_shape [4, 2, 3] : memref<4x6xf32> into memref<4x2x3xf32>",
    "%v = memref.subview %x[1, 2] [2, 2] [2, 2] : memref<4x6xf32> to memref<2x2xf32, strided<[12, 2], offset: 8>>",
    """%v = memref.reinterpret_cast %x to offset: [0], sizes: [6, 4], strides: [1, 6]
        : memref<4x6xf32> to memref<6x4xf32, strided<[1, 6]>>""",
]

BAD = {
    "collapse to another size": (
        "%v = memref.collapse_shape %x [[0, 1]] : memref<4x6xf32> into memref<25xf32>",
        r"the groups \[\[0, 1\]\] do not lead from \[4, 6\] to \[25\]",
    ),
    "expand to another size": (
        "%v = memref.expand_shape %x [[0], [1, 2]] output_shape [4, 2, 4] : memref<4x6xf32> into memref<4x2x4xf32>",
        "do not lead",
    ),
    "collapse of a strided view": (
        """%s = memref.subview %x[0, 0] [4, 3] [1, 1] : memref<4x6xf32> to memref<4x3xf32, strided<[6, 1]>>
        %v = memref.collapse_shape %s [[0, 1]] : memref<4x3xf32, strided<[6, 1]>> into memref<12xf32>""",
        "cannot be seen as memref<12xf32> without a copy",
    ),
    "subview out of bounds": (
        "%v = memref.subview %x[1, 2] [4, 2] [1, 1] : memref<4x6xf32> to memref<4x2xf32, strided<[6, 1], offset: 8>>",
        r"elements 1\.\.4 of dimension 0, which has 4",
    ),
    "subview with other strides": (
        "%v = memref.subview %x[1, 2] [2, 2] [1, 1] : memref<4x6xf32> to memref<2x2xf32, strided<[5, 1], offset: 8>>",
        r"the type says \[2, 2\] at 8 \+ strides \[5, 1\], but the view is \[2, 2\] at 8 \+ strides \[6, 1\]",
    ),
    "subview with another offset": (
        "%v = memref.subview %x[1, 2] [2, 2] [1, 1] : memref<4x6xf32> to memref<2x2xf32, strided<[6, 1], offset: 7>>",
        "the type says",
    ),
    "reinterpretation out of bounds": (
        """%v = memref.reinterpret_cast %x to offset: [1], sizes: [6, 4], strides: [1, 6]
        : memref<4x6xf32> to memref<6x4xf32, strided<[1, 6], offset: 1>>""",
        r"elements 1\.\.24 of a buffer of 24",
    ),
    "reinterpretation with other strides": (
        "%v = memref.reinterpret_cast %x to offset: [0], sizes: [6, 4], strides: [1, 6] : memref<4x6xf32> to memref<6x4xf32>",
        "the type says",
    ),
    # xDSL looks at the corners of the iteration space.
    "map out of bounds": (
        "%y = memref.alloc() : memref<4x6xf32>"
        + generic(
            "(d0, d1) -> ((d0 + d1) mod 6, d1)", "%x : memref<4x6xf32>", "%y : memref<4x6xf32>"
        ),
        r"reads 0\.\.5 of dimension 0, which has 4",
    ),
    "negative index": (
        "%y = memref.alloc() : memref<4x6xf32>"
        + generic("(d0, d1) -> (d0 - d1 + 3, d1)", "%x : memref<4x6xf32>", "%y : memref<4x6xf32>"),
        r"reads -2\.\.6 of dimension 0",
    ),
    "update in place that reads other elements": (
        "%y = memref.alloc() : memref<4x4xf32>"
        + generic("(d0, d1) -> (d1, d0)", "%y : memref<4x4xf32>", "%y : memref<4x4xf32>"),
        "updates a buffer in place, but reads other elements",
    ),
    "write to a view that is read too": (
        """%y = memref.alloc() : memref<4x6xf32>
        %s = memref.subview %y[0, 0] [3, 6] [1, 1] : memref<4x6xf32> to memref<3x6xf32>
        %t = memref.subview %y[1, 0] [3, 6] [1, 1] : memref<4x6xf32> to memref<3x6xf32, strided<[6, 1], offset: 6>>"""
        + generic(
            "(d0, d1) -> (d0, d1)",
            "%s : memref<3x6xf32>",
            "%t : memref<3x6xf32, strided<[6, 1], offset: 6>>",
        ),
        "writes elements of .* that it reads as",
    ),
    "write to elements that are one": (
        """%y = memref.alloc() : memref<6xf32>
        %t = memref.reinterpret_cast %y to offset: [0], sizes: [4, 6], strides: [0, 1]
            : memref<6xf32> to memref<4x6xf32, strided<[0, 1]>>"""
        + generic(
            "(d0, d1) -> (d0, d1)", "%x : memref<4x6xf32>", "%t : memref<4x6xf32, strided<[0, 1]>>"
        ),
        "two elements of .* are one in memory",
    ),
    "view beyond the arena": (
        """%o = arith.constant 64 : index
        %v = memref.view %arena[%o][] : memref<128xi8> to memref<17xf32>""",
        r"bytes 64\.\.132 leave the arena of 128 bytes",
    ),
    "unaligned view": (
        """%o = arith.constant 6 : index
        %v = memref.view %arena[%o][] : memref<128xi8> to memref<4xf32>""",
        "offset 6 is not aligned for f32",
    ),
}

ARGUMENTS = '%x: memref<4x6xf32> {qmm.role = "input"}, %arena: memref<128xi8> {qmm.role = "arena"}'


@pytest.mark.parametrize("body", GOOD)
def test_good_views(body: str):
    verify(parse(body))


@pytest.mark.parametrize("name", BAD)
def test_bad_buffers(name: str):
    body, message = BAD[name]
    with pytest.raises(Exception, match=message) as caught:
        verify(parse(body, ARGUMENTS))
    assert not isinstance(caught.value, AssertionError)


FILL = """%zero = arith.constant 0.0 : f32
linalg.fill ins(%zero : f32) outs(VALUE : memref<24xf32>)"""


def test_inputs_are_not_written():
    body = "%v = memref.collapse_shape %x [[0, 1]] : memref<4x6xf32> into memref<24xf32>\n"
    with pytest.raises(PassFailedException, match="writes to an input or a constant"):
        verify(parse(body + FILL.replace("VALUE", "%v"), ARGUMENTS))
    verify(parse(body + FILL.replace("VALUE", "%v"), '%x: memref<4x6xf32> {qmm.role = "output"}'))


GLOBAL = """"memref.global"() <{sym_name = "w", type = memref<24xf32>, initial_value, sym_visibility = "private", constant}>
    {qmm.weight = #qmm.weight<"0xBYTES" : tensor<24xf32>>} : () -> ()"""
GET = "%v = memref.get_global @w : memref<24xf32>\n"


def test_constants_are_not_written():
    outside = GLOBAL.replace("BYTES", "00" * 96)
    verify(parse(GET, outside=outside))
    with pytest.raises(PassFailedException, match="writes to an input or a constant"):
        verify(parse(GET + FILL.replace("VALUE", "%v"), outside=outside))


def test_a_call_does_not_write_a_constant():
    function = (
        f"func.func private @f(%v: memref<24xf32>) {{ {FILL.replace('VALUE', '%v')}\nfunc.return }}"
    )
    outside = GLOBAL.replace("BYTES", "00" * 96) + "\n" + function
    body = GET + "func.call @f(%v) : (memref<24xf32>) -> ()"
    with pytest.raises(PassFailedException, match=r"func\.call: writes to an input or a constant"):
        verify(parse(body, outside=outside))


def test_a_global_is_read_as_what_it_is():
    outside = GLOBAL.replace("BYTES", "00" * 96)
    with pytest.raises(
        PassFailedException, match="read as memref<24xi32>, but defined as memref<24xf32>"
    ):
        verify(parse("%v = memref.get_global @w : memref<24xi32>", outside=outside))


def test_a_global_has_contents_of_its_type():
    outside = GLOBAL.replace("BYTES", "00" * 96).replace(
        "type = memref<24xf32>", "type = memref<24xi32>"
    )
    with pytest.raises(
        PassFailedException, match="global @w is memref<24xi32>, but its contents are"
    ):
        verify(parse("", outside=outside))
