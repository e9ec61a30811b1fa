// RUN: qfold-opt %s --split-input-file | qfold-opt --split-input-file | filecheck %s

func.func @matmul(%a: memref<4x8xf32, 2 : i64>, %b: memref<3x8xf32, 2 : i64>, %c: memref<3xf32, 2 : i64>, %y: memref<4x3xf32, 2 : i64>, %q: memref<4x3xi8, 2 : i64>) {
  qkernel.matmul %a, %b outs(%y) {transpose_b} : (memref<4x8xf32, 2 : i64>, memref<3x8xf32, 2 : i64>, memref<4x3xf32, 2 : i64>) -> ()
  qkernel.matmul %a, %b epilogue(%c) outs(%q) maps [affine_map<(d0, d1) -> (d1)>] {transpose_b} : (memref<4x8xf32, 2 : i64>, memref<3x8xf32, 2 : i64>, memref<3xf32, 2 : i64>, memref<4x3xi8, 2 : i64>) -> () {
  ^bb0(%acc: f32, %e: f32):
    %sum = arith.addf %acc, %e : f32
    %r = arith.fptosi %sum : f32 to i8
    qmm.yield %r : i8
  }
  func.return
}

// CHECK:      func.func @matmul(%[[Va:\w+]]: memref<4x8xf32, 2 : i64>, %[[Vb:\w+]]: memref<3x8xf32, 2 : i64>, %[[Vc:\w+]]: memref<3xf32, 2 : i64>, %[[Vy:\w+]]: memref<4x3xf32, 2 : i64>, %[[Vq:\w+]]: memref<4x3xi8, 2 : i64>) {
// CHECK-NEXT:   qkernel.matmul %[[Va]], %[[Vb]] outs(%[[Vy]]) {transpose_b} : (memref<4x8xf32, 2 : i64>, memref<3x8xf32, 2 : i64>, memref<4x3xf32, 2 : i64>) -> ()
// CHECK-NEXT:   qkernel.matmul %[[Va]], %[[Vb]] epilogue(%[[Vc]]) outs(%[[Vq]]) maps [affine_map<(d0, d1) -> (d1)>] {transpose_b} : (memref<4x8xf32, 2 : i64>, memref<3x8xf32, 2 : i64>, memref<3xf32, 2 : i64>, memref<4x3xi8, 2 : i64>) -> () {
// CHECK-NEXT:   ^bb0(%[[Vacc:\w+]]: f32, %[[Ve:\w+]]: f32):
// CHECK-NEXT:     %[[Vsum:\w+]] = arith.addf %[[Vacc]], %[[Ve]] : f32
// CHECK-NEXT:     %[[Vr:\w+]] = arith.fptosi %[[Vsum]] : f32 to i8
// CHECK-NEXT:     qmm.yield %[[Vr]] : i8
// CHECK-NEXT:   }
// CHECK-NEXT:   func.return
// CHECK-NEXT: }

// -----

func.func @dequant_matmul(%a: memref<4x8xf32>, %w: memref<8x3xi8>, %s: memref<f32>, %axis: memref<3xf32>, %blocks: memref<3x3xf32>, %z: memref<3xi8>, %zb: memref<3x3xi8>, %rows: memref<4xf32>, %sums: memref<4x3xf32>, %y: memref<4x3xf32>) {
  qkernel.dequant_matmul %a, %w, %s outs(%y) : (memref<4x8xf32>, memref<8x3xi8>, memref<f32>, memref<4x3xf32>) -> ()
  qkernel.dequant_matmul %a, %w, %axis zero_point(%z) row_sum(%rows) outs(%y) {hoisted} : (memref<4x8xf32>, memref<8x3xi8>, memref<3xf32>, memref<3xi8>, memref<4xf32>, memref<4x3xf32>) -> ()
  qkernel.dequant_matmul %a, %w, %blocks zero_point(%zb) row_sum(%sums) outs(%y) {block_size = 3 : i64, hoisted} : (memref<4x8xf32>, memref<8x3xi8>, memref<3x3xf32>, memref<3x3xi8>, memref<4x3xf32>, memref<4x3xf32>) -> ()
  func.return
}

// CHECK:      func.func @dequant_matmul(%[[Va:\w+]]: memref<4x8xf32>, %[[Vw:\w+]]: memref<8x3xi8>, %[[Vs:\w+]]: memref<f32>, %[[Vaxis:\w+]]: memref<3xf32>, %[[Vblocks:\w+]]: memref<3x3xf32>, %[[Vz:\w+]]: memref<3xi8>, %[[Vzb:\w+]]: memref<3x3xi8>, %[[Vrows:\w+]]: memref<4xf32>, %[[Vsums:\w+]]: memref<4x3xf32>, %[[Vy:\w+]]: memref<4x3xf32>) {
// CHECK-NEXT:   qkernel.dequant_matmul %[[Va]], %[[Vw]], %[[Vs]] outs(%[[Vy]]) : (memref<4x8xf32>, memref<8x3xi8>, memref<f32>, memref<4x3xf32>) -> ()
// CHECK-NEXT:   qkernel.dequant_matmul %[[Va]], %[[Vw]], %[[Vaxis]] zero_point(%[[Vz]]) row_sum(%[[Vrows]]) outs(%[[Vy]]) {hoisted} : (memref<4x8xf32>, memref<8x3xi8>, memref<3xf32>, memref<3xi8>, memref<4xf32>, memref<4x3xf32>) -> ()
// CHECK-NEXT:   qkernel.dequant_matmul %[[Va]], %[[Vw]], %[[Vblocks]] zero_point(%[[Vzb]]) row_sum(%[[Vsums]]) outs(%[[Vy]]) {block_size = 3 : i64, hoisted} : (memref<4x8xf32>, memref<8x3xi8>, memref<3x3xf32>, memref<3x3xi8>, memref<4x3xf32>, memref<4x3xf32>) -> ()
// CHECK-NEXT:   func.return
// CHECK-NEXT: }

// -----

func.func @conv(%x: memref<1x2x4x4xf32>, %w: memref<2x1x3x3xf32>, %wq: memref<2x1x3x3xui4>, %s: memref<2xf32>, %z: memref<2xui8>, %sum: memref<1x2x4x2xf32>, %y: memref<1x2x4x2xf32>) {
  qkernel.conv %x, %w outs(%y) {strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (memref<1x2x4x4xf32>, memref<2x1x3x3xf32>, memref<1x2x4x2xf32>) -> ()
  qkernel.window_sum %x outs(%sum) {kernel_shape = array<i64: 3, 3>, strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (memref<1x2x4x4xf32>, memref<1x2x4x2xf32>) -> ()
  qkernel.dequant_conv %x, %wq, %s zero_point(%z) window_sum(%sum) outs(%y) {hoisted, strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (memref<1x2x4x4xf32>, memref<2x1x3x3xui4>, memref<2xf32>, memref<2xui8>, memref<1x2x4x2xf32>, memref<1x2x4x2xf32>) -> ()
  func.return
}

// CHECK:      func.func @conv(%[[Vx:\w+]]: memref<1x2x4x4xf32>, %[[Vw:\w+]]: memref<2x1x3x3xf32>, %[[Vwq:\w+]]: memref<2x1x3x3xui4>, %[[Vs:\w+]]: memref<2xf32>, %[[Vz:\w+]]: memref<2xui8>, %[[Vsum:\w+]]: memref<1x2x4x2xf32>, %[[Vy:\w+]]: memref<1x2x4x2xf32>) {
// CHECK-NEXT:   qkernel.conv %[[Vx]], %[[Vw]] outs(%[[Vy]]) {strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (memref<1x2x4x4xf32>, memref<2x1x3x3xf32>, memref<1x2x4x2xf32>) -> ()
// CHECK-NEXT:   qkernel.window_sum %[[Vx]] outs(%[[Vsum]]) {kernel_shape = array<i64: 3, 3>, strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (memref<1x2x4x4xf32>, memref<1x2x4x2xf32>) -> ()
// CHECK-NEXT:   qkernel.dequant_conv %[[Vx]], %[[Vwq]], %[[Vs]] zero_point(%[[Vz]]) window_sum(%[[Vsum]]) outs(%[[Vy]]) {hoisted, strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (memref<1x2x4x4xf32>, memref<2x1x3x3xui4>, memref<2xf32>, memref<2xui8>, memref<1x2x4x2xf32>, memref<1x2x4x2xf32>) -> ()
// CHECK-NEXT:   func.return
// CHECK-NEXT: }

// -----

func.func @packed(%w: memref<8x6xi8, 1 : i64>, %t: memref<6x8xui4, 1 : i64>, %f: memref<8x6xf32, 1 : i64>, %z: memref<6xi8, 1 : i64>, %s: memref<f32, 1 : i64>, %axis: memref<6xf32, 1 : i64>, %sb: memref<6x2xf32, 1 : i64>, %zb: memref<6x2xui8, 1 : i64>, %a: memref<3x8xf32, 1 : i64>, %p: memref<2x8x4xf32, 1 : i64>, %r: memref<3xf32, 1 : i64>, %y: memref<3x6xf32, 1 : i64>) {
  qkernel.pack %w zero_point(%z) outs(%p) : (memref<8x6xi8, 1 : i64>, memref<6xi8, 1 : i64>, memref<2x8x4xf32, 1 : i64>) -> ()
  qkernel.pack %t scale(%sb) zero_point(%zb) outs(%p) {block_size = 4 : i64, transpose_b} : (memref<6x8xui4, 1 : i64>, memref<6x2xf32, 1 : i64>, memref<6x2xui8, 1 : i64>, memref<2x8x4xf32, 1 : i64>) -> ()
  qkernel.pack %f outs(%p) : (memref<8x6xf32, 1 : i64>, memref<2x8x4xf32, 1 : i64>) -> ()
  qkernel.row_sum %a outs(%r) : (memref<3x8xf32, 1 : i64>, memref<3xf32, 1 : i64>) -> ()
  qkernel.packed_matmul %a, %p outs(%y) : (memref<3x8xf32, 1 : i64>, memref<2x8x4xf32, 1 : i64>, memref<3x6xf32, 1 : i64>) -> ()
  qkernel.packed_matmul %a, %p scale(%axis) zero_point(%z) row_sum(%r) epilogue(%s) outs(%y) maps [affine_map<(d0, d1) -> ()>] {hoisted} : (memref<3x8xf32, 1 : i64>, memref<2x8x4xf32, 1 : i64>, memref<6xf32, 1 : i64>, memref<6xi8, 1 : i64>, memref<3xf32, 1 : i64>, memref<f32, 1 : i64>, memref<3x6xf32, 1 : i64>) -> () {
  ^bb0(%acc: f32, %e: f32):
    %sum = arith.addf %acc, %e : f32
    qmm.yield %sum : f32
  }
  func.return
}

// CHECK:      func.func @packed(%[[Vw:\w+]]: memref<8x6xi8, 1 : i64>, %[[Vt:\w+]]: memref<6x8xui4, 1 : i64>, %[[Vf:\w+]]: memref<8x6xf32, 1 : i64>, %[[Vz:\w+]]: memref<6xi8, 1 : i64>, %[[Vs:\w+]]: memref<f32, 1 : i64>, %[[Vaxis:\w+]]: memref<6xf32, 1 : i64>, %[[Vsb:\w+]]: memref<6x2xf32, 1 : i64>, %[[Vzb:\w+]]: memref<6x2xui8, 1 : i64>, %[[Va:\w+]]: memref<3x8xf32, 1 : i64>, %[[Vp:\w+]]: memref<2x8x4xf32, 1 : i64>, %[[Vr:\w+]]: memref<3xf32, 1 : i64>, %[[Vy:\w+]]: memref<3x6xf32, 1 : i64>) {
// CHECK-NEXT:   qkernel.pack %[[Vw]] zero_point(%[[Vz]]) outs(%[[Vp]]) : (memref<8x6xi8, 1 : i64>, memref<6xi8, 1 : i64>, memref<2x8x4xf32, 1 : i64>) -> ()
// CHECK-NEXT:   qkernel.pack %[[Vt]] scale(%[[Vsb]]) zero_point(%[[Vzb]]) outs(%[[Vp]]) {block_size = 4 : i64, transpose_b} : (memref<6x8xui4, 1 : i64>, memref<6x2xf32, 1 : i64>, memref<6x2xui8, 1 : i64>, memref<2x8x4xf32, 1 : i64>) -> ()
// CHECK-NEXT:   qkernel.pack %[[Vf]] outs(%[[Vp]]) : (memref<8x6xf32, 1 : i64>, memref<2x8x4xf32, 1 : i64>) -> ()
// CHECK-NEXT:   qkernel.row_sum %[[Va]] outs(%[[Vr]]) : (memref<3x8xf32, 1 : i64>, memref<3xf32, 1 : i64>) -> ()
// CHECK-NEXT:   qkernel.packed_matmul %[[Va]], %[[Vp]] outs(%[[Vy]]) : (memref<3x8xf32, 1 : i64>, memref<2x8x4xf32, 1 : i64>, memref<3x6xf32, 1 : i64>) -> ()
// CHECK-NEXT:   qkernel.packed_matmul %[[Va]], %[[Vp]] scale(%[[Vaxis]]) zero_point(%[[Vz]]) row_sum(%[[Vr]]) epilogue(%[[Vs]]) outs(%[[Vy]]) maps [affine_map<(d0, d1) -> ()>] {hoisted} : (memref<3x8xf32, 1 : i64>, memref<2x8x4xf32, 1 : i64>, memref<6xf32, 1 : i64>, memref<6xi8, 1 : i64>, memref<3xf32, 1 : i64>, memref<f32, 1 : i64>, memref<3x6xf32, 1 : i64>) -> () {
// CHECK-NEXT:   ^bb0(%[[Vacc:\w+]]: f32, %[[Ve:\w+]]: f32):
// CHECK-NEXT:     %[[Vsum:\w+]] = arith.addf %[[Vacc]], %[[Ve]] : f32
// CHECK-NEXT:     qmm.yield %[[Vsum]] : f32
// CHECK-NEXT:   }
// CHECK-NEXT:   func.return
// CHECK-NEXT: }
