"""The option `--target` of a command line."""

from __future__ import annotations

import argparse

from qfold.targets import TARGETS, known_options, target_named
from qfold.targets.options import MAX_CORES


def target_spec(text: str) -> str:
    """`text`, when there is such a target with such options. `argparse.ArgumentTypeError` says what there is."""
    try:
        target_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def target_help() -> str:
    """Every target and its options, in a sentence."""
    named: list[str] = []
    for name, target in TARGETS.items():
        options = known_options(target)
        named.append(f"{name} ({', '.join(options)})" if options else name)
    return (
        f"targets and their options: {', '.join(named)}; cores=1 to {MAX_CORES}, isa=zfinx or f, inserti=0 or 1, l1=BYTES, "
        "stack=BYTES of a core"
    )
