"""The failure that qfold answers: a float kernel reads the bytes of an int8 weight, and every check passes.

It is planted at each level, on a weight whose bytes read as floats are plausible numbers, so that nothing crashes and no NaN
gives it away. Each test says who catches it: the verifier, the selection, the printer, the C compiler, the audit, the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, StringAttr, TensorType, f32
from xdsl.utils.exceptions import PassFailedException, VerifyException
from xdsl.utils.test_value import create_ssa_value

from qfold.backend.build import BuildDirectory, BuildError, Built, compile_directory
from qfold.backend.c.emit import emit
from qfold.backend.c.program import NotLevel3
from qfold.backend.c.reader import read_program
from qfold.backend.files import write_directory
from qfold.backend.riscv.dot_product import DotProducts
from qfold.dialects import qkernel, qmm
from qfold.dialects.element_types import i8
from qfold.frontend import load_model
from qfold.targets import HOST, Kernel
from qfold.tools.audit import AuditResult, Objects, audit
from qfold.tools.driver import Compilation, Options, compile_loaded
from qfold.transforms.qmm_select_kernels import select_kernels
from tests.tools.clusters import built, integer_model, lie, matmul_model, needs_spike
from tests.tools.clusters import compiled as compiled_for

K, N = 64, 32
SYMBOL = f"dequant_matmul_f32_i8_kn_axis_4x{K}x{N}"


def poisoned_weight() -> np.ndarray:
    """int8 [K, N] whose bytes are K * N / 4 floats around 1."""
    floats = np.random.default_rng(0).standard_normal(K * N // 4).astype("<f4")
    return floats.view(np.int8).reshape(K, N)


@pytest.fixture
def compiled() -> Compilation:
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s"], ["f"], "dequantize", axis=1),
            helper.make_node("MatMul", ["x", "f"], ["y"], "matmul"),
        ],
        "poisoned",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, K])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, N])],
        [
            numpy_helper.from_array(poisoned_weight(), "w"),
            numpy_helper.from_array(np.linspace(0.01, 0.02, N, dtype=np.float32), "s"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return compile_loaded(load_model(model.SerializeToString()), Options())


def kernel_function(compilation: Compilation) -> func.FuncOp:
    (function,) = (
        op
        for op in compilation.kernels.ops
        if isinstance(op, func.FuncOp) and op.sym_name.data == SYMBOL
    )
    return function


def build(
    compilation: Compilation, edit: Callable[[dict[str, str]], None] | None = None
) -> tuple[Built, BuildDirectory]:
    """Compiles the generated sources, after `edit` has changed some of them."""
    files = emit(compilation.kernels)
    if edit is not None:
        texts = {n: b.decode() for n, b in files.items() if n.endswith((".c", ".h"))}
        before = dict(texts)
        edit(texts)
        assert texts != before
        files |= {n: t.encode() for n, t in texts.items()}
    scratch = BuildDirectory()
    source = scratch.path / "source"
    write_directory(source, files)
    return compile_directory(source, HOST, output=scratch.path, extra_cflags=["-g"]), scratch


def audited(compilation: Compilation, built: Built) -> dict[str, AuditResult]:
    results = audit(compilation.kernels, compilation.facts, Objects(*built.objects), HOST)
    return {r.check: r for r in results}


def test_the_poison_is_plausible():
    floats = poisoned_weight().reshape(-1).view("<f4")
    assert np.all(np.isfinite(floats)) and 0.5 < np.abs(floats).mean() < 1.5


def test_unharmed_the_build_passes(compiled: Compilation):
    built, scratch = build(compiled)
    assert all(r.ok for r in audited(compiled, built).values())
    scratch.close()


# In IR


def test_a_float_matmul_on_int8_tensors_is_caught_by_the_verifier():
    a = create_ssa_value(TensorType(f32, [4, K]))
    w = create_ssa_value(TensorType(i8, [K, N]))
    with pytest.raises(VerifyException, match=r"qmm\.matmul reads f32, got tensor<64x32xi8>"):
        qmm.MatmulOp(a, w).verify()


def test_a_float_kernel_on_int8_memory_is_caught_by_the_verifier():
    a, w, y = (
        create_ssa_value(MemRefType(t, s)) for t, s in ((f32, [4, K]), (i8, [K, N]), (f32, [4, N]))
    )
    with pytest.raises(VerifyException, match=r"qkernel\.matmul reads f32, got memref<64x32xi8>"):
        qkernel.MatmulOp(a, w, y).verify()


def test_a_call_of_a_float_kernel_with_int8_memory_is_caught_by_the_verifier(compiled: Compilation):
    function = kernel_function(compiled)
    types = [
        MemRefType(f32, t.get_shape(), t.layout, t.memory_space)
        for t in function.function_type.inputs.data
        if isinstance(t, MemRefType)
    ]
    floats = func.FuncOp.external("float_matmul", types, [])
    compiled.kernels.body.block.insert_op_before(floats, function)
    (call,) = (
        op
        for op in compiled.kernels.walk()
        if isinstance(op, func.CallOp) and op.callee.string_value() == SYMBOL
    )
    compiled.kernels.verify()
    call.properties["callee"] = type(call.callee)("float_matmul")
    with pytest.raises(VerifyException, match="memref<64x32xi8"):
        compiled.kernels.verify()


# In the selection table


def test_a_table_without_an_int8_kernel_is_caught_by_the_selection(compiled: Compilation):
    only_floats = replace(
        HOST,
        kernels=(
            Kernel(
                "c.matmul",
                "qkernel.dequant_matmul",
                {n: frozenset({"f32"}) for n in ("a", "w", "scale", "row_sum", "y")},
            ),
            *(k for k in HOST.kernels if k.op != "qkernel.dequant_matmul"),
        ),
    )
    with pytest.raises(PassFailedException, match=r"c\.matmul: w is one of f32, not i8") as error:
        select_kernels(compiled.kernels, only_floats)
    assert "matmul" in str(error.value) and "ONNX node" in str(error.value)


def test_a_table_that_lies_about_a_float_kernel_is_caught_by_the_printer(compiled: Compilation):
    (row,) = HOST.kernels_of("qkernel.dequant_matmul")
    lying = replace(HOST, kernels=(replace(row, name="c.matmul"), *HOST.kernels))
    select_kernels(compiled.kernels, lying)
    assert kernel_function(compiled).attributes["qmm.kernel"] == StringAttr("c.matmul")
    with pytest.raises(NotLevel3, match=r"kernel c\.matmul was selected for .* does not implement"):
        emit(compiled.kernels)


def test_a_kernel_set_by_hand_is_caught_by_the_audit(compiled: Compilation):
    built, scratch = build(compiled)
    kernel_function(compiled).attributes["qmm.kernel"] = StringAttr("c.matmul")
    failed = {c: r for c, r in audited(compiled, built).items() if not r.ok}
    assert list(failed) == ["kernels were written for their operand types"]
    assert "'c.matmul', which was not written for it" in failed.popitem()[1].problems[0]
    scratch.close()


# In the generated C


def _as_float(text: str) -> str:
    assert "const int8_t *restrict w" in text
    return text.replace("const int8_t *restrict w", "const float *restrict w")


def test_a_float_prototype_is_caught_by_the_compiler(compiled: Compilation):
    def edit(texts: dict[str, str]) -> None:
        texts["kernels.h"] = _as_float(texts["kernels.h"])

    with pytest.raises(BuildError, match=r"(?i)incompatible|conflicting"):
        build(compiled, edit)


def test_a_float_kernel_is_caught_by_the_compiler(compiled: Compilation):
    """The prototype and the definition agree with each other: the accessor's type is what they disagree with."""

    def edit(texts: dict[str, str]) -> None:
        for name in ("kernels.h", "kernels.c"):
            texts[name] = _as_float(texts[name])

    with pytest.raises(BuildError, match=r"network\.c(.|\n)*incompatible"):
        build(compiled, edit)


def test_a_float_kernel_and_a_cast_are_caught_by_the_audit(compiled: Compilation):
    """With a cast in the call everything compiles, runs, and is wrong: the types in the object code tell."""

    def edit(texts: dict[str, str]) -> None:
        for name in ("kernels.h", "kernels.c"):
            texts[name] = _as_float(texts[name])
        (weight,) = (
            w for w in read_program(compiled.kernels).weights if w.weight.element_type == i8
        )
        accessor = f"net_{weight.symbol}"
        texts["network.c"] = texts["network.c"].replace(
            f"{accessor}(net)", f"(const float *)(const void *){accessor}(net)"
        )

    built, scratch = build(compiled, edit)
    failed = {c: r for c, r in audited(compiled, built).items() if not r.ok}
    assert list(failed) == ["compiled parameter types are the manifest's"]
    (problem,) = failed.popitem()[1].problems
    assert problem == (
        f"{SYMBOL} takes (float*, float*, float*, float*) in the object code, "
        "the manifest says (float*, int8_t*, float*, float*)"
    )
    scratch.close()


# In the machine code of a cluster


@pytest.mark.parametrize("rows", [8, 2], ids=["packed", "raw"])
def test_a_generator_of_float_kernels_is_caught_on_the_elf(
    rows: int, monkeypatch: pytest.MonkeyPatch
):
    """
    The assembly reads the int8 weight by float loads. The C around it says `const int8_t *`, so that the compiler is content, and
    types, calls and constants are right: disassembly tells, and what the simulator counted.
    """
    needs_spike()
    compilation = compiled_for(matmul_model(rows, K, N, zero_point=False), "spike")
    lie(monkeypatch, 4, "f32")
    with built(compilation) as made:
        assert all(r.ok for r in made.audited())
        problems = {check: r.problems for check, r in made.proven().items() if not r.ok}
    disassembly = "kernels load weights as what they are, by disassembly"
    counters = "kernels loaded every weight as what it is, by the simulator's counters"
    assert set(problems) == {disassembly, counters}
    text = "has a weight of i8 but no lb or p.lb: it loads by lw or p.lw"
    assert text in problems[disassembly][0]
    assert f"executed 0 lb or p.lb for {K * N:,} weights of i8" in problems[counters][0]
    if rows == 8:
        # Packing reads nothing but the weight.
        assert problems[disassembly][1].endswith("but all it reads is i8")


SPIKE_DOTS = "integers are multiplied by the dot products of their types, by disassembly"
SPIKE_PRODUCTS = "every product of integers was computed, by the simulator's counters"
SPIKE_FLOATS = "kernels on integers hold no float instruction, by disassembly"


def proven_problems(compilation: Compilation) -> dict[str, tuple[str, ...]]:
    with built(compilation) as made:
        assert all(r.ok for r in made.audited())
        return {check: r.problems for check, r in made.proven().items() if not r.ok}


def test_a_product_of_bytes_of_the_wrong_signedness_is_caught_on_the_elf(
    monkeypatch: pytest.MonkeyPatch,
):
    """uint8 by int8 with the instruction for int8 by int8: right for every activation below 128."""
    needs_spike()
    compilation = compiled_for(integer_model(4, K, N), "spike")
    monkeypatch.setattr(DotProducts, "kind", "sp")
    problems = proven_problems(compilation)
    assert set(problems) == {SPIKE_DOTS, SPIKE_PRODUCTS}
    (text,) = problems[SPIKE_DOTS]
    assert "multiplies ui8 by i8 but has no pv.dotusp.b or pv.sdotusp.b" in text
    assert text.endswith("its dot products are pv.dotsp.b or pv.sdotsp.b")
    assert f"for {4 * K // 4 * N:,} words of ui8 by i8" in problems[SPIKE_PRODUCTS][0]


def test_a_product_of_bytes_as_floats_is_caught_on_the_elf(monkeypatch: pytest.MonkeyPatch):
    """Four bytes of an activation and of a weight, loaded as words as they should be, but multiplied as one float each."""
    needs_spike()
    compilation = compiled_for(integer_model(4, K, N), "spike")
    monkeypatch.setattr(DotProducts, "first", lambda _, b, a, w: b.fmul(a, w))
    monkeypatch.setattr(DotProducts, "next", lambda _, b, total, a, w: b.fmadd(total, a, w))
    problems = proven_problems(compilation)
    assert set(problems) == {SPIKE_DOTS, SPIKE_PRODUCTS, SPIKE_FLOATS}
    assert problems[SPIKE_DOTS][0].endswith("its dot products are nothing")
    assert "has integers only, but" in problems[SPIKE_FLOATS][0]
