// RUN: qfold-opt %s --split-input-file --verify-diagnostics | filecheck %s

%a, %b = "test.op"() : () -> (tensor<4x8xf32>, tensor<8x3xi8>)
// CHECK: a is one of i8, ui8, got tensor<4x8xf32>
%0 = qmm.quant_matmul %a, %b : (tensor<4x8xf32>, tensor<8x3xi8>) -> tensor<4x3xi32>

// -----

%a, %b = "test.op"() : () -> (tensor<4x8xi8>, tensor<8x3xi16>)
// CHECK: b is one of i8, ui8, i4, ui4, got tensor<8x3xi16>
%0 = qmm.quant_matmul %a, %b : (tensor<4x8xi8>, tensor<8x3xi16>) -> tensor<4x3xi32>

// -----

// Data of one sign, a zero point of the other.
%a, %b, %z = "test.op"() : () -> (tensor<4x8xi8>, tensor<8x3xi8>, tensor<ui8>)
// CHECK: the zero point of a of tensor<4x8xi8> is i8, got tensor<ui8>
%0 = qmm.quant_matmul %a, %b a_zero_point(%z) : (tensor<4x8xi8>, tensor<8x3xi8>, tensor<ui8>) -> tensor<4x3xi32>

// -----

%a, %b, %z = "test.op"() : () -> (tensor<4x8xi8>, tensor<8x3xi8>, tensor<8xi8>)
// CHECK: the zero point of b has shape [] or [3], got tensor<8xi8>
%0 = qmm.quant_matmul %a, %b b_zero_point(%z) : (tensor<4x8xi8>, tensor<8x3xi8>, tensor<8xi8>) -> tensor<4x3xi32>

// -----

%a, %b = "test.op"() : () -> (tensor<4x8xi8>, tensor<8x3xi8>)
// CHECK: the accumulator is i32 and there is no epilogue, but the output is tensor<4x3xi8>
%0 = qmm.quant_matmul %a, %b : (tensor<4x8xi8>, tensor<8x3xi8>) -> tensor<4x3xi8>

// -----

%a, %b = "test.op"() : () -> (tensor<4x8xi8>, tensor<9x3xi8>)
// CHECK: the operands differ in K: 8 in [4, 8], 9 in [9, 3]
%0 = qmm.quant_matmul %a, %b : (tensor<4x8xi8>, tensor<9x3xi8>) -> tensor<4x3xi32>

// -----

%x, %w, %z = "test.op"() : () -> (tensor<1x2x5xi8>, tensor<3x2x3xi8>, tensor<2xi8>)
// CHECK: the zero point of x has shape [], got tensor<2xi8>
%0 = qmm.quant_conv %x, %w x_zero_point(%z) {strides = array<i64: 1>, pads = array<i64: 0, 0>, dilations = array<i64: 1>, groups = 1 : i64} : (tensor<1x2x5xi8>, tensor<3x2x3xi8>, tensor<2xi8>) -> tensor<1x3x3xi32>

// -----

%acc = "test.op"() : () -> tensor<4xi16>
// CHECK: an accumulator is i32, got tensor<4xi16>
%0 = qmm.requantize %acc {multiplier = array<f64: 0.5>, zero_point = 0 : i64} : (tensor<4xi16>) -> tensor<4xi8>

// -----

%acc = "test.op"() : () -> tensor<4xi32>
// CHECK: the zero point 128 is no i8
%0 = qmm.requantize %acc {multiplier = array<f64: 0.5>, zero_point = 128 : i64} : (tensor<4xi32>) -> tensor<4xi8>

// -----

%acc = "test.op"() : () -> tensor<4xi32>
// CHECK: multiplier has 3 elements, expected 1 or 4
%0 = qmm.requantize %acc {multiplier = array<f64: 0.5, 0.5, 0.5>, zero_point = 0 : i64, axis = 0 : i64} : (tensor<4xi32>) -> tensor<4xi8>

// -----

%acc = "test.op"() : () -> tensor<4xi32>
// CHECK: multipliers are finite and positive
%0 = qmm.requantize %acc {multiplier = array<f64: 0.0>, zero_point = 0 : i64} : (tensor<4xi32>) -> tensor<4xi8>

// -----

%acc = "test.op"() : () -> tensor<4xi32>
// CHECK: [0, 200] is no part of i8's range
%0 = qmm.requantize %acc {multiplier = array<f64: 0.5>, zero_point = 0 : i64, low = 0 : i64, high = 200 : i64} : (tensor<4xi32>) -> tensor<4xi8>

// -----

%acc = "test.op"() : () -> tensor<4xi32>
// CHECK: rounding is one of floor, half_even, half_odd, got up
%0 = qmm.requantize_shift %acc {mul = array<i64: 1>, add = array<i64: 0>, shift = array<i64: 1>, rounding = "up"} : (tensor<4xi32>) -> tensor<4xi8>

// -----

%acc = "test.op"() : () -> tensor<4xi32>
// CHECK: a shift is 0 to 62, got [63]
%0 = qmm.requantize_shift %acc {mul = array<i64: 1>, add = array<i64: 0>, shift = array<i64: 63>, rounding = "floor"} : (tensor<4xi32>) -> tensor<4xi8>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: the scale has shape [4], got tensor<f32>
%q, %s, %z = qmm.dynamic_quantize %x {per_row} : (tensor<4x8xf32>) -> (tensor<4x8xui8>, tensor<f32>, tensor<4xui8>)
