"""Vectorised numpy semantics of every op at every level: the oracle that lowerings and compiled code are compared with."""

from qfold.interpreters.run import (
    DomainName,
    create_interpreter,
    domain_named,
    register_implementations,
    run,
    run_function,
)
from qfold.interpreters.values import Bounded, ByteBuffer, Value

__all__ = [
    "Bounded",
    "ByteBuffer",
    "DomainName",
    "Value",
    "create_interpreter",
    "domain_named",
    "register_implementations",
    "run",
    "run_function",
]
