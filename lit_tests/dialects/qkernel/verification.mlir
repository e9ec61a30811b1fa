// RUN: qfold-opt %s --split-input-file --verify-diagnostics | filecheck %s

// The seed of it all: the float kernel on a quantised weight.
%a, %b, %y = "test.op"() : () -> (memref<4x8xf32>, memref<8x3xi8>, memref<4x3xf32>)
// CHECK: qkernel.matmul reads f32, got memref<8x3xi8>
qkernel.matmul %a, %b outs(%y) : (memref<4x8xf32>, memref<8x3xi8>, memref<4x3xf32>) -> ()

// -----

%a, %b, %y = "test.op"() : () -> (memref<4x8xf32>, memref<8x3xf32>, memref<3x4xf32>)
// CHECK: the output has shape [4, 3], got memref<3x4xf32>
qkernel.matmul %a, %b outs(%y) : (memref<4x8xf32>, memref<8x3xf32>, memref<3x4xf32>) -> ()

// -----

%a, %w, %s, %y = "test.op"() : () -> (memref<4x8xf32>, memref<8x3xf32>, memref<f32>, memref<4x3xf32>)
// CHECK: a quantised weight is one of i8, ui8, i4, ui4, i16, ui16, got memref<8x3xf32>
qkernel.dequant_matmul %a, %w, %s outs(%y) : (memref<4x8xf32>, memref<8x3xf32>, memref<f32>, memref<4x3xf32>) -> ()

// -----

%a, %w, %s, %y = "test.op"() : () -> (memref<4x8xf32>, memref<8x3xi8>, memref<8xf32>, memref<4x3xf32>)
// CHECK: the scale has shape [] or [3], got memref<8xf32>
qkernel.dequant_matmul %a, %w, %s outs(%y) : (memref<4x8xf32>, memref<8x3xi8>, memref<8xf32>, memref<4x3xf32>) -> ()

// -----

%a, %w, %s, %z, %y = "test.op"() : () -> (memref<4x8xf32>, memref<8x3xui8>, memref<f32>, memref<i8>, memref<4x3xf32>)
// CHECK: the zero point of ui8 is ui8, got memref<i8>
qkernel.dequant_matmul %a, %w, %s zero_point(%z) outs(%y) : (memref<4x8xf32>, memref<8x3xui8>, memref<f32>, memref<i8>, memref<4x3xf32>) -> ()

// -----

%a, %w, %s, %z, %y = "test.op"() : () -> (memref<4x8xf32>, memref<8x3xi8>, memref<f32>, memref<i8>, memref<4x3xf32>)
// CHECK: takes a row_sum exactly when hoisted with a zero point
qkernel.dequant_matmul %a, %w, %s zero_point(%z) outs(%y) {hoisted} : (memref<4x8xf32>, memref<8x3xi8>, memref<f32>, memref<i8>, memref<4x3xf32>) -> ()

// -----

%x, %w, %s, %y = "test.op"() : () -> (memref<1x2x4x4xf32>, memref<2x1x3x3xi8>, memref<1xf32>, memref<1x2x4x2xf32>)
// CHECK: the scale has shape [] or [2], got memref<1xf32>
qkernel.dequant_conv %x, %w, %s outs(%y) {strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (memref<1x2x4x4xf32>, memref<2x1x3x3xi8>, memref<1xf32>, memref<1x2x4x2xf32>) -> ()

// -----

%x, %y = "test.op"() : () -> (memref<1x2x4x4xf32>, memref<1x1x4x2xf32>)
// CHECK: the output has shape [1, 2, 4, 2], got memref<1x1x4x2xf32>
qkernel.window_sum %x outs(%y) {kernel_shape = array<i64: 3, 3>, strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (memref<1x2x4x4xf32>, memref<1x1x4x2xf32>) -> ()
