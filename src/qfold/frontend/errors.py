"""What the frontend raises: one exception class whose text is a sentence for the user."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.utils.exceptions import DiagnosticException


class FrontendError(DiagnosticException):
    """The model, or what was asked of it, cannot be handled. The text is complete: it needs no traceback."""


_SHOWN = 600


def shortened(error: BaseException) -> str:
    """The text of an error, which may list every element of something, in the length of a message."""
    text = str(error).strip() or type(error).__name__
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " ..."


@dataclass(frozen=True)
class NodeRef:
    """Names one ONNX node in a message."""

    name: str
    op_type: str
    domain: str
    opset: int

    def __str__(self) -> str:
        return (
            f"node '{self.name}' ({self.op_type}, domain '{self.domain or 'ai.onnx'}', "
            f"opset {self.opset})"
        )


class Unsupported(FrontendError):
    """One node asks for something that the importer does not do; the driver collects these."""

    def __init__(self, node: NodeRef, found: str, supported: str):
        super().__init__(f"{node}: found {found}; supported: {supported}")
        self.node = node
        self.found = found
        self.supported = supported


class UnsupportedNodes(FrontendError):
    """Every node of the model that cannot be imported, in one error."""

    def __init__(self, reasons: list[Unsupported]):
        count = len(reasons)
        head = f"{count} node{'s' if count > 1 else ''} of the model cannot be imported:"
        super().__init__("\n".join([head, *(f"  - {reason}" for reason in reasons)]))
        self.reasons = reasons
