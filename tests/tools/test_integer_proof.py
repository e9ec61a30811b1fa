"""Networks of integers, audited and proven: the dot products of the operands' types, the model's bytes, no floats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from xdsl.dialects.builtin import IntegerType

from qfold.backend.build import BuildDirectory, compile_directory
from qfold.backend.c.emit import emit
from qfold.backend.files import write_directory
from qfold.backend.riscv.dot_product import DotProducts
from qfold.backend.simulators import FunctionProfile, Profile
from qfold.dialects.element_types import i4, i8, pack, ui4, ui8
from qfold.dialects.qmm import QuantAttr, WeightAttr
from qfold.frontend import load_model
from qfold.targets import HOST
from qfold.tools.audit import (
    SOFT_DOUBLE,
    AuditResult,
    Objects,
    audit,
    check_integers,
    has_doubles,
)
from qfold.tools.driver import Compilation, Options, compile_loaded
from qfold.tools.elf import ObjectFile
from qfold.tools.leafs import leaf_record
from qfold.tools.manifest import program_of
from qfold.tools.proof_integers import COUNTED, DISASSEMBLED, NO_FLOATS
from qfold.tools.riscv_code import DOT_PRODUCTS, LOADS, instructions
from qfold.tools.stored_weights import StoredWeights
from qfold.tools.tensor_facts import IntegerWeight, float_copies
from qfold.transforms import qmm_pack_weights
from tests.tools.clusters import ClusterBuild, built, compiled, integer_model, needs_spike
from tests.tools.integer_models import Network, depthwise, qdq, qlinear

ROWS, K, N = 5, 16, 10

STORED = "quantised weights are stored as integers, every one of them"
BYTES = "constants hold the bytes of the model"
TYPES = "compiled parameter types are the manifest's"


def failed(results: Mapping[str, AuditResult]) -> dict[str, Sequence[str]]:
    return {check: r.problems for check, r in results.items() if not r.ok}


def code(made: ClusterBuild) -> tuple[str, Counter[str]]:
    """The kernel of packed bytes, and the instructions of its assembly functions."""
    (kernel,) = (
        k for k in made.compilation.report["kernels"] if k["kernel"] == "riscv.packed_quant_matmul"
    )
    found: Counter[str] = Counter()
    with ObjectFile(made.built.binary) as linked:
        for function in kernel["generated"]["functions"]:
            found.update(i.mnemonic for i in instructions(linked.contents(function["symbol"])))
    return kernel["symbol"], found


# What was compiled


@pytest.fixture(scope="module")
def good() -> Iterator[ClusterBuild]:
    needs_spike()
    with built(compiled(integer_model(ROWS, K, N), "spike")) as made:
        yield made


@pytest.mark.parametrize(
    ("left", "right", "kind", "k", "target"),
    [
        ("uint8", "int8", "usp", 13, "spike:cores=3"),
        ("int8", "int8", "sp", 16, "spike:isa=f"),
        ("uint8", "uint8", "up", 7, "spike"),
        ("int8", "uint8", "usp", 1, "spike"),
    ],
)
def test_the_proof_holds(left: str, right: str, kind: str, k: int, target: str):
    needs_spike()
    with built(compiled(integer_model(ROWS, k, 12, left=left, right=right), target)) as made:
        results = made.proven()
        assert not failed(results) and {DISASSEMBLED, COUNTED, NO_FLOATS} <= set(results)
        assert all(r.ok for r in made.audited())
        symbol, found = code(made)
        assert {m for m in found if m in DOT_PRODUCTS} <= {f"pv.dot{kind}.b", f"pv.sdot{kind}.b"}
        # A row that is no whole number of words ends in pieces.
        assert bool({"lbu", "lhu", "p.lbu", "p.lhu"} & set(found)) == (k % 4 != 0)
        assert made.profile is not None
        executed: Counter[str] = Counter()
        for name, function in made.profile.functions.items():
            if name.startswith(symbol):
                executed.update(function.dots)
        assert executed.total() == ROWS * 12 * -(-k // 4)


def windows(padded: bool) -> int:
    """Rows of windows of `depthwise`: three for each output, or those of them that are rows of x."""
    return sum(
        padded or 0 <= row + tap - 1 < 6 for row in range(6) for tap in range(3) for _ in range(7)
    )


def test_the_proof_of_a_depthwise_convolution():
    """A dot product for each row of a window, and each weight loaded as a byte."""
    needs_spike()
    compilation = compiled(depthwise().model, "spike")
    (kernel,) = (k for k in compilation.report["kernels"] if k["op"] == "qkernel.quant_conv")
    assert kernel["kernel"] == "riscv.quant_conv"
    with built(compilation) as made:
        results = made.proven()
        assert not failed(results) and {DISASSEMBLED, COUNTED, NO_FLOATS} <= set(results)
        assert all(r.ok for r in made.audited())
        assert made.profile is not None
        executed: Counter[str] = Counter()
        for name, function in made.profile.functions.items():
            if name.startswith(kernel["symbol"]):
                executed.update(function.dots)
    # Rows of the padding hold zeros, and are left out.
    assert executed.total() == 5 * windows(padded=False)
    assert set(executed) <= {"pv.dotusp.b", "pv.sdotusp.b"}


def test_no_doubles_in_software(good: ClusterBuild):
    """Multipliers are doubles on the host; on a cluster nothing of them is left."""
    assert not has_doubles(good.compilation.kernels)
    with ObjectFile(good.built.binary) as linked:
        assert not [name for name in linked.defined if SOFT_DOUBLE.fullmatch(name)]
    host = compiled(integer_model(ROWS, K, N), "host")
    assert has_doubles(host.kernels)


def test_what_the_audit_says_of_stored_weights(good: ClusterBuild):
    (stored,) = (r for r in good.audited() if r.check == STORED)
    assert stored.ok and stored.detail == "1 packed"


def test_one_constant_may_hold_two_weights(good: ClusterBuild):
    """One as the model has it, the other with its sign bits flipped: each is there, and a third is not."""
    own = np.array([[-64, 3], [127, -128]], np.int8)
    flipped = own.view(np.uint8) ^ 0x80
    held = WeightAttr.from_array(own)
    weights = {
        w.sha256: IntegerWeight(w, "tensor", (0, 0)) for w in (held, WeightAttr.from_array(flipped))
    }
    facts = replace(good.compilation.facts, weights=weights)
    result = check_integers(facts, {"w": held})
    assert result.ok and result.detail == "1 as it is, 1 sign bit flipped"
    other = WeightAttr.from_array(own + np.int8(1))
    facts = replace(
        facts, weights={**weights, other.sha256: IntegerWeight(other, "tensor", (0, 0))}
    )
    (problem,) = check_integers(facts, {"w": held}).problems
    assert other.sha256[:12] in problem


def test_leafs_know_their_words(good: ClusterBuild):
    program = program_of(good.compilation.kernels)
    (dots,) = (d for k in program.kernels if (d := leaf_record(k, 1).dots) is not None)
    assert (dots.left, dots.right) == ("ui8", "i8")
    assert dots.least == dots.most == ROWS * N * K // 4
    assert dots.packed_words == N * K // 4 and dots.whole_words
    assert not any(leaf_record(k, 1).has_floats for k in program.kernels)


# What is wrong


def test_dot_products_that_were_not_executed_are_caught(good: ClusterBuild):
    profile = good.profile
    assert profile is not None
    symbol, _ = code(good)
    block = next(n for n, f in profile.functions.items() if f.dots)
    (name, count), *_ = sorted(profile[block].dots.items(), key=lambda pair: -pair[1])
    for change in ({name: count - 1}, {name: count + 1}, {"pv.sdotsp.b": 1}):
        own = profile[block]
        changed = FunctionProfile(own.calls, own.loads, {**own.dots, **change})
        evidence = replace(good.evidence, profile=Profile({**profile.functions, block: changed}))
        problems = failed(good.proven(evidence))
        assert set(problems) == {COUNTED}
        text = f"for {ROWS * N * K // 4:,} words of ui8 by i8"
        assert problems[COUNTED][0].startswith(symbol) and text in problems[COUNTED][0]


def test_packed_words_that_were_not_loaded_are_caught(good: ClusterBuild):
    profile = good.profile
    assert profile is not None
    few = {
        name: FunctionProfile(f.calls, {"lbu": 9} if f.dots else f.loads, f.dots)
        for name, f in profile.functions.items()
    }
    problems = failed(good.proven(replace(good.evidence, profile=Profile(few))))
    assert set(problems) == {COUNTED}
    assert f"loaded 0 words, {N * K // 4} are packed" in problems[COUNTED][0]


def test_unsigned_products_of_signed_weights_are_caught(monkeypatch: pytest.MonkeyPatch):
    needs_spike()
    compilation = compiled(integer_model(ROWS, K, N), "spike")
    monkeypatch.setattr(DotProducts, "kind", "up")
    with built(compilation) as made:
        problems = failed(made.proven())
    assert set(problems) == {DISASSEMBLED, COUNTED}
    assert "has no pv.dotusp.b or pv.sdotusp.b" in problems[DISASSEMBLED][0]


def test_a_depthwise_convolution_of_the_wrong_signedness_is_caught(monkeypatch: pytest.MonkeyPatch):
    needs_spike()
    compilation = compiled(depthwise().model, "spike")
    monkeypatch.setattr(DotProducts, "kind", "up")
    with built(compilation) as made:
        problems = failed(made.proven())
    assert set(problems) == {DISASSEMBLED, COUNTED}
    assert "multiplies ui8 by i8 but has no pv.dotusp.b" in problems[DISASSEMBLED][0]
    text = f"for {5 * windows(padded=False)} to {5 * windows(padded=True)} words"
    assert text in problems[COUNTED][0]


def test_one_product_of_the_wrong_kind_is_caught(monkeypatch: pytest.MonkeyPatch):
    """All products but the first of each sum are right."""
    needs_spike()
    compilation = compiled(integer_model(ROWS, K, N), "spike")
    wrong, first = DotProducts(True, True), DotProducts.first
    monkeypatch.setattr(DotProducts, "first", lambda _, b, a, w: first(wrong, b, a, w))
    with built(compilation) as made:
        problems = failed(made.proven())
    assert problems[DISASSEMBLED][0].endswith("multiplies ui8 by i8, and also by pv.dotsp.b")
    assert set(problems) == {DISASSEMBLED, COUNTED}


def test_a_pass_that_packs_two_bytes_in_each_others_places_is_caught(
    monkeypatch: pytest.MonkeyPatch,
):
    """The constant is what the module says, and hashes to its own name: only the model tells."""
    in_panels = qmm_pack_weights.in_panels

    def swapped(w: np.ndarray) -> np.ndarray:
        y = np.ascontiguousarray(in_panels(w)).copy()
        flat = y.reshape(-1)
        other = int(np.argmax(flat != flat[0]))
        flat[[0, other]] = flat[[other, 0]]
        return y

    monkeypatch.setattr(qmm_pack_weights, "in_panels", swapped)
    needs_spike()
    compilation = compiled(integer_model(ROWS, K, N), "spike")
    assert not any(c["quantized"] for c in compilation.report["constants"])
    with built(compilation, run=False) as made:
        problems = failed({r.check: r for r in made.audited()})
    assert set(problems) == {STORED}
    assert f"no constant holds the integers of the weight tensor<{K}x{N}xi8>" in problems[STORED][0]


def test_a_byte_of_a_packed_constant_that_changed_on_its_way_is_caught():
    needs_spike()

    def edit(files: dict[str, bytes]) -> None:
        data = bytearray(files["weights.bin"])
        data[5] ^= 1
        files["weights.bin"] = bytes(data)

    with built(compiled(integer_model(ROWS, K, N), "spike"), edit, run=False) as made:
        problems = failed({r.check: r for r in made.audited()})
    assert (
        set(problems) == {BYTES} and "does not hold the bytes of its sha256" in problems[BYTES][0]
    )


# On the host


def host_audit(compilation: Compilation, edits: Mapping[str, str]) -> dict[str, AuditResult]:
    """The audit of a build of generated sources in which texts were replaced."""
    files = emit(compilation.kernels)
    for name in ("kernels.h", "kernels.c", "network.c"):
        text = files[name].decode()
        for old, new in edits.items():
            text = text.replace(old, new)
        files[name] = text.encode()
    scratch = BuildDirectory()
    write_directory(scratch.path / "source", files)
    made = compile_directory(
        scratch.path / "source", HOST, output=scratch.path, extra_cflags=["-g", "-Wno-error"]
    )
    results = audit(compilation.kernels, compilation.facts, Objects(*made.objects), HOST)
    scratch.close()
    return {r.check: r for r in results}


def on_host(network: Network) -> Compilation:
    return compile_loaded(load_model(network.model.SerializeToString()), Options())


@pytest.mark.parametrize("network", [qdq, qlinear], ids=["qdq", "qlinear"])
def test_integers_on_the_host(network):
    results = host_audit(on_host(network()), {})
    assert not failed(results) and results[STORED].detail == "2 as it is"


def test_a_kernel_that_takes_its_weight_to_be_unsigned_is_caught():
    """Casts make the C compiler content: what it compiled says `uint8_t`."""
    edits = {"const int8_t *restrict w,": "const uint8_t *restrict w,"}
    edits |= {"net_w_": "(const void *)net_w_"}
    problems = failed(host_audit(on_host(qlinear()), edits))
    assert set(problems) == {TYPES}
    assert "uint8_t*" in problems[TYPES][0] and "the manifest says" in problems[TYPES][0]


def test_float_copies_of_integer_weights():
    q = np.random.default_rng(0).integers(-128, 128, (6, 5)).astype(np.int8)
    pairs = [(WeightAttr.from_array(q), QuantAttr.get(i8, 1.0))]
    copy = WeightAttr.from_array(np.ascontiguousarray(q.T).astype(np.float32))
    other = WeightAttr.from_array(q.astype(np.float32) + 1)
    assert float_copies(pairs, [copy, other, pairs[0][0]]) == [copy.sha256]


# Forms of weights


def panels(w: np.ndarray) -> np.ndarray:
    """`y[p, s, c, j] = w[4 s + j, 4 p + c]`, element by element."""
    k, n = w.shape
    y = np.zeros((-(-n // 4), -(-k // 4), 4, 4), w.dtype)
    for p, s, c, j in np.ndindex(*y.shape):
        if 4 * s + j < k and 4 * p + c < n:
            y[p, s, c, j] = w[4 * s + j, 4 * p + c]
    return y


def weights_of(array: np.ndarray, storage: IntegerType) -> StoredWeights:
    weight = WeightAttr.from_array(array, storage)
    return StoredWeights({weight.sha256: IntegerWeight(weight, "tensor", (0, 0))})


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (5, 3), (9, 6), (1, 7), (2, 1)])
def test_forms_of_a_matrix_of_bytes(shape: tuple[int, int]):
    q = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    stored = weights_of(q, ui8)
    shifted = (q.astype(np.int16) - 128).astype(np.int8)
    simplest: dict[bytes, str] = {}
    for array, storage, form in (
        (q, ui8, "as it is"),
        (shifted, i8, "sign bit flipped"),
        (q.T, ui8, "transposed"),
        (shifted.T, i8, "sign bit flipped, transposed"),
        (panels(q), ui8, "packed"),
        (panels(q.T), ui8, "packed"),
        (panels(shifted), i8, "packed, sign bit flipped"),
    ):
        # The panels of four columns of four are the transposed matrix itself.
        form = simplest.setdefault(array.tobytes(), form)
        found = stored.find(WeightAttr.from_array(array.reshape(-1), storage))
        assert found is not None and found.form == form
        wrong = array.reshape(-1).copy()
        wrong[-1] ^= 1
        assert stored.find(WeightAttr.from_array(wrong, storage)) is None
    assert stored.find(WeightAttr.from_array(q.astype(np.float32))) is None


def test_a_filter_may_have_its_dimensions_in_another_order():
    q = np.random.default_rng(3).integers(-128, 128, (4, 3, 2, 2)).astype(np.int8)
    stored = weights_of(q, i8)
    found = stored.find(WeightAttr.from_array(np.ascontiguousarray(q.transpose(0, 2, 3, 1))))
    assert found is not None and found.form == "transposed"
    assert stored.find(WeightAttr.from_array(np.ascontiguousarray(q[::-1]))) is None


@pytest.mark.parametrize(("storage", "low"), [(i4, -8), (ui4, 0)])
def test_forms_of_four_bits(storage: IntegerType, low: int):
    q = np.random.default_rng(2).integers(low, low + 16, (5, 3)).astype(np.int8)
    stored = weights_of(q.astype(np.int8 if low else np.uint8), storage)
    other = (q - 8) if storage == ui4 else q + 8
    byte = i8 if storage == i4 else ui8
    for array, type_, form in (
        (q, byte, "a byte each"),
        (panels(q), byte, "packed, a byte each"),
        (other, ui8 if storage == i4 else i8, "sign bit flipped, a byte each"),
        (panels(other.T), i8, "packed, sign bit flipped, a byte each"),
    ):
        raw = array.astype(np.int8).view(np.uint8 if type_ == ui8 else np.int8)
        found = stored.find(WeightAttr.from_array(raw.reshape(-1), type_))
        assert found is not None and found.form == form
    nibbles = WeightAttr.from_array(
        other.astype(np.uint8 if storage == i4 else np.int8), ui4 if storage == i4 else i4
    )
    assert nibbles.raw == pack(other, nibbles.element_type)
    found = stored.find(nibbles)
    assert found is not None and found.form == "sign bit flipped"


def test_loads_of_the_tables_are_loads():
    assert {"lw", "p.lw", "lbu", "p.lhu"} <= LOADS and "pv.sdotusp.b" in DOT_PRODUCTS
