"""The instruction sets of PULP clusters and of what runs their code."""

from qfold.targets.description import Isa

ZFINX = Isa(
    "zfinx",
    march="rv32imc_zfinx",
    mabi="ilp32",
    zig_cpu="generic_rv32+m+c+zfinx",
    float_registers="x",
    xpulpv2=True,
)
"""Stock `pulp-open`: RI5CY with XpulpV2 and one register file."""

FLOAT = Isa(
    "f",
    march="rv32imfc",
    mabi="ilp32f",
    zig_cpu="generic_rv32+m+f+c",
    float_registers="f",
    xpulpv2=True,
)
"""Siracusa, GAP9 and their like: XpulpV2 with a float register file."""

PLAIN = Isa(
    "plain",
    march="rv32imfc",
    mabi="ilp32f",
    zig_cpu="generic_rv32+m+f+c",
    float_registers="f",
    xpulpv2=False,
)
"""RV32IMFC without any PULP instruction, for simulators that know nothing else."""

ISAS: dict[str, Isa] = {i.name: i for i in (ZFINX, FLOAT, PLAIN)}
