"""Where the text form of large weights goes: references to the ONNX file that holds them already, else to a sidecar."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from qfold.dialects.qmm import WEIGHT_FILES, WeightAttr, WeightFiles
from qfold.tools.errors import ToolError


@dataclass
class ModelWeightFiles(WeightFiles):
    """Weight files of which one may be the model itself: bytes that it holds verbatim are not written a second time."""

    model: Path | None = None
    """An ONNX file below `root`."""

    @cached_property
    def _model_bytes(self) -> bytes:
        return b"" if self.model is None else self.model.read_bytes()

    def place(self, weight: WeightAttr) -> tuple[str, int] | None:
        if self.model is not None and weight.sha256 not in self.known:
            offset = self._model_bytes.find(weight.raw)
            if offset >= 0:
                place = (str(self.model.relative_to(self.root)), offset)
                self.known[weight.sha256] = place
        return super().place(weight)


@contextmanager
def reading_weights(source: Path | None) -> Generator[WeightFiles]:
    """While a module is parsed: references are relative to the directory of `source` (None: the working directory)."""
    files = WeightFiles(Path.cwd() if source is None else source.resolve().parent)
    token = WEIGHT_FILES.set(files)
    try:
        yield files
    finally:
        WEIGHT_FILES.reset(token)


@contextmanager
def writing_weights(
    output: Path | None,
    sidecar: Path | None,
    model: Path | None = None,
    read: WeightFiles | None = None,
) -> Generator[WeightFiles]:
    """While a module is printed to `output` (None: standard output).

    Large weights become references to `model` or to what `read` has found in files, where these lie below the directory of the
    output, and are else appended to `sidecar`, which is made anew. Without any of these they are elided.
    """
    if output is not None:
        root = output.resolve().parent
    elif sidecar is not None:
        root = sidecar.resolve().parent
    elif model is not None:
        root = model.resolve().parent
    else:
        root = Path.cwd() if read is None else read.root
    if sidecar is not None:
        sidecar = sidecar.resolve()
        if not sidecar.is_relative_to(root):
            raise ToolError(
                f"--weights-out {sidecar} is outside of {root}: the module refers to it relative to its own directory"
            )
        sidecar.write_bytes(b"")
    if model is not None:
        model = model.resolve()
        if not model.is_relative_to(root):
            model = None
    files = ModelWeightFiles(root, sidecar=sidecar, model=model)
    if read is not None and read.root.resolve() == root:
        files.known.update(read.known)
    token = WEIGHT_FILES.set(files)
    try:
        yield files
    finally:
        WEIGHT_FILES.reset(token)
    if sidecar is not None and sidecar.stat().st_size == 0:
        sidecar.unlink()
