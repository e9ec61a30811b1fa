"""What the compiler knows about a target. Targets are data: `host.py` is one, and a new target is a new module beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MemoryLevel:
    """One memory: the integer that memref types name it by (1 = L1, 2 = L2, 3 = L3), and its size in bytes (None: no limit)."""

    space: int
    name: str
    size: int | None = None
    origin: int | None = None
    """Address of its first byte, where a linker script places sections in it."""


@dataclass(frozen=True)
class Isa:
    """A RISC-V instruction set, as compilers and the kernel generator name it."""

    name: str
    """What `isa=` of a target says."""
    march: str
    """`-march` of clang and GCC. XpulpV2 is not in it: its instructions are written by `.insn`."""
    mabi: str
    zig_cpu: str
    """`-mcpu` of `zig cc`."""
    float_registers: Literal["x", "f"]
    """`x`: float instructions work on the integer registers (Zfinx), 32 registers in all. `f`: a register file of their own."""
    xpulpv2: bool
    """Whether the core has post-increment accesses, hardware loops, and packed dot products."""


ANY_TYPE = frozenset({"*"})
"""For an operand that a kernel takes in any element type."""


@dataclass(frozen=True)
class Kernel:
    """One row of a kernel table: an implementation, and the operand types that it was written for.

    Types are element types as they print (`f32`, `ui4`). Shapes are not part of the choice: a kernel serves every shape.
    """

    name: str
    """What `qmm.kernel` says, and what the backend emits by."""
    op: str
    """The op that it implements: `qkernel.matmul` ..., or one of `linalg.generic`, `linalg.fill`, `memref.copy`."""
    operands: Mapping[str, frozenset[str]] | None = None
    """Every operand that the kernel knows -> the element types it may have. An op with an operand that is not here is not
    for this kernel. None: the kernel is printed from the op itself, and has the op's types (never for a contraction)."""
    strided: frozenset[str] = frozenset()
    """Operands that may have any static strides. All others are dense and row-major, from any offset."""
    epilogue_ops: frozenset[str] | None = None
    """Names of the ops that an epilogue region may hold. None: any. A richer epilogue becomes a loop nest of its own."""
    epilogue_types: frozenset[str] | None = None
    """Types that its values may have. None: any."""
    weight_bias: int = 0
    """What the kernel adds to each weight: for ops that allow it (`qmm.weight_bias`) and nothing else."""
    word_windows: bool = False
    """Whether it multiplies rows of windows as words: for ops that say that it may (`qmm.word_windows`) and nothing else."""
    joins: bool = False
    """Whether it also takes functions of several loop nests, which hand each other buffers and variables."""


@dataclass(frozen=True)
class Toolchain:
    """How C for this target is compiled and run."""

    compilers: tuple[str, ...]
    """Commands to try in order; the environment's CC comes first."""
    flags: tuple[str, ...]
    """Flags of every build, in order. Which contractions of float expressions are allowed is part of the numeric contract."""
    libraries: tuple[str, ...] = ()
    run: tuple[str, ...] = ("{binary}",)
    """The command that runs a binary."""


@dataclass(frozen=True)
class Target:
    """Everything that lowering and code generation ask about a target."""

    name: str
    """What `qmm.target` says: the target and the options it was made with, e.g. `spike:cores=4`."""
    cores: int
    memory: tuple[MemoryLevel, ...]
    default_space: int
    """Where inputs, outputs, weights and the arena are."""
    alignment: int
    """Alignment of every planned buffer and of every constant, in bytes; a power of two."""
    kernels: tuple[Kernel, ...]
    widens_weights_once: bool
    """Whether kernels turn each integer weight into a float once for all rows, and not once per multiply-accumulate. Zero points
    are subtracted there unless they are hoisted, so this says what hoisting saves."""
    toolchain: Toolchain
    unpacked_rows: int | None = None
    """Up to how many rows of a matmul kernels read a stored weight as it is. For more it is packed first: turned into floats,
    zero points subtracted, once for all rows, so that hoisting them saves nothing. None: weights are never packed."""
    unturned_rows: int | None = None
    """Up to how many rows of a product of integers kernels read a constant [K, N] along N; for more they turn it round at each
    call, unless it is stored as [N, K] (`qmm-turn-weights`). None: they never do."""
    inserts_weights: bool = False
    """Whether a matmul of one row may turn 8-bit weights into floats without the float unit, at a larger rounding error
    (`qmm-unsigned-weights`)."""
    isa: Isa | None = None
    """None: that of the machine that compiles."""
    has_f64: bool = True
    """Whether the float unit has double precision. Without, requantisation is in integers where that gives the same."""
    scratchpad: int | None = None
    """The memory space (L1) that dispatches bring their operands to by DMA. None: kernels work where the operands are."""
    stack_bytes: int = 0
    """Stack of each core, in the scratchpad; 0 where the operating system gives one."""
    reserved_bytes: int = 0
    """What the runtime keeps of the scratchpad besides the stacks."""
    cores_per_fpu: int = 1
    """How many cores take turns at one float unit."""
    port: str = "host"
    """The directory of `qfold/runtime/ports` that is linked with generated code."""

    @property
    def is_cluster(self) -> bool:
        """Whether kernels run on all cores at once (each does its share) and generated code needs `qfold_rt.h`."""
        return self.scratchpad is not None

    @property
    def fpus(self) -> int:
        """Float units: core i uses number i modulo so many, as on `pulp-open`, where core i and core i + 4 of 8 share one."""
        return max(1, self.cores // self.cores_per_fpu)

    @property
    def scratchpad_bytes(self) -> int:
        """What tiles may use of the scratchpad: its size less stacks and the runtime's own. `ValueError` without one."""
        if self.scratchpad is None:
            raise ValueError(f"target {self.name} has no scratchpad")
        size = self.level(self.scratchpad).size
        if size is None:
            raise ValueError(f"the scratchpad of target {self.name} has no size")
        return size - self.cores * self.stack_bytes - self.reserved_bytes

    def level(self, space: int) -> MemoryLevel:
        """The memory with that number. `ValueError` when there is none."""
        for level in self.memory:
            if level.space == space:
                return level
        spaces = ", ".join(f"{m.space} ({m.name})" for m in self.memory)
        raise ValueError(f"target {self.name} has no memory space {space}; it has {spaces}")

    def kernels_of(self, op: str) -> tuple[Kernel, ...]:
        """The rows of the table for one op, in order of preference."""
        return tuple(k for k in self.kernels if k.op == op)

    def takes_strided(self, op: str, operand: str) -> bool:
        """Whether every kernel for `op` reads (or writes) that operand with any static strides."""
        rows = self.kernels_of(op)
        return bool(rows) and all(operand in k.strided for k in rows)
