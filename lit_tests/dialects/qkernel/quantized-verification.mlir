// RUN: qfold-opt %s --split-input-file --verify-diagnostics | filecheck %s

// An integer kernel on floats.
%a, %b, %y = "test.op"() : () -> (memref<4x8xf32>, memref<8x3xi8>, memref<4x3xi32>)
// CHECK: a is one of i8, ui8, got memref<4x8xf32>
qkernel.quant_matmul %a, %b outs(%y) : (memref<4x8xf32>, memref<8x3xi8>, memref<4x3xi32>) -> ()

// -----

%a, %b, %y = "test.op"() : () -> (memref<4x8xi8>, memref<8x3xi8>, memref<4x3xf32>)
// CHECK: the accumulator is i32 and there is no epilogue, but the output is memref<4x3xf32>
qkernel.quant_matmul %a, %b outs(%y) : (memref<4x8xi8>, memref<8x3xi8>, memref<4x3xf32>) -> ()

// -----

%a, %b, %y = "test.op"() : () -> (memref<4x8xi8>, memref<8x3xi8>, memref<3x4xi32>)
// CHECK: the output has shape [4, 3], got memref<3x4xi32>
qkernel.quant_matmul %a, %b outs(%y) : (memref<4x8xi8>, memref<8x3xi8>, memref<3x4xi32>) -> ()

// -----

%x, %w, %y, %z = "test.op"() : () -> (memref<1x4x5xui8>, memref<6x4x3xi4>, memref<1x6x3xi32>, memref<6xui8>)
// CHECK: the zero point of w of memref<6x4x3xi4> is i8, got memref<6xui8>
qkernel.quant_conv %x, %w w_zero_point(%z) outs(%y) {strides = array<i64: 1>, pads = array<i64: 0, 0>, dilations = array<i64: 1>, groups = 1 : i64} : (memref<1x4x5xui8>, memref<6x4x3xi4>, memref<6xui8>, memref<1x6x3xi32>) -> ()
