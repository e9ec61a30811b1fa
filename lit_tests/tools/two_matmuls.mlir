// RUN: python -c "import sys, onnx; onnx.save(onnx.parser.parse_model(open(sys.argv[1]).read()), sys.argv[2])" %S/Inputs/two_matmuls.txt %t.onnx
// RUN: qfold import %t.onnx | filecheck %s --check-prefix BEFORE
// RUN: qfold import %t.onnx | qfold-opt -p qmm-canonicalize,qmm-fuse-quantized | filecheck %s --check-prefix AFTER
// RUN: qfold import %t.onnx | qfold-opt -p qmm-canonicalize,qmm-fuse-quantized,qmm-lower-quantization,qmm-fuse-epilogue | filecheck %s --check-prefix FUSED

// Two matmuls with a Relu between, as QDQ. What the file says: floats everywhere but at the ends.

// BEFORE:      func.func @main(%[[A:.*]]: tensor<4x8xui8> {qmm.name = "x"}) -> (tensor<4x2xi8> {qmm.name = "y"}) {
// BEFORE:        qmm.dequantize %[[A]] {{.*}} -> tensor<4x8xf32>
// BEFORE:        %[[Y:.*]] = qmm.matmul {{.*}} -> tensor<4x3xf32>
// BEFORE:        arith.maximumf
// BEFORE:        %[[Q:.*]] = qmm.quantize {{.*}} -> tensor<4x3xui8>
// BEFORE:        %[[X:.*]] = qmm.dequantize %[[Q]] {{.*}} -> tensor<4x3xf32>
// BEFORE:        qmm.matmul %[[X]], {{.*}} -> tensor<4x2xf32>
// BEFORE:        qmm.quantize

// What is computed: two products of bytes, and one requantisation each. The Relu is the lower end of what a ui8 with zero point 0
// holds; the 128 that the activation is off by is subtracted as an integer.

// AFTER:      func.func @main(%[[A:.*]]: tensor<4x8xui8> {qmm.name = "x"}) -> (tensor<4x2xi8> {qmm.name = "y"}) {
// AFTER-NEXT:   %[[W:.*]] = qmm.constant
// AFTER-NEXT:   %[[Z:.*]] = qmm.constant #qmm.weight<"0x80" : tensor<ui8>>
// AFTER-NEXT:   %[[Y:.*]] = qmm.quant_matmul %[[A]], %[[W]] a_zero_point(%[[Z]]) : (tensor<4x8xui8>, tensor<8x3xi8>, tensor<ui8>) -> tensor<4x3xi32>
// AFTER-NEXT:   %[[Q:.*]] = qmm.requantize %[[Y]] {multiplier = array<f64: 6.250000e-02, 3.125000e-02, 1.562500e-02>, zero_point = 0 : i64, axis = 1 : i64} : (tensor<4x3xi32>) -> tensor<4x3xui8>
// AFTER-NEXT:   %[[V:.*]] = qmm.constant
// AFTER-NEXT:   %[[X:.*]] = qmm.quant_matmul %[[Q]], %[[V]] : (tensor<4x3xui8>, tensor<3x2xi8>) -> tensor<4x2xi32>
// AFTER-NEXT:   %[[P:.*]] = qmm.requantize %[[X]] {multiplier = array<f64: 1.250000e-01>, zero_point = -3 : i64} : (tensor<4x2xi32>) -> tensor<4x2xi8>
// AFTER-NEXT:   func.return %[[P]] : tensor<4x2xi8>

// And no tensor of accumulators either: both ops store bytes.

// FUSED-NOT:  f32>
// FUSED-NOT:  i32>
// FUSED:      qmm.quant_matmul {{.*}} -> tensor<4x3xui8> {
// FUSED-NOT:  f32>
// FUSED-NOT:  i32>
// FUSED:      qmm.quant_matmul {{.*}} -> tensor<4x2xi8> {
// FUSED-NOT:  f32>
// FUSED-NOT:  i32>
