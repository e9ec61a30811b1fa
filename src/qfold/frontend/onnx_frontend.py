"""`-f onnx` of qfold-opt and of stock xdsl-opt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerType, ModuleOp
from xdsl.utils.frontend import Frontend

from qfold.dialects.element_types import i8, ui8
from qfold.frontend.errors import FrontendError
from qfold.frontend.module import import_model


def parse_dims(entries: Sequence[str | int]) -> dict[str, int]:
    """`["batch=1", "sequence=16"]`, `["batch=1,sequence=16"]` or `["batch", 1, "sequence", 16]` as a dictionary."""
    words: list[str] = []
    for entry in entries:
        for part in str(entry).split(","):
            name, equals, length = part.rpartition("=")
            words.extend([name.strip(), length.strip()] if equals else [part.strip()])
    dims: dict[str, int] = {}
    for name, length in zip(words[::2], [*words[1::2], ""], strict=False):
        if not name or not length.lstrip("-").isdigit():
            raise FrontendError(
                f"a dimension is given as NAME=LENGTH, such as batch=1; found '{name}={length}'"
            )
        if name in dims:
            raise FrontendError(f"dimension '{name}' is given twice")
        dims[name] = int(length)
    return dims


_INPUT_TYPES: dict[str, IntegerType] = {"i8": i8, "ui8": ui8}


def parse_input_types(entries: Sequence[str]) -> dict[str, IntegerType]:
    """`["input=ui8"]` as a dictionary."""
    types: dict[str, IntegerType] = {}
    for entry in entries:
        name, _, written = entry.rpartition("=")
        if not name or written not in _INPUT_TYPES:
            raise FrontendError(f"an input type is given as NAME=i8 or NAME=ui8; found '{entry}'")
        if name in types:
            raise FrontendError(f"the type of input '{name}' is given twice")
        types[name] = _INPUT_TYPES[written]
    return types


@dataclass(frozen=True)
class OnnxFrontend(Frontend):
    """Reads ONNX models.

    `dim` gives lengths to dynamic dimensions: `-f 'onnx{dim="batch=1,sequence=16"}'`, or, as the syntax of options has no
    place for a second `=` outside of quotes, `-f 'onnx{dim=batch,1,sequence,16}'`. `freeze-initializers=true` makes
    initializers that are also graph inputs constants. `input-type` declares float inputs that hold integers,
    `-f 'onnx{input-type="x=ui8"}'`. External data is read from the directory of the file.
    """

    name = "onnx"

    dim: tuple[str | int, ...] | str = ()
    freeze_initializers: bool = False
    input_type: tuple[str, ...] | str = ()

    def __post_init__(self) -> None:
        if isinstance(self.dim, str):
            object.__setattr__(self, "dim", (self.dim,))
        if isinstance(self.input_type, str):
            object.__setattr__(self, "input_type", (self.input_type,))

    def parse(self, ctx: Context, input: IO[bytes], input_name: str = "input") -> ModuleOp:
        """The module of `import_model`; its dialects need not be registered in `ctx`."""
        path = Path(input_name)
        return import_model(
            input.read(),
            parse_dims(self.dim),
            directory=path.parent if path.is_file() else None,
            name=input_name,
            freeze_initializers=self.freeze_initializers,
            input_types=parse_input_types(self.input_type),
        )
