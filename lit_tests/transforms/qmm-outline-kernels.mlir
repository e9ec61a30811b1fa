// RUN: qfold-opt %s -p 'qmm-outline-kernels' | filecheck %s
// RUN: qfold-opt %s -p 'qmm-outline-kernels,qmm-select-kernels,qmm-plan-memory,qmm-check-plan' | filecheck %s --check-prefix PLAN

func.func @main(%x: memref<2x4xf32, 2 : i64> {qmm.role = "input"}, %y: memref<2xf32, 2 : i64> {qmm.role = "output"}) {
  %zero = arith.constant 0.0 : f32
  %a = memref.alloc() : memref<2x2xf32, 2 : i64>
  qkernel.matmul %x, %x outs(%a) {transpose_b} : (memref<2x4xf32, 2 : i64>, memref<2x4xf32, 2 : i64>, memref<2x2xf32, 2 : i64>) -> ()
  %b = memref.alloc() : memref<2x2xf32, 2 : i64>
  qkernel.matmul %a, %a outs(%b) : (memref<2x2xf32, 2 : i64>, memref<2x2xf32, 2 : i64>, memref<2x2xf32, 2 : i64>) -> ()
  %c = memref.alloc() : memref<2x2xf32, 2 : i64>
  qkernel.matmul %b, %a outs(%c) : (memref<2x2xf32, 2 : i64>, memref<2x2xf32, 2 : i64>, memref<2x2xf32, 2 : i64>) -> ()
  linalg.fill ins(%zero : f32) outs(%y : memref<2xf32, 2 : i64>)
  linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%c : memref<2x2xf32, 2 : i64>) outs(%y : memref<2xf32, 2 : i64>) {
  ^bb0(%p: f32, %q: f32):
    %r = arith.addf %q, %p : f32
    linalg.yield %r : f32
  }
  func.return
}

// The operand that is read twice is one argument.
// CHECK:       func.func private @matmul_f32_f32_mk_nk_2x4x2(%a: memref<2x4xf32, 2 : i64>, %y: memref<2x2xf32, 2 : i64>) {
// CHECK-NEXT:    qkernel.matmul %a, %a outs(%y) {transpose_b}
// CHECK-NEXT:    func.return
// CHECK:       func.func private @matmul_f32_f32_mk_kn_2x2x2(%a: memref<2x2xf32, 2 : i64>, %y: memref<2x2xf32, 2 : i64>) {
// CHECK:       func.func private @matmul_f32_f32_mk_kn_2x2x2_2(%a: memref<2x2xf32, 2 : i64>, %b: memref<2x2xf32, 2 : i64>, %y: memref<2x2xf32, 2 : i64>) {
// CHECK:       func.func private @node_unnamed(%in: memref<2x2xf32, 2 : i64>, %out: memref<2xf32, 2 : i64>) {
// CHECK-NEXT:    arith.constant 0.000000e+00 : f32
// CHECK-NEXT:    linalg.fill
// CHECK-NEXT:    linalg.generic
// CHECK:       func.func @main(
// CHECK-NEXT:    memref.alloc
// CHECK-NEXT:    func.call @matmul_f32_f32_mk_nk_2x4x2(%{{.*}}) {qmm.dispatch = 0 : i64}
// CHECK:         func.call @node_unnamed(%{{.*}}) {qmm.dispatch = 3 : i64}
// CHECK-NEXT:    func.return

// PLAN:        @matmul_f32_f32_mk_nk_2x4x2({{.*}} attributes {qmm.kernel = "c.matmul"}
// PLAN:        @node_unnamed({{.*}} attributes {qmm.kernel = "c.loops"}
// PLAN:        func.func @main(%arena: memref<[[N:[0-9]+]]xi8, 2 : i64> {qmm.role = "arena"}, %{{.*}} attributes {qmm.plan = {arena_bytes = [[N]] : i64, lower_bound_bytes = 48 : i64, alignment = 64 : i64, buffers = [
// PLAN-SAME:     {name = "matmul_f32_f32_mk_nk_2x4x2", offset = {{[0-9]+}} : i64, bytes = 16 : i64, first = 0 : i64, last = 2 : i64}
// PLAN-NOT:      memref.alloc
// PLAN:          memref.view %arena
