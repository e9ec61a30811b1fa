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

// -----

%w, %y = "test.op"() : () -> (memref<8x6xi32>, memref<2x8x4xf32>)
// CHECK: a weight to pack is one of f32, i8, ui8, i4, ui4, i16, ui16, got memref<8x6xi32>
qkernel.pack %w outs(%y) : (memref<8x6xi32>, memref<2x8x4xf32>) -> ()

// -----

%w, %y = "test.op"() : () -> (memref<1x8x6xi8>, memref<2x8x4xf32>)
// CHECK: the weight is a matrix, got memref<1x8x6xi8>
qkernel.pack %w outs(%y) : (memref<1x8x6xi8>, memref<2x8x4xf32>) -> ()

// -----

%w, %y = "test.op"() : () -> (memref<8x6xi8>, memref<2x8x4xf32>)
// CHECK: the packed weight has shape [2, 6, 4], got memref<2x8x4xf32>
qkernel.pack %w outs(%y) {transpose_b} : (memref<8x6xi8>, memref<2x8x4xf32>) -> ()

// -----

%w, %z, %y = "test.op"() : () -> (memref<8x6xf32>, memref<6xi8>, memref<2x8x4xf32>)
// CHECK: an f32 weight has no zero point and no scale, got memref<8x6xf32>
qkernel.pack %w zero_point(%z) outs(%y) : (memref<8x6xf32>, memref<6xi8>, memref<2x8x4xf32>) -> ()

// -----

%w, %z, %y = "test.op"() : () -> (memref<8x6xui4>, memref<6xi8>, memref<2x8x4xf32>)
// CHECK: the zero point of ui4 is ui8, got memref<6xi8>
qkernel.pack %w zero_point(%z) outs(%y) : (memref<8x6xui4>, memref<6xi8>, memref<2x8x4xf32>) -> ()

// -----

%w, %z, %y = "test.op"() : () -> (memref<8x6xi8>, memref<8xi8>, memref<2x8x4xf32>)
// CHECK: the zero point has shape [] or [6], got memref<8xi8>
qkernel.pack %w zero_point(%z) outs(%y) : (memref<8x6xi8>, memref<8xi8>, memref<2x8x4xf32>) -> ()

// -----

%w, %s, %y = "test.op"() : () -> (memref<8x6xi8>, memref<6xf32>, memref<2x8x4xf32>)
// CHECK: takes a scale exactly with block_size: any other scale is for the accumulator
qkernel.pack %w scale(%s) outs(%y) : (memref<8x6xi8>, memref<6xf32>, memref<2x8x4xf32>) -> ()

// -----

%w, %s, %y = "test.op"() : () -> (memref<8x6xi8>, memref<6x2xf32>, memref<2x8x4xf32>)
// CHECK: the scale has shape [2, 6], got memref<6x2xf32>
qkernel.pack %w scale(%s) outs(%y) {block_size = 4 : i64} : (memref<8x6xi8>, memref<6x2xf32>, memref<2x8x4xf32>) -> ()

// -----

%w, %s, %y = "test.op"() : () -> (memref<8x6xi8>, memref<2x6xf32>, memref<2x8x4xf32>)
// CHECK: block_size is at least 1, got 0
qkernel.pack %w scale(%s) outs(%y) {block_size = 0 : i64} : (memref<8x6xi8>, memref<2x6xf32>, memref<2x8x4xf32>) -> ()

// -----

// A product on panels that are not floats: never.
%a, %p, %y = "test.op"() : () -> (memref<3x8xf32>, memref<2x8x4xi8>, memref<3x6xf32>)
// CHECK: qkernel.packed_matmul reads f32, got memref<2x8x4xi8>
qkernel.packed_matmul %a, %p outs(%y) : (memref<3x8xf32>, memref<2x8x4xi8>, memref<3x6xf32>) -> ()

// -----

%a, %p, %y = "test.op"() : () -> (memref<3x8xf32>, memref<3x8x4xf32>, memref<3x6xf32>)
// CHECK: the packed weight has shape [2, 8, 4], got memref<3x8x4xf32>
qkernel.packed_matmul %a, %p outs(%y) : (memref<3x8xf32>, memref<3x8x4xf32>, memref<3x6xf32>) -> ()

// -----

%a, %p, %y = "test.op"() : () -> (memref<3x8xf32>, memref<2x8x4xf32>, memref<4x6xf32>)
// CHECK: the output has shape [3, 6], got memref<4x6xf32>
qkernel.packed_matmul %a, %p outs(%y) : (memref<3x8xf32>, memref<2x8x4xf32>, memref<4x6xf32>) -> ()

// -----

%a, %p, %y = "test.op"() : () -> (memref<2x3x8xf32>, memref<2x8x4xf32>, memref<2x3x6xf32>)
// CHECK: the activation and the output are matrices, got memref<2x3x8xf32> and memref<2x3x6xf32>
qkernel.packed_matmul %a, %p outs(%y) : (memref<2x3x8xf32>, memref<2x8x4xf32>, memref<2x3x6xf32>) -> ()

// -----

%a, %p, %s, %z, %r, %y = "test.op"() : () -> (memref<3x8xf32>, memref<2x8x4xf32>, memref<6xf32>, memref<6xi8>, memref<3xf32>, memref<3x6xf32>)
// CHECK: takes a zero point only when hoisted and with a scale
qkernel.packed_matmul %a, %p scale(%s) zero_point(%z) row_sum(%r) outs(%y) : (memref<3x8xf32>, memref<2x8x4xf32>, memref<6xf32>, memref<6xi8>, memref<3xf32>, memref<3x6xf32>) -> ()

// -----

%a, %p, %s, %z, %y = "test.op"() : () -> (memref<3x8xf32>, memref<2x8x4xf32>, memref<6xf32>, memref<6xi8>, memref<3x6xf32>)
// CHECK: takes a row_sum exactly with a zero point
qkernel.packed_matmul %a, %p scale(%s) zero_point(%z) outs(%y) {hoisted} : (memref<3x8xf32>, memref<2x8x4xf32>, memref<6xf32>, memref<6xi8>, memref<3x6xf32>) -> ()

// -----

%a, %p, %s, %z, %r, %y = "test.op"() : () -> (memref<3x8xf32>, memref<2x8x4xf32>, memref<6xf32>, memref<6xi32>, memref<3xf32>, memref<3x6xf32>)
// CHECK: a zero point is one of i8, ui8, i16, ui16, got memref<6xi32>
qkernel.packed_matmul %a, %p scale(%s) zero_point(%z) row_sum(%r) outs(%y) {hoisted} : (memref<3x8xf32>, memref<2x8x4xf32>, memref<6xf32>, memref<6xi32>, memref<3xf32>, memref<3x6xf32>) -> ()

// -----

%a, %y = "test.op"() : () -> (memref<3x8xf32>, memref<8xf32>)
// CHECK: the output has shape [3], got memref<8xf32>
qkernel.row_sum %a outs(%y) : (memref<3x8xf32>, memref<8xf32>) -> ()
