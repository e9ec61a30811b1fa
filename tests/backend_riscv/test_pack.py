"""`riscv.pack`: integer and float weights as panels, to the bit."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from qfold.backend.riscv import pack
from qfold.backend.riscv.generated import CannotGenerate
from qfold.dialects.qkernel import PANEL
from qfold.targets import target_named
from tests.backend_riscv.harness import (
    Array,
    Case,
    generate_case,
    memref,
    needs_qemu,
    run_on_qemu,
    unwritten,
)
from tests.backend_riscv.on_spike import needs_spike, run_on_spike

EXTREMES = {"i8": (-128, 127), "ui8": (0, 255)}
DRIVER = 80
"""Most instructions of the C that finds a core's share."""
DTYPES = {"i8": np.int8, "ui8": np.uint8, "f32": np.float32}


def operands_of(
    k: int, n: int, stored: str, *, transposed: bool = False, zero: str | None = None
) -> dict[str, Array]:
    source = np.random.default_rng([k, n])
    shape = (n, k) if transposed else (k, n)
    if stored == "f32":
        return {
            "w": source.standard_normal(shape).astype(np.float32),
            "y": unwritten(-(-n // PANEL), k, PANEL),
        }
    low, high = EXTREMES[stored]
    w = source.integers(low, high + 1, shape).astype(DTYPES[stored])
    w.flat[0], w.flat[-1] = low, high
    operands: dict[str, Array] = {"w": w}
    if zero is not None:
        z = source.integers(low, high + 1, n if zero == "column" else ()).astype(w.dtype)
        z.flat[0], z.flat[-1] = low, high
        operands["z"] = z
    return operands | {"y": unwritten(-(-n // PANEL), k, PANEL)}


def text_of(operands: dict[str, Array], *, transposed: bool, split: tuple[int, int] | None) -> str:
    types = {name: memref(a) for name, a in operands.items()}
    arguments = ", ".join(f"%{n}: {t}" for n, t in types.items())
    zero = "zero_point(%z) " if "z" in operands else ""
    attributes = f" attributes {{qmm.split = array<i64: {split[0]}, {split[1]}>}}" if split else ""
    return f"""
        func.func @f({arguments}){attributes} {{
          qkernel.pack %w {zero}outs(%y) {"{transpose_b}" if transposed else ""} : ({", ".join(types.values())}) -> ()
          func.return
        }}
    """


def case_of(
    k: int,
    n: int,
    stored: str,
    target: str,
    *,
    transposed: bool = False,
    zero: str | None = None,
    split: tuple[int, int] | None = None,
    name: str = "leaf",
) -> Case:
    operands = operands_of(k, n, stored, transposed=transposed, zero=zero)
    text = text_of(operands, transposed=transposed, split=split)
    return generate_case(text, pack.generate, target_named(target), operands, name)


def packed(operands: dict[str, Array], transposed: bool) -> Array:
    """What numpy makes of it, in 64 bits."""
    w = operands["w"].T if transposed else operands["w"]
    k, n = w.shape
    values = w.astype(np.float64)
    if "z" in operands:
        values = values - operands["z"].astype(np.float64)
    panels = np.zeros((k, -(-n // PANEL) * PANEL))
    panels[:, :n] = values
    return panels.reshape(k, -1, PANEL).transpose(1, 0, 2).astype(np.float32)


SHAPES = [(1, 1), (2, 3), (1, 4), (5, 4), (3, 5), (7, 8), (6, 10), (33, 11), (16, 2100), (2100, 9)]


@needs_qemu
@pytest.mark.parametrize("transposed", [False, True], ids=["kn", "nk"])
def test_every_element(transposed: bool, tmp_path: Path) -> None:
    """All tails, both layouts, every kind of zero point; `w` and `z` end where memory ends. Rows of more than 2 KiB have steps
    that no instruction holds."""
    cases = [
        case_of(
            k,
            n,
            stored,
            "qemu",
            transposed=transposed,
            zero=zero,
            split=split,
            name=f"leaf{i}_{k}_{n}_{j}",
        )
        for i, (k, n) in enumerate(SHAPES)
        for j, (stored, zero, split) in enumerate(
            [
                ("i8", None, None),
                ("i8", "tensor", (2, 3)),
                ("ui8", "column", (1, 4)),
                ("f32", None, (3, 1)),
            ]
        )
        if k * n < 4000 or stored != "f32"
    ]
    for case, result in zip(cases, run_on_qemu(cases, tmp_path), strict=True):
        expected = packed(dict(case.operands), transposed)
        np.testing.assert_array_equal(result["y"], expected, case.kernel.symbol)


@pytest.mark.parametrize("isa", ["zfinx", "f"])
@pytest.mark.parametrize(("stored", "load"), [("i8", "0"), ("ui8", "4")])
def test_loads_of_the_weight(isa: str, stored: str, load: str) -> None:
    """Bytes are loaded as what they are: three by `lb` or `lbu`, one by its post-increment form, none as words or floats."""
    case = case_of(64, 8, stored, f"spike:isa={isa}", zero="column")
    text = case.kernel.assembly
    mnemonic = "lb" if stored == "i8" else "lbu"
    assert len(re.findall(rf"^ *{mnemonic} ", text, re.M)) == 3 + 4
    assert re.findall(r"\.insn i 0xb, (\d)", text) == [load]
    assert not re.search(r"^ *(flw|lw) ", text, re.M)
    assert case.kernel.facts["block_instructions_per_weight"] == (4 if isa == "zfinx" else 4.25)


@pytest.mark.parametrize(
    ("stored", "zero", "isa", "body"),
    [
        ("i8", None, "zfinx", 12),
        ("ui8", "tensor", "zfinx", 16),
        ("f32", None, "zfinx", 8),
        ("i8", None, "f", 13),
    ],
)
def test_loop_is_as_short_as_predicted(stored: str, zero: str | None, isa: str, body: int) -> None:
    case = case_of(64, 8, stored, f"spike:isa={isa}", zero=zero)
    # lp.setup: its end is as many half-words away as the body has, 2 per instruction.
    assert re.findall(r"\.insn i 0x7b, 4, x0, \w+, (\d+)", case.kernel.assembly) == [str(2 * body)]
    assert case.kernel.facts["block_instructions_per_weight"] == body / PANEL


@needs_spike
@pytest.mark.parametrize("target", ["spike", "spike:isa=f"])
def test_on_spike(target: str, tmp_path: Path) -> None:
    """The byte after each operand is in no memory: a load of it traps. Instructions and loads are as many as predicted."""
    machine = target_named(target)
    variants: list[tuple[int, int, str, bool, str | None, tuple[int, int] | None]] = [
        (1, 1, "i8", False, None, None),
        (3, 6, "ui8", False, "column", (2, 3)),
        (7, 9, "i8", True, "tensor", (3, 2)),
        (5, 7, "f32", True, None, (1, 5)),
        (9, 2, "ui8", True, "column", (1, 1)),
        (64, 64, "i8", False, "column", (8, 1)),
        (64, 64, "i8", True, None, (8, 1)),
    ]
    cases = [
        case_of(k, n, stored, target, transposed=nk, zero=zero, split=split, name=f"leaf{i}")
        for i, (k, n, stored, nk, zero, split) in enumerate(variants)
    ]
    runs, profile = run_on_spike(cases, machine, tmp_path)
    for case, run, (_, _, _, nk, _, _) in zip(cases, runs, variants, strict=True):
        np.testing.assert_array_equal(run.outputs["y"], packed(dict(case.operands), nk))
        predicted = case.kernel.facts["instructions"]
        assert isinstance(predicted, int)
        calls = sum(sum(profile[f.symbol].calls) for f in case.kernel.functions)
        assert predicted <= sum(run.work) <= predicted + 20 * calls + DRIVER * machine.cores
    for case in cases[-2:]:
        loads = profile[f"{case.kernel.symbol}_panel4"].loads
        zeros = case.operands["z"].size if "z" in case.operands else 0
        assert loads == {"lb": 3 * 64 * 16 + zeros, "p.lb": 64 * 16}


def test_scales_are_refused_by_node() -> None:
    text = """
        func.func @f(%w: memref<4x4xi8>, %s: memref<2x4xf32>, %y: memref<1x4x4xf32>) {
          qkernel.pack %w scale(%s) outs(%y) {block_size = 2} : (memref<4x4xi8>, memref<2x4xf32>, memref<1x4x4xf32>) -> ()
          func.return
        }
    """
    operands = {
        "w": np.zeros((4, 4), np.int8),
        "s": np.ones((2, 4), np.float32),
        "y": unwritten(1, 4, 4),
    }
    with pytest.raises(CannotGenerate, match="block_size 2: generated packing has no scales"):
        generate_case(text, pack.generate, target_named("spike"), operands)
