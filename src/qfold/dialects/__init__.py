"""The dialects of qfold, each imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xdsl.ir import Dialect


def get_all_dialects() -> dict[str, Callable[[], Dialect]]:
    """Dialect name -> a function that imports and returns the dialect."""

    def get_pulp() -> Dialect:
        from qfold.dialects.pulp import PULP

        return PULP

    def get_qkernel() -> Dialect:
        from qfold.dialects.qkernel import QKERNEL

        return QKERNEL

    def get_qmm() -> Dialect:
        from qfold.dialects.qmm import QMM

        return QMM

    def get_riscv_pulp() -> Dialect:
        from qfold.dialects.riscv_pulp import RISCV_PULP

        return RISCV_PULP

    def get_riscv_zfinx() -> Dialect:
        from qfold.dialects.riscv_zfinx import RISCV_ZFINX

        return RISCV_ZFINX

    return {
        "pulp": get_pulp,
        "qkernel": get_qkernel,
        "qmm": get_qmm,
        "riscv_pulp": get_riscv_pulp,
        "riscv_zfinx": get_riscv_zfinx,
    }
