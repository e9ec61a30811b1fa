// RUN: qfold-opt %s --split-input-file -p qmm-canonicalize | filecheck %s

func.func @transposed_operands(%a: tensor<3x4xf32>, %b: tensor<2x3xf32>) -> tensor<4x2xf32> {
  %e = tensor.empty() : tensor<4x3xf32>
  %at = linalg.transpose ins(%a : tensor<3x4xf32>) outs(%e : tensor<4x3xf32>) permutation = [1, 0]
  %f = tensor.empty() : tensor<3x2xf32>
  %bt = linalg.transpose ins(%b : tensor<2x3xf32>) outs(%f : tensor<3x2xf32>) permutation = [1, 0]
  %y = qmm.matmul %at, %bt : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}

// CHECK:      func.func @transposed_operands(%[[Va:\w+]]: tensor<3x4xf32>, %[[Vb:\w+]]: tensor<2x3xf32>) -> tensor<4x2xf32> {
// CHECK-NEXT:   %[[Vy:\w+]] = qmm.matmul %[[Va]], %[[Vb]] {transpose_a, transpose_b} : (tensor<3x4xf32>, tensor<2x3xf32>) -> tensor<4x2xf32>
// CHECK-NEXT:   func.return %[[Vy]] : tensor<4x2xf32>
// CHECK-NEXT: }

// -----

// A reshape of a weight is another type for the same bytes; the dequantise follows.
func.func @reshaped_weight() -> tensor<1x2x3xf32> {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<2x3xi8>>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = [0.5, 1.0, 2.0], axis = 1>} : (tensor<2x3xi8>) -> tensor<2x3xf32>
  %r = tensor.expand_shape %d [[0, 1], [2]] output_shape [1, 2, 3] : tensor<2x3xf32> into tensor<1x2x3xf32>
  func.return %r : tensor<1x2x3xf32>
}

// CHECK:      func.func @reshaped_weight() -> tensor<1x2x3xf32> {
// CHECK-NEXT:   %[[Vr:\w+]] = qmm.constant #qmm.weight<"0x010203040506" : tensor<1x2x3xi8>>
// CHECK-NEXT:   %[[Vr_1:\w+]] = qmm.dequantize %[[Vr]] {quant = #qmm.quant<i8, scale = [5.0e-01, 1.0e+00, 2.0e+00], axis = 2>} : (tensor<1x2x3xi8>) -> tensor<1x2x3xf32>
// CHECK-NEXT:   func.return %[[Vr_1]] : tensor<1x2x3xf32>
// CHECK-NEXT: }

// -----

// Quantising what was dequantised with the same parameters gives it back; dead ops go.
func.func @there_and_back(%q: tensor<4xui8>, %x: tensor<4x4xf32>) -> tensor<4xui8> {
  %dead = qmm.matmul %x, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %d = qmm.dequantize %q {quant = #qmm.quant<ui8, scale = 0.1, zero_point = 200>} : (tensor<4xui8>) -> tensor<4xf32>
  %r = qmm.quantize %d {quant = #qmm.quant<ui8, scale = 0.1, zero_point = 200>} : (tensor<4xf32>) -> tensor<4xui8>
  func.return %r : tensor<4xui8>
}

// CHECK:      func.func @there_and_back(%[[Vq:\w+]]: tensor<4xui8>, %[[Vx:\w+]]: tensor<4x4xf32>) -> tensor<4xui8> {
// CHECK-NEXT:   func.return %[[Vq]] : tensor<4xui8>
// CHECK-NEXT: }
