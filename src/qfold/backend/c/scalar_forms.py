"""How ops on scalars are written in C: infix operators, and functions of the runtime."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith, math
from xdsl.ir import Operation

MATH: dict[type[Operation], str] = {
    math.AbsFOp: "qf_absf",
    math.CeilOp: "qf_ceilf",
    math.CopySignOp: "qf_copysignf",
    math.ErfOp: "qf_erff",
    math.ExpOp: "qf_expf",
    math.ExpM1Op: "qf_expm1f",
    math.FloorOp: "qf_floorf",
    math.Log1pOp: "qf_log1pf",
    math.LogOp: "qf_logf",
    math.PowFOp: "qf_powf",
    math.RoundEvenOp: "qf_roundevenf",
    math.RoundOp: "qf_roundf",
    math.RsqrtOp: "qf_rsqrtf",
    math.SqrtOp: "qf_sqrtf",
    math.TanhOp: "qf_tanhf",
    math.TruncOp: "qf_truncf",
    arith.MaximumfOp: "qf_maximumf",
    arith.MaxnumfOp: "qf_maxnumf",
    arith.MinimumfOp: "qf_minimumf",
    arith.MinnumfOp: "qf_minnumf",
}
"""Op on f32 -> function of qfold_math.h."""

MATH_F64: dict[type[Operation], str] = {
    math.AbsFOp: "qf_absd",
    math.RoundEvenOp: "qf_roundevend",
    arith.MaximumfOp: "qf_maximumd",
    arith.MaxnumfOp: "qf_maxnumd",
    arith.MinimumfOp: "qf_minimumd",
    arith.MinnumfOp: "qf_minnumd",
}
"""Op on f64 -> function of qfold_int.h."""

FLOAT_INFIX: dict[type[Operation], str] = {
    arith.AddfOp: "+",
    arith.SubfOp: "-",
    arith.MulfOp: "*",
    arith.DivfOp: "/",
}
"""Op on f32 or f64 -> operator."""

INTEGER: dict[type[Operation], str] = {
    arith.AddiOp: "add",
    arith.SubiOp: "sub",
    arith.MuliOp: "mul",
    arith.DivSIOp: "divs",
    arith.DivUIOp: "divu",
    arith.FloorDivSIOp: "floordivs",
    arith.CeilDivSIOp: "ceildivs",
    arith.CeilDivUIOp: "ceildivu",
    arith.RemSIOp: "rems",
    arith.RemUIOp: "remu",
    arith.ShLIOp: "shl",
    arith.ShRSIOp: "shrs",
    arith.ShRUIOp: "shru",
    arith.MaxSIOp: "maxs",
    arith.MinSIOp: "mins",
    arith.MaxUIOp: "maxu",
    arith.MinUIOp: "minu",
    math.AbsIOp: "abs",
}
"""Op on signless integers -> `qf_<name>_iN` of qfold_int.h."""

ON_FOUR_BITS = (arith.MaxSIOp, arith.MinSIOp, arith.MaxUIOp, arith.MinUIOp)
"""Those of them that are the same on a sign-extended int8_t as on the four bits in it."""

BOOL_INFIX: dict[type[Operation], str] = {
    # modulo 2: a sum is xor, a product is and; as unsigned the larger is or, as signed (true is -1) the smaller is
    arith.AddiOp: "!=",
    arith.SubiOp: "!=",
    arith.MuliOp: "&&",
    arith.MaxUIOp: "||",
    arith.MinUIOp: "&&",
    arith.MaxSIOp: "&&",
    arith.MinSIOp: "||",
    arith.AndIOp: "&&",
    arith.OrIOp: "||",
    arith.XOrIOp: "!=",
}
"""Op on i1 -> operator on `bool`."""

BITS: dict[type[Operation], str] = {arith.AndIOp: "&", arith.OrIOp: "|", arith.XOrIOp: "^"}
"""Op on wider integers -> operator."""

CMPI = ("==", "!=", "<", "<=", ">", ">=", "<", "<=", ">", ">=")
"""By predicate; from 6 on the operands are unsigned."""

CMPF: tuple[Callable[[str, str], str], ...] = (
    lambda a, b: "false",
    lambda a, b: f"{a} == {b}",
    lambda a, b: f"{a} > {b}",
    lambda a, b: f"{a} >= {b}",
    lambda a, b: f"{a} < {b}",
    lambda a, b: f"{a} <= {b}",
    lambda a, b: f"{a} < {b} || {a} > {b}",
    lambda a, b: f"{a} == {a} && {b} == {b}",
    lambda a, b: f"!({a} < {b} || {a} > {b})",
    lambda a, b: f"!({a} <= {b})",
    lambda a, b: f"!({a} < {b})",
    lambda a, b: f"!({a} >= {b})",
    lambda a, b: f"!({a} > {b})",
    lambda a, b: f"{a} != {b}",
    lambda a, b: f"{a} != {a} || {b} != {b}",
    lambda a, b: "true",
)
"""By predicate: ordered ones are false on a NaN, unordered ones true."""
