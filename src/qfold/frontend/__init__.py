"""ONNX -> tensor level. The only room that imports `onnx`."""

from qfold.frontend.errors import FrontendError, Unsupported, UnsupportedNodes
from qfold.frontend.module import default_inputs, import_loaded, import_model
from qfold.frontend.reader import LoadedModel, load_model

__all__ = [
    "FrontendError",
    "LoadedModel",
    "Unsupported",
    "UnsupportedNodes",
    "default_inputs",
    "import_loaded",
    "import_model",
    "load_model",
]
