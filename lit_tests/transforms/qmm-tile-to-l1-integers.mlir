// RUN: qfold-opt %s -p 'qmm-tile-to-l1{target="threads:l1=6144,cores=4,stack=256"}' | filecheck %s

// Two activations: the right one is packed in L1. Rows of the left one are 13 bytes, 16 apart there, so that each starts at a word.

// CHECK:       func.func private @pack_bytes_i8_kn_13x6(%w: memref<13x6xi8, 1 : i64>, %y: memref<2x4x4x4xi8, 1 : i64>) {
// CHECK-NEXT:    qkernel.pack_bytes %w outs(%y)
// CHECK:       func.func private @packed_quant_matmul_ui8_i8_9x13x6(%a: memref<9x13xui8, strided<[16, 1]>, 1 : i64>, %p: memref<2x4x4x4xi8, 1 : i64>, %y: memref<9x6xi32, 1 : i64>) {
// CHECK-NEXT:    qkernel.packed_quant_matmul %a, %p outs(%y)
// CHECK:       func.func private @product(
// CHECK:         [[BUFFER:%[a-z_0-9]+]] = memref.alloc() : memref<9x16xui8, 1 : i64>
// CHECK-NEXT:    [[A:%[a-z_0-9]+]] = memref.subview [[BUFFER]][0, 0] [9, 13] [1, 1]
// CHECK-NEXT:    [[TA:%[a-z_0-9]+]] = pulp.dma_start %a, [[A]] : (memref<9x13xui8, 2 : i64>, memref<9x13xui8, strided<[16, 1]>, 1 : i64>)
// CHECK-NEXT:    pulp.dma_wait [[TA]]
// CHECK:         [[TB:%[a-z_0-9]+]] = pulp.dma_start %b, [[B:%[a-z_0-9]+]] :
// CHECK-NEXT:    pulp.dma_wait [[TB]]
// CHECK-NEXT:    [[P:%[a-z_0-9]+]] = memref.alloc() : memref<2x4x4x4xi8, 1 : i64>
// CHECK-NEXT:    func.call @pack_bytes_i8_kn_13x6([[B]], [[P]])
// CHECK-NEXT:    func.call @packed_quant_matmul_ui8_i8_9x13x6([[A]], [[P]], [[Y:%[a-z_0-9]+]]) :
// CHECK-NEXT:    pulp.dma_start [[Y]], %y
func.func private @product(%a: memref<9x13xui8, 2 : i64>, %b: memref<13x6xi8, 2 : i64>, %y: memref<9x6xi32, 2 : i64>) {
  qkernel.quant_matmul %a, %b outs(%y) : (memref<9x13xui8, 2 : i64>, memref<13x6xi8, 2 : i64>, memref<9x6xi32, 2 : i64>) -> ()
  func.return
}

// A constant that is packed already: whole panels go by, four of them at a time, while the activation stays; the last tile has two
// columns less. A panel is four rows of a matrix.

// CHECK:       func.func private @packed_quant_matmul_ui8_i8_9x64x16_to_i8(%a: memref<9x64xui8, 1 : i64>, %p: memref<4x16x4x4xi8, 1 : i64>, {{.*}}: memref<16xi32, 1 : i64>, %y: memref<9x16xi8, 1 : i64>)
// CHECK:       func.func private @packed_quant_matmul_ui8_i8_9x64x14_to_i8(%a: memref<9x64xui8, 1 : i64>, %p: memref<4x16x4x4xi8, 1 : i64>, {{.*}}: memref<14xi32, 1 : i64>, %y: memref<9x14xi8, 1 : i64>)
// CHECK:       func.func private @panels(
// CHECK-NEXT:    [[FLAT:%[a-z_0-9]+]] = memref.collapse_shape %p
// CHECK-NEXT:    [[MATRIX:%[a-z_0-9]+]] = memref.expand_shape [[FLAT]] {{.*}} into memref<96x64xi8, 2 : i64>
// CHECK:         memref.subview [[MATRIX]][16, 0] [16, 64] [1, 1]
// CHECK:         [[TILE:%[a-z_0-9]+]] = memref.expand_shape {{.*}} into memref<4x16x4x4xi8, 1 : i64>
// CHECK-NEXT:    func.call @packed_quant_matmul_ui8_i8_9x64x16_to_i8({{%.*}}, [[TILE]],
// CHECK:         memref.subview [[MATRIX]][80, 0] [16, 64] [1, 1]
// CHECK:         func.call @packed_quant_matmul_ui8_i8_9x64x14_to_i8
func.func private @panels(%a: memref<9x64xui8, 2 : i64>, %p: memref<24x16x4x4xi8, 2 : i64>, %bias: memref<94xi32, 2 : i64>, %y: memref<9x94xi8, 2 : i64>) {
  qkernel.packed_quant_matmul %a, %p epilogue(%bias) outs(%y) maps [affine_map<(d0, d1) -> (d1)>] : (memref<9x64xui8, 2 : i64>, memref<24x16x4x4xi8, 2 : i64>, memref<94xi32, 2 : i64>, memref<9x94xi8, 2 : i64>) -> () {
  ^bb0(%acc: i32, %c: i32):
    %s = arith.addi %acc, %c : i32
    %r = arith.trunci %s : i32 to i8
    qmm.yield %r : i8
  }
  func.return
}

// A convolution: weights are rows, 45 bytes and 48 apart. Parts of the image go by, four output rows at a time; the first has padding
// above, the last below.

// CHECK:       func.func private @pack_window_ui8_5x5x10_3x3(%x: memref<5x5x10xui8, 1 : i64>, %y: memref<10x12x4x4xui8, 1 : i64>) {
// CHECK-NEXT:    qkernel.pack_window %x outs(%y) {kernel_shape = array<i64: 3, 3>, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 0, 1>, dilations = array<i64: 1, 1>, pad_value = 128 : i64}
// CHECK:       func.func private @packed_quant_matmul_i8_ui8_8x45x40(%a: memref<8x45xi8, strided<[48, 1]>, 1 : i64>, %p: memref<10x12x4x4xui8, 1 : i64>, %y: memref<8x40xi32, 1 : i64>) {
// CHECK:       func.func private @pack_window_ui8_5x6x10_3x3(
// CHECK-NEXT:    pads = array<i64: 0, 1, 0, 1>
// CHECK:       func.func private @pack_window_ui8_5x5x10_3x3_2(
// CHECK-NEXT:    pads = array<i64: 0, 1, 1, 1>
// CHECK:       func.func private @windows(
// CHECK-NEXT:    [[ROWS:%[a-z_0-9]+]] = memref.collapse_shape %w {{.*}} into memref<8x45xi8, 2 : i64>
// CHECK:         pulp.dma_start [[ROWS]], [[W:%[a-z_0-9]+]] :
// CHECK:         memref.subview %x[0, 0, 0, 0] [1, 5, 5, 10]
// CHECK:         func.call @pack_window_ui8_5x5x10_3x3([[X:%[a-z_0-9]+]], [[P:%[a-z_0-9]+]]) :
// CHECK-NEXT:    [[Y:%[a-z_0-9]+]] = memref.collapse_shape {{.*}} : memref<8x4x10xi32, 1 : i64> into memref<8x40xi32, 1 : i64>
// CHECK-NEXT:    func.call @packed_quant_matmul_i8_ui8_8x45x40([[W]], [[P]], [[Y]])
// CHECK:         memref.subview %x[0, 0, 3, 0] [1, 5, 6, 10]
// CHECK:         func.call @pack_window_ui8_5x6x10_3x3(
// CHECK:         memref.subview %x[0, 0, 19, 0] [1, 5, 5, 10]
// CHECK:         func.call @pack_window_ui8_5x5x10_3x3_2(
func.func private @windows(%x: memref<1x5x24x10xui8, 2 : i64>, %w: memref<8x5x3x3xi8, 2 : i64>, %y: memref<1x8x24x10xi32, 2 : i64>) {
  qkernel.quant_conv %x, %w outs(%y) {strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 1 : i64, pad_value = 128 : i64} : (memref<1x5x24x10xui8, 2 : i64>, memref<8x5x3x3xi8, 2 : i64>, memref<1x8x24x10xi32, 2 : i64>) -> ()
  func.return
}

// Rows of equal parts are a loop: the image is read two rows further for each row of the output.

// CHECK:       func.func private @rows(
// CHECK:         scf.for [[I:%[a-z_0-9]+]] = {{.*}} iter_args(
// CHECK:           [[J:%[a-z_0-9]+]] = arith.muli [[I]], {{%.*}} : index
// CHECK:           memref.subview {{%.*}}{{\[}}0, 0, [[J]], 0]
func.func private @rows(%x: memref<1x4x64x64xi8, 2 : i64>, %w: memref<4x4x2x2xi8, 2 : i64>, %y: memref<1x4x32x32xi32, 2 : i64>) {
  qkernel.quant_conv %x, %w outs(%y) {strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (memref<1x4x64x64xi8, 2 : i64>, memref<4x4x2x2xi8, 2 : i64>, memref<1x4x32x32xi32, 2 : i64>) -> ()
  func.return
}

// A depthwise convolution has nothing to add up by fours: the loops themselves work in L1.

// CHECK:       func.func private @quant_conv_ui8_i8_1x8x6x10_8x1x3x3_l1(%x: memref<1x8x6x10xui8, 1 : i64>
// CHECK:       func.func private @depthwise(
// CHECK:         func.call @quant_conv_ui8_i8_1x8x6x10_8x1x3x3_l1(
func.func private @depthwise(%x: memref<1x8x6x10xui8, 2 : i64>, %w: memref<8x1x3x3xi8, 2 : i64>, %y: memref<1x8x4x8xi32, 2 : i64>) {
  qkernel.quant_conv %x, %w outs(%y) {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 8 : i64} : (memref<1x8x6x10xui8, 2 : i64>, memref<8x1x3x3xi8, 2 : i64>, memref<1x8x4x8xi32, 2 : i64>) -> ()
  func.return
}

// Nor has a product with zero points.

// CHECK:       func.func private @quant_matmul_i8_i8_kn_5x6x7_l1(
// CHECK-NEXT:    qkernel.quant_matmul %a, %b a_zero_point(%a_zero_point) outs(%y)
func.func private @zero(%a: memref<5x6xi8, 2 : i64>, %b: memref<6x7xi8, 2 : i64>, %z: memref<5xi8, 2 : i64>, %y: memref<5x7xi32, 2 : i64>) {
  qkernel.quant_matmul %a, %b a_zero_point(%z) outs(%y) : (memref<5x6xi8, 2 : i64>, memref<6x7xi8, 2 : i64>, memref<5xi8, 2 : i64>, memref<5x7xi32, 2 : i64>) -> ()
  func.return
}

func.func @main() {
  func.return
}
