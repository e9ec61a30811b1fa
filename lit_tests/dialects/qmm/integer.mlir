// RUN: qfold-opt %s --split-input-file | qfold-opt --split-input-file | filecheck %s

func.func @matmul(%a: tensor<4x8xui8>, %b: tensor<3x8xi4>, %za: tensor<4xui8>, %zb: tensor<3xi8>, %c: tensor<3xi32>) {
  %0 = qmm.quant_matmul %a, %b a_zero_point(%za) b_zero_point(%zb) {transpose_b} : (tensor<4x8xui8>, tensor<3x8xi4>, tensor<4xui8>, tensor<3xi8>) -> tensor<4x3xi32>
  %1 = qmm.quant_matmul %a, %b epilogue(%c) maps [affine_map<(d0, d1) -> (d1)>] {transpose_b, qmm.reason = "why"} : (tensor<4x8xui8>, tensor<3x8xi4>, tensor<3xi32>) -> tensor<4x3xi8> {
  ^bb0(%acc: i32, %e: i32):
    %sum = arith.addi %acc, %e : i32
    %r = arith.trunci %sum : i32 to i8
    qmm.yield %r : i8
  }
  func.return
}

// CHECK:      func.func @matmul(%a: tensor<4x8xui8>, %b: tensor<3x8xi4>, %za: tensor<4xui8>, %zb: tensor<3xi8>, %c: tensor<3xi32>) {
// CHECK-NEXT:   %0 = qmm.quant_matmul %a, %b a_zero_point(%za) b_zero_point(%zb) {transpose_b} : (tensor<4x8xui8>, tensor<3x8xi4>, tensor<4xui8>, tensor<3xi8>) -> tensor<4x3xi32>
// CHECK-NEXT:   %1 = qmm.quant_matmul %a, %b epilogue(%c) maps [affine_map<(d0, d1) -> (d1)>] {transpose_b, qmm.reason = "why"} : (tensor<4x8xui8>, tensor<3x8xi4>, tensor<3xi32>) -> tensor<4x3xi8> {
// CHECK-NEXT:   ^bb0(%acc: i32, %e: i32):
// CHECK-NEXT:     %sum = arith.addi %acc, %e : i32
// CHECK-NEXT:     %r = arith.trunci %sum : i32 to i8
// CHECK-NEXT:     qmm.yield %r : i8
// CHECK-NEXT:   }

// -----

func.func @conv(%x: tensor<1x4x5x5xi8>, %w: tensor<6x2x3x3xui4>, %zx: tensor<i8>, %zw: tensor<6xui8>) {
  %0 = qmm.quant_conv %x, %w x_zero_point(%zx) w_zero_point(%zw) {strides = array<i64: 2, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x4x5x5xi8>, tensor<6x2x3x3xui4>, tensor<i8>, tensor<6xui8>) -> tensor<1x6x3x5xi32>
  func.return
}

// CHECK:      func.func @conv
// CHECK-NEXT:   %0 = qmm.quant_conv %x, %w x_zero_point(%zx) w_zero_point(%zw) {strides = array<i64: 2, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x4x5x5xi8>, tensor<6x2x3x3xui4>, tensor<i8>, tensor<6xui8>) -> tensor<1x6x3x5xi32>

// -----

func.func @requantize(%acc: tensor<4x2xi32>, %x: tensor<4x8xf32>) {
  %0 = qmm.requantize %acc {multiplier = array<f64: 0.015, 0.02>, zero_point = 3 : i64, axis = 1 : i64} : (tensor<4x2xi32>) -> tensor<4x2xui8>
  %1 = qmm.requantize %acc {multiplier = array<f64: 0.5>, zero_point = -128 : i64, high = 20 : i64} : (tensor<4x2xi32>) -> tensor<4x2xi8>
  %2 = qmm.requantize_shift %acc {mul = array<i64: 37>, add = array<i64: 512, 3>, shift = array<i64: 10>, rounding = "floor", axis = 1 : i64} : (tensor<4x2xi32>) -> tensor<4x2xi8>
  %q, %scale, %zero = qmm.dynamic_quantize %x : (tensor<4x8xf32>) -> (tensor<4x8xui8>, tensor<f32>, tensor<ui8>)
  %q1, %scale1, %zero1 = qmm.dynamic_quantize %x {per_row} : (tensor<4x8xf32>) -> (tensor<4x8xi8>, tensor<4xf32>, tensor<4xi8>)
  func.return
}

// CHECK:      func.func @requantize
// CHECK-NEXT:   %0 = qmm.requantize %acc {multiplier = array<f64: 1.500000e-02, 2.000000e-02>, zero_point = 3 : i64, axis = 1 : i64} : (tensor<4x2xi32>) -> tensor<4x2xui8>
// CHECK-NEXT:   %1 = qmm.requantize %acc {multiplier = array<f64: 5.000000e-01>, zero_point = -128 : i64, high = 20 : i64} : (tensor<4x2xi32>) -> tensor<4x2xi8>
// CHECK-NEXT:   %2 = qmm.requantize_shift %acc {mul = array<i64: 37>, add = array<i64: 512, 3>, shift = array<i64: 10>, rounding = "floor", axis = 1 : i64} : (tensor<4x2xi32>) -> tensor<4x2xi8>
// CHECK-NEXT:   %q, %scale, %zero = qmm.dynamic_quantize %x : (tensor<4x8xf32>) -> (tensor<4x8xui8>, tensor<f32>, tensor<ui8>)
// CHECK-NEXT:   %q1, %scale1, %zero1 = qmm.dynamic_quantize %x {per_row} : (tensor<4x8xf32>) -> (tensor<4x8xi8>, tensor<4xf32>, tensor<4xi8>)
