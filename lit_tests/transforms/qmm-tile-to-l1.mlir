// RUN: qfold-opt %s -p 'qmm-tile-to-l1{target="threads:l1=12288,stack=256"}' | filecheck %s
// RUN: qfold-opt %s -p 'qmm-tile-to-l1{target="spike"}' | filecheck %s --check-prefix SPIKE
// RUN: not qfold-opt %s -p 'qmm-tile-to-l1{target="host"}' 2>&1 | filecheck %s --check-prefix HOST

// HOST: target host has no scratchpad to bring tiles to

// Nine rows: the weight is packed, the zero point subtracted on the way; tiles of columns while the activation stays.

// CHECK:       func.func private @pack_i8_i8_kn_64x8(%w: memref<64x8xi8, 1 : i64>, %zero_point: memref<8xi8, 1 : i64>, %y: memref<2x64x4xf32, 1 : i64>) {
// CHECK-NEXT:    qkernel.pack %w zero_point(%zero_point) outs(%y)
// CHECK:       func.func private @packed_matmul_axis_9x64x8_bias(%a: memref<9x64xf32, 1 : i64>, %p: memref<2x64x4xf32, 1 : i64>, %scale: memref<8xf32, 1 : i64>
// CHECK-NEXT:    qkernel.packed_matmul %a, %p scale(%scale) epilogue(%{{.*}}) outs(%y) maps [affine_map<(d0, d1) -> (d1)>]
// CHECK:       func.func private @rows(%a: memref<9x64xf32, 2 : i64>, %w: memref<64x32xi8, 2 : i64>
// CHECK:         [[A:%.*]] = memref.alloc() : memref<9x64xf32, 1 : i64>
// CHECK-NEXT:    [[TA:%.*]] = pulp.dma_start %a, [[A]]
// CHECK-NEXT:    pulp.dma_wait [[TA]]
// CHECK:         memref.subview %w[0, 0] [64, 8] [1, 1] : memref<64x32xi8, 2 : i64> to memref<64x8xi8, strided<[32, 1]>, 2 : i64>
// CHECK-NEXT:    [[TW:%.*]] = pulp.dma_start
// CHECK:         pulp.dma_wait [[TW]]
// CHECK:         memref.subview %w[0, 8] [64, 8] [1, 1]
// CHECK:         func.call @pack_i8_i8_kn_64x8
// CHECK-NEXT:    func.call @packed_matmul_axis_9x64x8_bias
// CHECK:         pulp.dma_start {{.*}} : (memref<9x8xf32, 1 : i64>, memref<9x8xf32, strided<[32, 1]
func.func private @rows(%a: memref<9x64xf32, 2 : i64>, %w: memref<64x32xi8, 2 : i64>, %scale: memref<32xf32, 2 : i64>, %zero_point: memref<32xi8, 2 : i64>, %bias: memref<32xf32, 2 : i64>, %y: memref<9x32xf32, 2 : i64>) {
  qkernel.dequant_matmul %a, %w, %scale zero_point(%zero_point) epilogue(%bias) outs(%y) maps [affine_map<(d0, d1) -> (d1)>] : (memref<9x64xf32, 2 : i64>, memref<64x32xi8, 2 : i64>, memref<32xf32, 2 : i64>, memref<32xi8, 2 : i64>, memref<32xf32, 2 : i64>, memref<9x32xf32, 2 : i64>) -> () {
  ^bb0(%acc: f32, %b: f32):
    %r = arith.addf %acc, %b : f32
    qmm.yield %r : f32
  }
  func.return
}

// One row: the weight is read as it is.

// CHECK:       func.func private @dequant_matmul_f32_i8_kn_axis_1x64x32_l1(%a: memref<1x64xf32, 1 : i64>, %w: memref<64x32xi8, 1 : i64>
// CHECK-NEXT:    qkernel.dequant_matmul
// CHECK:       func.func private @one_row(
// CHECK:         func.call @dequant_matmul_f32_i8_kn_axis_1x64x32_l1
func.func private @one_row(%a: memref<1x64xf32, 2 : i64>, %w: memref<64x32xi8, 2 : i64>, %scale: memref<32xf32, 2 : i64>, %y: memref<1x32xf32, 2 : i64>) {
  qkernel.dequant_matmul %a, %w, %scale outs(%y) {hoisted} : (memref<1x64xf32, 2 : i64>, memref<64x32xi8, 2 : i64>, memref<32xf32, 2 : i64>, memref<1x32xf32, 2 : i64>) -> ()
  func.return
}

// The generated kernels have no exponential: a loop nest finishes the accumulators where they lie.

// SPIKE:       func.func private @packed_matmul_9x8x8(
// SPIKE:       func.func private @node_unnamed_l1_9x8([[P:%.*]]: memref<9x8xf32, 1 : i64>) {
// SPIKE-NEXT:    linalg.generic {{.*}} ins([[P]] : memref<9x8xf32, 1 : i64>) outs([[P]] : memref<9x8xf32, 1 : i64>)
// SPIKE-NEXT:    ^bb0(%{{.*}}: f32, %{{.*}}: f32):
// SPIKE-NEXT:      math.exp
// SPIKE:       func.func private @rich(
// SPIKE:         func.call @pack_f32_kn_8x8
// SPIKE-NEXT:    func.call @packed_matmul_9x8x8({{.*}}, [[Y:%.*]]) :
// SPIKE-NEXT:    func.call @node_unnamed_l1_9x8([[Y]])
// SPIKE-NEXT:    pulp.dma_start [[Y]]
func.func private @rich(%a: memref<9x8xf32, 2 : i64>, %b: memref<8x8xf32, 2 : i64>, %y: memref<9x8xf32, 2 : i64>) {
  qkernel.matmul %a, %b outs(%y) : (memref<9x8xf32, 2 : i64>, memref<8x8xf32, 2 : i64>, memref<9x8xf32, 2 : i64>) -> () {
  ^bb0(%acc: f32):
    %r = math.exp %acc : f32
    qmm.yield %r : f32
  }
  func.return
}

// Tiles of rows go by, two sets of buffers take turns; the loop carries the transfers under way.

// CHECK:       func.func private @sum(
// CHECK:         scf.for [[I:%.*]] = {{.*}} iter_args({{.*}}) -> (!pulp.transfer, !pulp.transfer, !pulp.transfer, !pulp.transfer)
// CHECK:           pulp.dma_wait
// CHECK:           memref.subview %{{.*}}{{\[}}[[I]], 0]
// CHECK:           pulp.dma_start
// CHECK:           func.call @node_unnamed_l1_{{.*}}x32
// CHECK:           scf.yield
func.func private @sum(%x: memref<256x32xf32, 2 : i64>, %z: memref<256x32xf32, 2 : i64>, %y: memref<256x32xf32, 2 : i64>) {
  linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%x, %z : memref<256x32xf32, 2 : i64>, memref<256x32xf32, 2 : i64>) outs(%y : memref<256x32xf32, 2 : i64>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %r = arith.addf %p, %q : f32
    linalg.yield %r : f32
  }
  func.return
}

func.func @main() {
  func.return
}
