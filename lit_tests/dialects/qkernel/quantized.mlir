// RUN: qfold-opt %s | qfold-opt | filecheck %s

func.func @matmul(%a: memref<2x4x8xi8, strided<[64, 16, 2]>, 2 : i64>, %b: memref<8x3xui8, 2 : i64>, %za: memref<i8, 2 : i64>, %zb: memref<ui8, 2 : i64>, %y: memref<2x4x3xi32, 2 : i64>, %s: memref<3xf32, 2 : i64>, %f: memref<2x4x3xf32, 2 : i64>) {
  qkernel.quant_matmul %a, %b a_zero_point(%za) b_zero_point(%zb) outs(%y) : (memref<2x4x8xi8, strided<[64, 16, 2]>, 2 : i64>, memref<8x3xui8, 2 : i64>, memref<i8, 2 : i64>, memref<ui8, 2 : i64>, memref<2x4x3xi32, 2 : i64>) -> ()
  qkernel.quant_matmul %a, %b epilogue(%s) outs(%f) maps [affine_map<(d0, d1, d2) -> (d2)>] : (memref<2x4x8xi8, strided<[64, 16, 2]>, 2 : i64>, memref<8x3xui8, 2 : i64>, memref<3xf32, 2 : i64>, memref<2x4x3xf32, 2 : i64>) -> () {
  ^bb0(%acc: i32, %e: f32):
    %x = arith.sitofp %acc : i32 to f32
    %r = arith.mulf %x, %e : f32
    qmm.yield %r : f32
  }
  func.return
}

// CHECK:      func.func @matmul
// CHECK-NEXT:   qkernel.quant_matmul %a, %b a_zero_point(%za) b_zero_point(%zb) outs(%y) : (memref<2x4x8xi8, strided<[64, 16, 2]>, 2 : i64>, memref<8x3xui8, 2 : i64>, memref<i8, 2 : i64>, memref<ui8, 2 : i64>, memref<2x4x3xi32, 2 : i64>) -> ()
// CHECK-NEXT:   qkernel.quant_matmul %a, %b epilogue(%s) outs(%f) maps [affine_map<(d0, d1, d2) -> (d2)>] : (memref<2x4x8xi8, strided<[64, 16, 2]>, 2 : i64>, memref<8x3xui8, 2 : i64>, memref<3xf32, 2 : i64>, memref<2x4x3xf32, 2 : i64>) -> () {
// CHECK-NEXT:   ^bb0(%acc: i32, %e: f32):
// CHECK-NEXT:     %x = arith.sitofp %acc : i32 to f32
// CHECK-NEXT:     %r = arith.mulf %x, %e : f32
// CHECK-NEXT:     qmm.yield %r : f32
// CHECK-NEXT:   }

func.func @conv(%x: memref<1x4x5xui8, 2 : i64>, %w: memref<6x4x3xi4, 2 : i64>, %zx: memref<ui8, 2 : i64>, %zw: memref<6xi8, 2 : i64>, %y: memref<1x6x5xi32, 2 : i64>) {
  qkernel.quant_conv %x, %w x_zero_point(%zx) w_zero_point(%zw) outs(%y) {strides = array<i64: 1>, pads = array<i64: 1, 1>, dilations = array<i64: 1>, groups = 1 : i64} : (memref<1x4x5xui8, 2 : i64>, memref<6x4x3xi4, 2 : i64>, memref<ui8, 2 : i64>, memref<6xi8, 2 : i64>, memref<1x6x5xi32, 2 : i64>) -> ()
  func.return
}

// CHECK:      func.func @conv
// CHECK-NEXT:   qkernel.quant_conv %x, %w x_zero_point(%zx) w_zero_point(%zw) outs(%y) {strides = array<i64: 1>, pads = array<i64: 1, 1>, dilations = array<i64: 1>, groups = 1 : i64} : (memref<1x4x5xui8, 2 : i64>, memref<6x4x3xi4, 2 : i64>, memref<ui8, 2 : i64>, memref<6xi8, 2 : i64>, memref<1x6x5xi32, 2 : i64>) -> ()
