// RUN: qfold-opt %s | qfold-opt | filecheck %s

func.func @pack(%w: memref<6x9xi8, strided<[13, 1]>, 1 : i64>, %v: memref<9x6xui4, 1 : i64>, %y: memref<3x2x4x4xi8, 1 : i64>, %z: memref<3x2x4x4xui8, 1 : i64>) {
  qkernel.pack_bytes %w outs(%y) : (memref<6x9xi8, strided<[13, 1]>, 1 : i64>, memref<3x2x4x4xi8, 1 : i64>) -> ()
  qkernel.pack_bytes %v outs(%z) {transpose_b} : (memref<9x6xui4, 1 : i64>, memref<3x2x4x4xui8, 1 : i64>) -> ()
  func.return
}

// CHECK:      func.func @pack
// CHECK-NEXT:   qkernel.pack_bytes %w outs(%y) : (memref<6x9xi8, strided<[13, 1]>, 1 : i64>, memref<3x2x4x4xi8, 1 : i64>) -> ()
// CHECK-NEXT:   qkernel.pack_bytes %v outs(%z) {transpose_b} : (memref<9x6xui4, 1 : i64>, memref<3x2x4x4xui8, 1 : i64>) -> ()

func.func @window(%x: memref<8x5x5xi8, 1 : i64>, %u: memref<3x11xui8, 1 : i64>, %y: memref<7x18x4x4xi8, 1 : i64>, %z: memref<2x3x4x4xui8, 1 : i64>) {
  qkernel.pack_window %x outs(%y) {kernel_shape = array<i64: 3, 3>, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, pad_value = -3 : i64} : (memref<8x5x5xi8, 1 : i64>, memref<7x18x4x4xi8, 1 : i64>) -> ()
  qkernel.pack_window %u outs(%z) {kernel_shape = array<i64: 3>, strides = array<i64: 2>, pads = array<i64: 2, 0>, dilations = array<i64: 1>, pad_value = 255 : i64} : (memref<3x11xui8, 1 : i64>, memref<2x3x4x4xui8, 1 : i64>) -> ()
  func.return
}

// CHECK:      func.func @window
// CHECK-NEXT:   qkernel.pack_window %x outs(%y) {kernel_shape = array<i64: 3, 3>, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, pad_value = -3 : i64} : (memref<8x5x5xi8, 1 : i64>, memref<7x18x4x4xi8, 1 : i64>) -> ()
// CHECK-NEXT:   qkernel.pack_window %u outs(%z) {kernel_shape = array<i64: 3>, strides = array<i64: 2>, pads = array<i64: 2, 0>, dilations = array<i64: 1>, pad_value = 255 : i64} : (memref<3x11xui8, 1 : i64>, memref<2x3x4x4xui8, 1 : i64>) -> ()

func.func @product(%a: memref<4x9xui8, strided<[12, 1]>, 1 : i64>, %p: memref<2x3x4x4xi8, 1 : i64>, %c: memref<6xi32, 1 : i64>, %s: memref<4x6xi32, 1 : i64>, %y: memref<4x6xi8, strided<[9, 1]>, 1 : i64>) {
  qkernel.packed_quant_matmul %a, %p outs(%s) : (memref<4x9xui8, strided<[12, 1]>, 1 : i64>, memref<2x3x4x4xi8, 1 : i64>, memref<4x6xi32, 1 : i64>) -> ()
  qkernel.packed_quant_matmul %a, %p epilogue(%c) outs(%y) maps [affine_map<(d0, d1) -> (d1)>] : (memref<4x9xui8, strided<[12, 1]>, 1 : i64>, memref<2x3x4x4xi8, 1 : i64>, memref<6xi32, 1 : i64>, memref<4x6xi8, strided<[9, 1]>, 1 : i64>) -> () {
  ^bb0(%acc: i32, %e: i32):
    %t = arith.addi %acc, %e : i32
    %r = arith.trunci %t : i32 to i8
    qmm.yield %r : i8
  }
  func.return
}

// CHECK:      func.func @product
// CHECK-NEXT:   qkernel.packed_quant_matmul %a, %p outs(%s) : (memref<4x9xui8, strided<[12, 1]>, 1 : i64>, memref<2x3x4x4xi8, 1 : i64>, memref<4x6xi32, 1 : i64>) -> ()
// CHECK-NEXT:   qkernel.packed_quant_matmul %a, %p epilogue(%c) outs(%y) maps [affine_map<(d0, d1) -> (d1)>] : (memref<4x9xui8, strided<[12, 1]>, 1 : i64>, memref<2x3x4x4xi8, 1 : i64>, memref<6xi32, 1 : i64>, memref<4x6xi8, strided<[9, 1]>, 1 : i64>) -> () {
// CHECK-NEXT:   ^bb0(%acc: i32, %e: i32):
// CHECK-NEXT:     %t = arith.addi %acc, %e : i32
// CHECK-NEXT:     %r = arith.trunci %t : i32 to i8
// CHECK-NEXT:     qmm.yield %r : i8
// CHECK-NEXT:   }
