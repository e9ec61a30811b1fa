"""Registry of ONNX operator importers.

An importer is registered under (domain, operator name, first opset version it holds for):

    @onnx_op("Softmax", since=13)
    def import_softmax(ctx: NodeContext) -> SSAValue: ...

`lookup` picks the newest registration that is not newer than the model's opset. Where a model declares an opset older than the
operator itself (exporters do: LayerNormalization in opset 12), the oldest registration is used.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from xdsl.ir import SSAValue

if TYPE_CHECKING:
    from qfold.frontend.context import NodeContext
    from qfold.frontend.values import Carried

Importer: TypeAlias = "Callable[[NodeContext], SSAValue | Sequence[SSAValue | Carried]]"
"""Emits the ops of one node; returns one value per node output (a bare SSA value stands for the first)."""

_REGISTRY: dict[tuple[str, str], dict[int, Importer]] = {}


def canonical_domain(domain: str) -> str:
    """`ai.onnx` and the empty string name the same domain."""
    return "" if domain == "ai.onnx" else domain


def onnx_op(*names: str, since: int = 1, domain: str = "") -> Callable[[Importer], Importer]:
    """Registers an importer for one or more operators of `domain`, from opset version `since` on."""

    def register(importer: Importer) -> Importer:
        for name in names:
            versions = _REGISTRY.setdefault((canonical_domain(domain), name), {})
            if since in versions:
                raise ValueError(f"{domain}:{name} since {since} is registered twice")
            versions[since] = importer
        return importer

    return register


def lookup(domain: str, op_type: str, opset: int) -> Importer | None:
    """The importer that holds for this operator at this opset version, or None."""
    versions = _REGISTRY.get((canonical_domain(domain), op_type))
    if versions is None:
        return None
    candidates = [since for since in versions if since <= opset]
    return versions[max(candidates) if candidates else min(versions)]


def supported_ops() -> list[tuple[str, str]]:
    """All registered (domain, operator) pairs, sorted."""
    return sorted(_REGISTRY)


def nearest(domain: str, op_type: str) -> str | None:
    """The supported operator whose name is closest to `op_type`, as `[domain:]Name`, or None if nothing is close."""
    by_name: dict[str, tuple[str, str]] = {}
    for key in _REGISTRY:
        # The same name in the asked-for domain wins over one in another domain.
        if key[1] not in by_name or key[0] == canonical_domain(domain):
            by_name[key[1]] = key
    matches = difflib.get_close_matches(op_type, by_name, n=1, cutoff=0.6)
    if not matches:
        return None
    found_domain, name = by_name[matches[0]]
    return f"{found_domain}:{name}" if found_domain else name
