"""qfold compiles weight-quantised ONNX networks to C, with quantisation kept in the IR's types."""

__version__ = "0.1.0"
