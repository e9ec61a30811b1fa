"""The PULP cluster: cores that share an L1 scratchpad, filled by DMA from L2. One description per place that it runs in.

Sizes and addresses are those of `pulp-open`. Spike's own UART is at the address of L1 there, so that its L1 lies elsewhere.
"""

from dataclasses import replace

from qfold.targets.description import ANY_TYPE, Kernel, MemoryLevel, Target, Toolchain
from qfold.targets.host import FLAGS, HOST
from qfold.targets.isa import PLAIN, ZFINX

KIB = 1024
_F32 = frozenset({"f32"})
_BYTES = frozenset({"i8", "ui8"})
_WEIGHTS = frozenset({"i8", "ui8", "i4", "ui4", "i16", "ui16"})
_ZERO_POINTS = frozenset({"i8", "ui8", "i16", "ui16"})

EPILOGUE_OPS = frozenset(
    {
        "arith.addf",
        "arith.mulf",
        "arith.maximumf",
        "arith.minimumf",
        "arith.maxnumf",
        "arith.minnumf",
    }
)
"""What the generated kernels compute on an accumulator before they store it, besides constants and the yield."""

INTEGER_EPILOGUE_OPS = EPILOGUE_OPS | {
    "arith.addi",
    "arith.subi",
    "arith.muli",
    "arith.mulsi_extended",
    "arith.shli",
    "arith.shrsi",
    "arith.maxsi",
    "arith.minsi",
    "arith.extsi",
    "arith.extui",
    "arith.trunci",
    "arith.sitofp",
    "arith.uitofp",
    "builtin.unrealized_conversion_cast",
}
"""The same, where the accumulator is of integers."""

_STORED = frozenset({"i32", "f32", "i8", "ui8"})
"""What kernels on integers store and load as epilogue operands."""

_PACKED = {
    "a": _F32,
    "p": _F32,
    "scale": _F32,
    "row_sum": _F32,
    "epilogue_operands": _F32,
    "y": _F32,
}

_GENERATED = (
    Kernel("riscv.pack", "qkernel.pack", {"w": _BYTES | _F32, "zero_point": _BYTES, "y": _F32}),
    Kernel(
        "riscv.packed_matmul",
        "qkernel.packed_matmul",
        {**_PACKED, "zero_point": _BYTES},
        epilogue_ops=EPILOGUE_OPS,
    ),
    Kernel(
        "riscv.dequant_matmul",
        "qkernel.dequant_matmul",
        {"a": _F32, "w": _BYTES, "scale": _F32, "zero_point": _BYTES, "row_sum": _F32, "epilogue_operands": _F32, "y": _F32},
        epilogue_ops=EPILOGUE_OPS,
    ),
    Kernel("riscv.row_sum", "qkernel.row_sum", {"a": _F32, "y": _F32}),
    Kernel("riscv.pack_bytes", "qkernel.pack_bytes", {"w": _BYTES, "y": _BYTES}, frozenset({"w"})),
    Kernel("riscv.pack_window", "qkernel.pack_window", {"x": _BYTES, "y": _BYTES}, frozenset({"x"})),
    Kernel(
        "riscv.packed_quant_matmul",
        "qkernel.packed_quant_matmul",
        {"a": _BYTES, "p": _BYTES, "epilogue_operands": _STORED, "y": _STORED},
        strided=frozenset({"a", "epilogue_operands", "y"}),
        epilogue_ops=INTEGER_EPILOGUE_OPS,
        epilogue_types=_STORED,
    ),
    Kernel(
        "riscv.quant_conv",
        "qkernel.quant_conv",
        {"x": _BYTES, "w": _BYTES, "epilogue_operands": _STORED, "y": _STORED},
        strided=frozenset({"x", "epilogue_operands", "y"}),
        epilogue_ops=INTEGER_EPILOGUE_OPS,
        epilogue_types=_STORED,
        word_windows=True,
    ),
)  # fmt: skip
"""Leaf kernels in assembly. Operands are dense."""

INSERTED = replace(
    next(k for k in _GENERATED if k.name == "riscv.dequant_matmul"),
    name="riscv.dequant_matmul_inserti",
    weight_bias=260,
)
"""The row that a target has first when it inserts weights. It adds 256; 4 more are room for the lower bits of pairs."""

_PARALLEL_C = (
    Kernel(
        "c.pack",
        "qkernel.pack",
        {"w": _WEIGHTS | _F32, "zero_point": _ZERO_POINTS, "scale": _F32, "y": _F32},
    ),
    Kernel(
        "c.packed_matmul",
        "qkernel.packed_matmul",
        {**_PACKED, "zero_point": _ZERO_POINTS, "epilogue_operands": ANY_TYPE, "y": ANY_TYPE},
    ),
    Kernel("c.row_sum", "qkernel.row_sum", {"a": _F32, "y": _F32}),
    Kernel(
        "c.pack_bytes",
        "qkernel.pack_bytes",
        {"w": _BYTES | frozenset({"i4", "ui4"}), "y": _BYTES},
        strided=frozenset({"w", "y"}),
    ),
    Kernel(
        "c.pack_window",
        "qkernel.pack_window",
        {"x": _BYTES, "y": _BYTES},
        strided=frozenset({"x", "y"}),
    ),
    Kernel(
        "c.packed_quant_matmul",
        "qkernel.packed_quant_matmul",
        {"a": _BYTES, "p": _BYTES, "epilogue_operands": ANY_TYPE, "y": ANY_TYPE},
        strided=frozenset({"a", "epilogue_operands", "y"}),
    ),
    *HOST.kernels,
)
"""C, each core its share of the outer loops."""

THREADS = Target(
    name="threads",
    cores=8,
    memory=(MemoryLevel(1, "L1", 64 * KIB), MemoryLevel(2, "L2")),
    default_space=2,
    alignment=64,
    kernels=_PARALLEL_C,
    widens_weights_once=True,
    unpacked_rows=4,
    toolchain=replace(HOST.toolchain, libraries=("-lpthread",)),
    scratchpad=1,
    stack_bytes=2 * KIB,
    reserved_bytes=1 * KIB,
    port="threads",
)
"""The cluster's orchestration on threads of the machine that compiles, with kernels in C: for debugging and sanitizers."""

_BARE_METAL = Toolchain(
    compilers=("clang-19", "clang"),
    flags=(
        *FLAGS,
        "-ffreestanding",
        "-fno-builtin-printf",
        "-ffunction-sections",
        "-fdata-sections",
        # zig keeps frame pointers: a register, and four instructions of every function.
        "-fomit-frame-pointer",
    ),
)

SPIKE = Target(
    name="spike",
    cores=8,
    memory=(
        MemoryLevel(1, "L1", 64 * KIB, 0x20000000),
        MemoryLevel(2, "L2", 1536 * KIB, 0x1C010000),
    ),
    default_space=2,
    alignment=16,
    kernels=(*_GENERATED, *_PARALLEL_C),
    widens_weights_once=True,
    unpacked_rows=4,
    toolchain=_BARE_METAL,
    isa=ZFINX,
    has_f64=False,
    scratchpad=1,
    stack_bytes=2 * KIB,
    reserved_bytes=1 * KIB,
    cores_per_fpu=2,
    port="spike",
)
"""Spike with our XpulpV2 extension: counts instructions."""

GVSOC = replace(
    SPIKE,
    name="gvsoc",
    memory=(
        MemoryLevel(1, "L1", 64 * KIB, 0x10000000),
        MemoryLevel(2, "L2", 1536 * KIB, 0x1C010000),
    ),
    port="gvsoc",
)
"""GVSoC's `pulp-open`: counts cycles."""

QEMU = replace(
    SPIKE,
    name="qemu",
    cores=1,
    cores_per_fpu=1,
    memory=(MemoryLevel(1, "L1", 64 * KIB), MemoryLevel(2, "L2", 64 * KIB * KIB)),
    isa=PLAIN,
    port="qemu",
)
"""User-mode qemu-riscv32: the same kernels without XpulpV2, on one core."""

CLUSTERS = (THREADS, SPIKE, GVSOC, QEMU)
