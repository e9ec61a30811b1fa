// RUN: qfold-opt %s --split-input-file --verify-diagnostics | filecheck %s

%w, %y = "test.op"() : () -> (memref<6x9xi16>, memref<3x2x4x4xi8>)
// CHECK: what is packed is one of i8, ui8, i4, ui4, got memref<6x9xi16>
qkernel.pack_bytes %w outs(%y) : (memref<6x9xi16>, memref<3x2x4x4xi8>) -> ()

// -----

%w, %y = "test.op"() : () -> (memref<1x6x9xi8>, memref<3x2x4x4xi8>)
// CHECK: what is packed is a matrix, got memref<1x6x9xi8>
qkernel.pack_bytes %w outs(%y) : (memref<1x6x9xi8>, memref<3x2x4x4xi8>) -> ()

// -----

// Signedness stays, also of half bytes.
%w, %y = "test.op"() : () -> (memref<6x9xui4>, memref<3x2x4x4xi8>)
// CHECK: the packed operand of memref<6x9xui4> is ui8, got memref<3x2x4x4xi8>
qkernel.pack_bytes %w outs(%y) : (memref<6x9xui4>, memref<3x2x4x4xi8>) -> ()

// -----

// The shape of the transposed matrix.
%w, %y = "test.op"() : () -> (memref<6x9xi8>, memref<3x2x4x4xi8>)
// CHECK: the packed operand has shape [2, 3, 4, 4], got memref<3x2x4x4xi8>
qkernel.pack_bytes %w outs(%y) {transpose_b} : (memref<6x9xi8>, memref<3x2x4x4xi8>) -> ()

// -----

%x, %y = "test.op"() : () -> (memref<8x5x5xi4>, memref<7x18x4x4xi8>)
// CHECK: x is one of i8, ui8, got memref<8x5x5xi4>
qkernel.pack_window %x outs(%y) {kernel_shape = array<i64: 3, 3>, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, pad_value = 0 : i64} : (memref<8x5x5xi4>, memref<7x18x4x4xi8>) -> ()

// -----

%x, %y = "test.op"() : () -> (memref<8xi8>, memref<7x18x4x4xi8>)
// CHECK: x is an image with channels first, got memref<8xi8>
qkernel.pack_window %x outs(%y) {kernel_shape = array<i64: 3>, strides = array<i64: 1>, pads = array<i64: 1, 1>, dilations = array<i64: 1>, pad_value = 0 : i64} : (memref<8xi8>, memref<7x18x4x4xi8>) -> ()

// -----

%x, %y = "test.op"() : () -> (memref<8x5x5xi8>, memref<7x18x4x4xi8>)
// CHECK: pad_value 200 is no element of memref<8x5x5xi8>
qkernel.pack_window %x outs(%y) {kernel_shape = array<i64: 3, 3>, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, pad_value = 200 : i64} : (memref<8x5x5xi8>, memref<7x18x4x4xi8>) -> ()

// -----

%x, %y = "test.op"() : () -> (memref<8x5x5xi8>, memref<7x18x4x4xi8>)
// CHECK: the window of 7 (dilation 1) does not fit the extent 5 with pads 0 and 0
qkernel.pack_window %x outs(%y) {kernel_shape = array<i64: 7, 3>, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, pad_value = 0 : i64} : (memref<8x5x5xi8>, memref<7x18x4x4xi8>) -> ()

// -----

// 72 elements of a window are 18 words, 9 positions 3 panels.
%x, %y = "test.op"() : () -> (memref<8x5x5xi8>, memref<7x18x4x4xi8>)
// CHECK: the packed operand has shape [3, 18, 4, 4], got memref<7x18x4x4xi8>
qkernel.pack_window %x outs(%y) {kernel_shape = array<i64: 3, 3>, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, pad_value = 0 : i64} : (memref<8x5x5xi8>, memref<7x18x4x4xi8>) -> ()

// -----

%a, %p, %y = "test.op"() : () -> (memref<4x9xf32>, memref<2x3x4x4xi8>, memref<4x6xi32>)
// CHECK: a is one of i8, ui8, got memref<4x9xf32>
qkernel.packed_quant_matmul %a, %p outs(%y) : (memref<4x9xf32>, memref<2x3x4x4xi8>, memref<4x6xi32>) -> ()

// -----

%a, %p, %y = "test.op"() : () -> (memref<1x4x9xi8>, memref<2x3x4x4xi8>, memref<4x6xi32>)
// CHECK: the activation and the output are matrices, got memref<1x4x9xi8> and memref<4x6xi32>
qkernel.packed_quant_matmul %a, %p outs(%y) : (memref<1x4x9xi8>, memref<2x3x4x4xi8>, memref<4x6xi32>) -> ()

// -----

%a, %p, %y = "test.op"() : () -> (memref<4x13xi8>, memref<2x3x4x4xi8>, memref<4x6xi32>)
// CHECK: the packed operand has shape [2, 4, 4, 4], got memref<2x3x4x4xi8>
qkernel.packed_quant_matmul %a, %p outs(%y) : (memref<4x13xi8>, memref<2x3x4x4xi8>, memref<4x6xi32>) -> ()

// -----

%a, %p, %y = "test.op"() : () -> (memref<4x9xi8>, memref<2x3x4x4xi8>, memref<5x6xi32>)
// CHECK: the output has shape [4, 6], got memref<5x6xi32>
qkernel.packed_quant_matmul %a, %p outs(%y) : (memref<4x9xi8>, memref<2x3x4x4xi8>, memref<5x6xi32>) -> ()

// -----

%a, %p, %y = "test.op"() : () -> (memref<4x9xi8>, memref<2x3x4x4xi8>, memref<4x6xi8>)
// CHECK: the accumulator is i32 and there is no epilogue, but the output is memref<4x6xi8>
qkernel.packed_quant_matmul %a, %p outs(%y) : (memref<4x9xi8>, memref<2x3x4x4xi8>, memref<4x6xi8>) -> ()

// -----

%a, %p, %y = "test.op"() : () -> (memref<4x9xi8, strided<[1, 4]>>, memref<2x3x4x4xi8>, memref<4x6xi32>)
// CHECK: rows of the activation are runs of bytes, got memref<4x9xi8, strided<[1, 4]>>
qkernel.packed_quant_matmul %a, %p outs(%y) : (memref<4x9xi8, strided<[1, 4]>>, memref<2x3x4x4xi8>, memref<4x6xi32>) -> ()
