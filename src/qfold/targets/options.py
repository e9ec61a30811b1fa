"""The options of a target, as they follow its name: `cores=4,isa=f,l1=131072`."""

from __future__ import annotations

from dataclasses import replace

from qfold.targets.cluster import INSERTED
from qfold.targets.description import Target
from qfold.targets.isa import FLOAT, ISAS, ZFINX

MAX_CORES = 16
_SIMULATED = (ZFINX, FLOAT)


def with_options(target: Target, options: str) -> Target:
    """`target` with `options` applied, in its name too. The same options in another order give an equal target.

    `cores=N`: 1 to 16. `isa=NAME`: zfinx or f. `l1=BYTES`, `stack=BYTES` (a core's): multiples of 16.
    `inserti=1`: matmuls of one row are faster and less exact (`Target.inserts_weights`). `ValueError` otherwise.
    """
    if not options:
        return target
    given: dict[str, str] = {}
    for part in options.split(","):
        key, equals, value = part.partition("=")
        if not equals or key in given:
            raise ValueError(f"target options are key=value, each once, got {part!r}")
        given[key] = value
    known = known_options(target)
    for key in given:
        if key not in known:
            raise ValueError(
                f"target {target.name} has no option {key!r}; known: {', '.join(known) or 'none'}"
            )
    result = target
    if "isa" in given:
        names = [i.name for i in _SIMULATED]
        if given["isa"] not in names:
            raise ValueError(f"isa={given['isa']}: target {target.name} has {' and '.join(names)}")
        result = replace(result, isa=ISAS[given["isa"]])
    if given.get("inserti", "0") not in ("0", "1"):
        raise ValueError(f"inserti is 0 or 1, got {given['inserti']!r}")
    if given.get("inserti") == "1":
        isa = result.isa
        if isa is None or isa.float_registers != "x":
            raise ValueError("inserti=1 needs floats in integer registers: isa=zfinx")
        result = replace(result, inserts_weights=True, kernels=(INSERTED, *result.kernels))
    if "cores" in given:
        result = replace(result, cores=_number("cores", given["cores"], 1, MAX_CORES))
    if "l1" in given:
        size = _multiple_of_16("l1", given["l1"])
        memory = (
            replace(m, size=size) if m.space == result.scratchpad else m for m in result.memory
        )
        result = replace(result, memory=tuple(memory))
    if "stack" in given:
        result = replace(result, stack_bytes=_multiple_of_16("stack", given["stack"]))
    if result.scratchpad_bytes <= 0:
        raise ValueError(
            f"{target.name}:{options}: {result.cores} stacks of {result.stack_bytes:,} bytes and {result.reserved_bytes:,} bytes "
            "of the runtime leave nothing of L1 for tiles"
        )
    text = ",".join(f"{key}={given[key]}" for key in sorted(given))
    return replace(result, name=f"{target.name}:{text}")


def known_options(target: Target) -> list[str]:
    """The names of the options that a target has."""
    if not target.is_cluster:
        return []
    known = ["l1", "stack"]
    if target.port != "qemu":
        known.insert(0, "cores")
    if target.isa is not None and target.isa.xpulpv2:
        known[:0] = ["isa", "inserti"]
    return known


def _number(key: str, text: str, low: int, high: int) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ValueError(f"{key} is a number from {low} to {high}, got {text!r}")
    return int(text)


def _multiple_of_16(key: str, text: str) -> int:
    value = _number(key, text, 16, 1 << 30)
    if value % 16:
        raise ValueError(f"{key} is a multiple of 16 bytes, got {value}")
    return value
