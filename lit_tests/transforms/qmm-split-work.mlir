// RUN: qfold-opt %s -p 'qmm-split-work' | filecheck %s
// RUN: qfold-opt %s -p 'qmm-split-work{target="threads:cores=3"}' | filecheck %s --check-prefix THREE

// Blocks of four rows by panels of four columns: 3 x 4 of them, of which each of 6 cores gets 2; three cores 4.
// CHECK:      @packed({{.*}} attributes {qmm.split = array<i64: 3, 2>}
// THREE:      @packed({{.*}} attributes {qmm.split = array<i64: 3, 1>}
func.func private @packed(%a: memref<12x8xf32, 1 : i64>, %p: memref<4x8x4xf32, 1 : i64>, %y: memref<12x16xf32, 1 : i64>) {
  qkernel.packed_matmul %a, %p outs(%y) : (memref<12x8xf32, 1 : i64>, memref<4x8x4xf32, 1 : i64>, memref<12x16xf32, 1 : i64>) -> ()
  func.return
}

// Panels before K.
// CHECK:      @pack({{.*}} attributes {qmm.split = array<i64: 4, 2>}
// THREE:      @pack({{.*}} attributes {qmm.split = array<i64: 1, 3>}
func.func private @pack(%w: memref<9x16xi8, 1 : i64>, %y: memref<4x9x4xf32, 1 : i64>) {
  qkernel.pack %w outs(%y) : (memref<9x16xi8, 1 : i64>, memref<4x9x4xf32, 1 : i64>) -> ()
  func.return
}

// Columns: each weight is converted once, for all rows.
// CHECK:      @direct({{.*}} attributes {qmm.split = array<i64: 1, 8>}
func.func private @direct(%a: memref<4x8xf32, 1 : i64>, %w: memref<8x16xi8, 1 : i64>, %scale: memref<f32, 1 : i64>, %y: memref<4x16xf32, 1 : i64>) {
  qkernel.dequant_matmul %a, %w, %scale outs(%y) : (memref<4x8xf32, 1 : i64>, memref<8x16xi8, 1 : i64>, memref<f32, 1 : i64>, memref<4x16xf32, 1 : i64>) -> ()
  func.return
}

// CHECK:      @sums({{.*}} attributes {qmm.split = array<i64: 5>}
func.func private @sums(%a: memref<5x8xf32, 1 : i64>, %y: memref<5xf32, 1 : i64>) {
  qkernel.row_sum %a outs(%y) : (memref<5x8xf32, 1 : i64>, memref<5xf32, 1 : i64>) -> ()
  func.return
}

// Reductions are not divided.
// CHECK:      @reduction({{.*}} attributes {qmm.split = array<i64: 1, 8>}
func.func private @reduction(%x: memref<64x8xf32, 1 : i64>, %y: memref<8xf32, 1 : i64>) {
  %zero = arith.constant 0.0 : f32
  linalg.fill ins(%zero : f32) outs(%y : memref<8xf32, 1 : i64>)
  linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>], iterator_types = ["reduction", "parallel"]} ins(%x : memref<64x8xf32, 1 : i64>) outs(%y : memref<8xf32, 1 : i64>) {
  ^bb0(%p: f32, %o: f32):
    %r = arith.addf %o, %p : f32
    linalg.yield %r : f32
  }
  func.return
}

// CHECK:      @copy({{.*}} attributes {qmm.split = array<i64: 8, 1>}
func.func private @copy(%x: memref<16x3xf32, 2 : i64>, %y: memref<16x3xf32, 2 : i64>) {
  "memref.copy"(%x, %y) : (memref<16x3xf32, 2 : i64>, memref<16x3xf32, 2 : i64>) -> ()
  func.return
}

// Two elements share a byte.
// CHECK:      @nibbles({{.*}} attributes {qmm.split = array<i64: 1>}
func.func private @nibbles(%x: memref<16xi4, 2 : i64>, %y: memref<16xi4, 2 : i64>) {
  "memref.copy"(%x, %y) : (memref<16xi4, 2 : i64>, memref<16xi4, 2 : i64>) -> ()
  func.return
}

func.func @main() {
  func.return
}
