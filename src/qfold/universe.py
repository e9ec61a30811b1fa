"""What stock `xdsl-opt` sees of qfold, through the entry point `xdsl.universe`. Nothing is imported before it is used."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.universe import Universe
from xdsl.utils.frontend import Frontend
from xdsl.utils.target import Target

from qfold.dialects import get_all_dialects
from qfold.transforms import get_all_passes


def get_all_frontends() -> dict[str, Callable[[], type[Frontend]]]:
    """Frontends by the extension of the files that they read."""

    def get_onnx() -> type[Frontend]:
        from qfold.frontend.onnx_frontend import OnnxFrontend

        return OnnxFrontend

    return {"onnx": get_onnx}


def get_all_targets() -> dict[str, Callable[[], type[Target]]]:
    """Targets of `-t`."""

    def get_qfold_c() -> type[Target]:
        from qfold.backend.c.target import QfoldCTarget

        return QfoldCTarget

    def get_riscv_pulp_asm() -> type[Target]:
        from qfold.dialects.riscv_pulp import RISCVPulpAsmTarget

        return RISCVPulpAsmTarget

    return {"qfold-c": get_qfold_c, "riscv-pulp-asm": get_riscv_pulp_asm}


QFOLD_UNIVERSE = Universe(
    all_dialects=get_all_dialects(),
    all_passes=get_all_passes(),
    all_frontends=get_all_frontends(),
    all_targets=get_all_targets(),
)
