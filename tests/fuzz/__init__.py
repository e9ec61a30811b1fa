"""Random ONNX models against ONNX's reference, the interpreters at every level, and compiled C."""
