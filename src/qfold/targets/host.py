"""The machine that compiles: one core, one memory, C99."""

from qfold.targets.description import ANY_TYPE, Kernel, MemoryLevel, Target, Toolchain

_F32 = frozenset({"f32"})
_WEIGHTS = frozenset({"i8", "ui8", "i4", "ui4", "i16", "ui16"})
_ZERO_POINTS = frozenset({"i8", "ui8", "i16", "ui16"})
# The epilogue is printed into the kernel, in whatever types it computes and stores.
_DATA = frozenset({"i8", "ui8"})
_NARROW = frozenset({"i8", "ui8", "i4", "ui4"})
_STORED = {"epilogue_operands": ANY_TYPE, "y": ANY_TYPE}
_LOOPS = ("linalg.generic", "linalg.fill", "memref.copy")


# Kernels index through the strides of a view, but for what they read once per network.
_STRIDED = frozenset({"a", "b", "x", "y", "row_sum", "window_sum", "epilogue_operands"})

FLAGS = (
    "-std=c99",
    "-O3",
    "-Wall",
    "-Wextra",
    "-Werror",
    # a * b + c is rounded twice, as the IR says, on machines with and without FMA.
    "-ffp-contract=off",
    "-fno-math-errno",
)
"""Of every build of generated C."""

HOST = Target(
    name="host",
    cores=1,
    memory=(MemoryLevel(2, "L2"),),
    default_space=2,
    alignment=64,
    kernels=(
        Kernel("c.matmul", "qkernel.matmul", {"a": _F32, "b": _F32, **_STORED}, strided=_STRIDED),
        Kernel(
            "c.dequant_matmul",
            "qkernel.dequant_matmul",
            {
                "a": _F32,
                "w": _WEIGHTS,
                "scale": _F32,
                "zero_point": _ZERO_POINTS,
                "row_sum": _F32,
                **_STORED,
            },
            strided=_STRIDED,
        ),
        Kernel("c.conv", "qkernel.conv", {"x": _F32, "w": _F32, **_STORED}, strided=_STRIDED),
        Kernel(
            "c.dequant_conv",
            "qkernel.dequant_conv",
            {
                "x": _F32,
                "w": _WEIGHTS,
                "scale": _F32,
                "zero_point": _ZERO_POINTS,
                "window_sum": _F32,
                **_STORED,
            },
            strided=_STRIDED,
        ),
        Kernel(
            "c.quant_matmul",
            "qkernel.quant_matmul",
            {"a": _DATA, "b": _NARROW, "a_zero_point": _DATA, "b_zero_point": _DATA, **_STORED},
            strided=_STRIDED,
        ),
        Kernel(
            "c.quant_conv",
            "qkernel.quant_conv",
            {"x": _DATA, "w": _NARROW, "x_zero_point": _DATA, "w_zero_point": _DATA, **_STORED},
            strided=_STRIDED,
        ),
        Kernel("c.window_sum", "qkernel.window_sum", {"x": _F32, "y": _F32}, strided=_STRIDED),
        # Loop nests are printed from the op itself, whatever its types and strides are.
        *(
            Kernel(
                "c.loops",
                op,
                strided=frozenset({"inputs", "outputs", "source", "destination"}),
                joins=op == "linalg.generic",
            )
            for op in _LOOPS
        ),
    ),
    widens_weights_once=True,
    unturned_rows=4,
    toolchain=Toolchain(
        compilers=("cc", "gcc", "clang"),
        flags=FLAGS,
    ),
)
