"""That integers are multiplied as what they are: packed dot products of the right signedness, as many as needed, no floats.

Which instruction it has to be follows from the types of the operands alone, how often from their shapes. What there is comes from
the program's own bytes, and from what was counted while it ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qfold.backend.simulators import Profile
from qfold.tools.audit import AuditResult
from qfold.tools.elf import ObjectFile
from qfold.tools.kernel_code import KernelCode, either, proof_result
from qfold.tools.leafs import DotProducts, LeafRecord
from qfold.tools.riscv_code import DOT_PRODUCTS, LOAD_OF, LOADS

_MULTIPLIED = ("a", "p", "x", "w")
"""The operands of products; the others are their epilogue's."""

DISASSEMBLED = "integers are multiplied by the dot products of their types, by disassembly"
COUNTED = "every product of integers was computed, by the simulator's counters"
NO_FLOATS = "kernels on integers hold no float instruction, by disassembly"

_WORDS = LOAD_OF["f32"] - {"flw"}
_PIECES = LOAD_OF["ui16"] | LOAD_OF["ui8"]
"""What the end of a row, or one that is not aligned, is put together of, whatever its signedness."""


def wanted(dots: DotProducts) -> frozenset[str]:
    """The instructions that multiply four bytes of each operand: `sp` both signed, `up` both unsigned, `usp` one of each (The
    PULP RI5CY manual, "Dot product instructions"). The first product of a sum may have nothing to add to."""
    signed = sum(not t.startswith("u") for t in (dots.left, dots.right))
    kind = ("up", "usp", "sp")[signed]
    return frozenset({f"pv.dot{kind}.b", f"pv.sdot{kind}.b"})


def check_dot_products(
    kernels_code: Sequence[KernelCode], linked: ObjectFile, kernels: ObjectFile
) -> AuditResult:
    """By disassembly: the dot products of kernels in assembly are those of their operands' types, and so are their loads."""
    problems: list[str] = []
    looked = 0
    for code in kernels_code:
        dots = code.leaf.dots
        if dots is None or not code.is_generated:
            continue
        found = list(code.instructions(kernels, linked))
        names = {i.mnemonic for i in found} & DOT_PRODUCTS
        looked += sum(i.mnemonic in DOT_PRODUCTS for i in found)
        right = wanted(dots)
        if not names & right:
            problems.append(
                f"{code.leaf.symbol} multiplies {dots.left} by {dots.right} but has no {either(right)}: "
                f"its dot products are {either(names)}"
            )
        elif names - right:
            problems.append(
                f"{code.leaf.symbol} multiplies {dots.left} by {dots.right}, and also by {either(names - right)}"
            )
        loads = {i.mnemonic for i in found if i.mnemonic in LOADS}
        own = LOAD_OF[dots.right] if dots.loads_weights else _WORDS
        if dots.least and not loads & own:
            problems.append(
                f"{code.leaf.symbol} reads {dots.right} by {either(own)}, but loads by {either(loads)}"
            )
        problems += _strange_loads(code.leaf, dots, loads)
    return proof_result(DISASSEMBLED, problems, f"{looked} dot products in the code")


def _strange_loads(leaf: LeafRecord, dots: DotProducts, loads: set[str]) -> Iterator[str]:
    """Loads other than of words, of pieces of rows that are not whole words, and of what the epilogue reads."""
    allowed = set(_WORDS)
    if not dots.whole_words:
        allowed |= _PIECES
    if dots.loads_weights:
        allowed |= LOAD_OF[dots.right]
    for operand in leaf.operands:
        if operand.read and operand.name not in _MULTIPLIED:
            allowed |= LOAD_OF.get(operand.element_type, frozenset())
    strange = loads - allowed
    if strange:
        yield (
            f"{leaf.symbol} loads by {either(strange)}, but reads {dots.left} and {dots.right} four bytes at a time"
        )


def check_counted_dot_products(
    kernels_code: Sequence[KernelCode], kernels: ObjectFile, profile: Profile
) -> AuditResult:
    """By the simulator's counters: one dot product for each element of the output and each word of K, or row of a window (those
    in the padding may be left out), and each packed word loaded."""
    problems: list[str] = []
    total = products = 0
    for code in kernels_code:
        dots = code.leaf.dots
        if dots is None or not code.is_generated:
            continue
        counted = code.dots(profile)
        right = wanted(dots)
        executed = sum(counted[name] for name in right)
        least, most = (n * code.leaf.calls for n in (dots.least, dots.most))
        total += executed
        products += code.leaf.macs * code.leaf.calls
        if not least <= executed <= most or sum(counted.values()) != executed:
            needed = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            problems.append(
                f"{code.leaf.symbol} executed {executed:,} {either(right)} for {needed} words of {dots.left} by {dots.right}; "
                f"all its dot products: {dict(counted)}"
            )
        loads = code.loads(kernels, profile)
        words, packed = sum(loads[name] for name in _WORDS), dots.packed_words * code.leaf.calls
        if words < packed:
            problems.append(
                f"{code.leaf.symbol} loaded {words:,} words, {packed:,} are packed; all its loads: {dict(loads)}"
            )
    return proof_result(COUNTED, problems, f"{total:,} dot products for {products:,} products")


def check_no_floats(
    kernels_code: Sequence[KernelCode], linked: ObjectFile, kernels: ObjectFile
) -> AuditResult:
    """By disassembly: nothing of the float unit in a kernel that has no value of a float type."""
    problems: list[str] = []
    integers = [code for code in kernels_code if not code.leaf.has_floats]
    for code in integers:
        count = sum(i.is_float for i in code.instructions(kernels, linked))
        if count:
            problems.append(f"{code.leaf.symbol} has integers only, but {count} float instructions")
    return proof_result(
        NO_FLOATS, problems, f"{len(integers)} of {len(kernels_code)} kernels have integers only"
    )
