"""ONNX networks that the tests build for themselves."""
