// RUN: qfold-opt %s -p 'qmm-plan-scratchpad' | filecheck %s
// RUN: qfold-opt %s -p 'qmm-plan-scratchpad,qmm-verify-buffers,qmm-select-kernels{target="threads"},qmm-plan-memory{target="threads"},qmm-check-plan' | filecheck %s --check-prefix PLAN
// RUN: not qfold-opt %s -p 'qmm-plan-scratchpad{target="threads:l1=1280,stack=16"}' 2>&1 | filecheck %s --check-prefix SMALL

// SMALL: @dispatch (func.func) needs 160 bytes of L1 for its tiles, but target threads:l1=1280,stack=16 has 128: 1280 less 8 stacks of 16 and 1024 of the runtime

func.func private @leaf(%in: memref<20xf32, 1 : i64>, %out: memref<20xf32, 1 : i64>) {
  linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%in : memref<20xf32, 1 : i64>) outs(%out : memref<20xf32, 1 : i64>) {
  ^bb0(%p: f32, %o: f32):
    %r = arith.addf %p, %p : f32
    linalg.yield %r : f32
  }
  func.return
}

// The third buffer takes the place of the first, whose last use is before; the second is needed by both calls.

// CHECK:       func.func private @dispatch(%l1: memref<160xi8, 1 : i64>, %x: memref<20xf32, 2 : i64>, %y: memref<20xf32, 2 : i64>) attributes {qmm.l1_bytes = 160 : i64} {
// CHECK:         [[A:%.*]] = arith.constant [[PLACE:[0-9]+]] : index
// CHECK-NEXT:    [[FIRST:%.*]] = memref.view %l1{{\[}}[[A]]][] : memref<160xi8, 1 : i64> to memref<20xf32, 1 : i64>
// CHECK:         [[SECOND:%.*]] = memref.view %l1
// CHECK-NEXT:    [[C:%.*]] = arith.constant [[PLACE]] : index
// CHECK-NEXT:    [[THIRD:%.*]] = memref.view %l1{{\[}}[[C]]][]
// CHECK-NOT:     memref.alloc
// CHECK:         func.call @leaf([[FIRST]], [[SECOND]])
// CHECK:         func.call @leaf([[SECOND]], [[THIRD]])
// CHECK:       func.func @main(%l1: memref<160xi8, 1 : i64> {qmm.role = "arena"}, %x: memref<20xf32, 2 : i64> {qmm.role = "input"}
// CHECK:         func.call @dispatch(%l1, %x, %y) {qmm.dispatch = 0 : i64}

// PLAN:        @leaf({{.*}} attributes {qmm.kernel = "c.loops"}
// PLAN:        @dispatch({{.*}} attributes {qmm.l1_bytes = 160 : i64, qmm.kernel = "staged"}
// PLAN:        @main(%arena: memref<0xi8, 2 : i64> {qmm.role = "arena"}, %l1: memref<160xi8, 1 : i64>
func.func private @dispatch(%x: memref<20xf32, 2 : i64>, %y: memref<20xf32, 2 : i64>) {
  %a = memref.alloc() : memref<20xf32, 1 : i64>
  %b = memref.alloc() : memref<20xf32, 1 : i64>
  %c = memref.alloc() : memref<20xf32, 1 : i64>
  %t = pulp.dma_start %x, %a : (memref<20xf32, 2 : i64>, memref<20xf32, 1 : i64>) -> !pulp.transfer
  pulp.dma_wait %t
  func.call @leaf(%a, %b) : (memref<20xf32, 1 : i64>, memref<20xf32, 1 : i64>) -> ()
  func.call @leaf(%b, %c) : (memref<20xf32, 1 : i64>, memref<20xf32, 1 : i64>) -> ()
  %u = pulp.dma_start %c, %y : (memref<20xf32, 1 : i64>, memref<20xf32, 2 : i64>) -> !pulp.transfer
  pulp.dma_wait %u
  func.return
}

func.func @main(%x: memref<20xf32, 2 : i64> {qmm.role = "input"}, %y: memref<20xf32, 2 : i64> {qmm.role = "output"}) {
  func.call @dispatch(%x, %y) {qmm.dispatch = 0 : i64} : (memref<20xf32, 2 : i64>, memref<20xf32, 2 : i64>) -> ()
  func.return
}
