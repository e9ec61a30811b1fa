// RUN: qfold-opt %s -p 'qmm-outline-kernels' | filecheck %s
// RUN: qfold-opt %s -p 'qmm-outline-kernels{join=false}' | filecheck %s --check-prefix APART
// RUN: qfold-opt %s -p 'qmm-outline-kernels,qmm-select-kernels,qmm-plan-memory,qmm-check-plan' -t qfold-c | filecheck %s --check-prefix C

// A softmax whose maximum is an output too: row by row, the exponentials read back while they are near.
func.func @main(%x: memref<3x8xf32, 2 : i64> {qmm.name = "x", qmm.role = "input"}, %y: memref<3x8xf32, 2 : i64> {qmm.role = "output"}, %m: memref<3xf32, 2 : i64> {qmm.role = "output"}) {
  %low = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  linalg.fill ins(%low : f32) outs(%m : memref<3xf32, 2 : i64>)
  linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%x : memref<3x8xf32, 2 : i64>) outs(%m : memref<3xf32, 2 : i64>) {
  ^bb0(%e: f32, %a: f32):
    %r = arith.maximumf %a, %e : f32
    linalg.yield %r : f32
  }
  linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%x, %m : memref<3x8xf32, 2 : i64>, memref<3xf32, 2 : i64>) outs(%y : memref<3x8xf32, 2 : i64>) {
  ^bb0(%e: f32, %f: f32, %o: f32):
    %r = arith.subf %e, %f : f32
    %p = math.exp %r : f32
    linalg.yield %p : f32
  }
  %s = memref.alloc() : memref<3xf32, 2 : i64>
  linalg.fill ins(%zero : f32) outs(%s : memref<3xf32, 2 : i64>)
  linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%y : memref<3x8xf32, 2 : i64>) outs(%s : memref<3xf32, 2 : i64>) {
  ^bb0(%e: f32, %a: f32):
    %r = arith.addf %a, %e : f32
    linalg.yield %r : f32
  }
  linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%y, %s : memref<3x8xf32, 2 : i64>, memref<3xf32, 2 : i64>) outs(%y : memref<3x8xf32, 2 : i64>) {
  ^bb0(%e: f32, %f: f32, %o: f32):
    %r = arith.divf %e, %f : f32
    linalg.yield %r : f32
  }
  func.return
}

// The sum, which nobody else uses, is a variable. The maximum is stored, but not read back.
// CHECK:       func.func private @node_unnamed(%{{.*}}: memref<3xf32, 2 : i64>, %{{.*}}: memref<3x8xf32, 2 : i64>, %{{.*}}: memref<3x8xf32, 2 : i64>) {
// CHECK-NEXT:    memref.alloc() : memref<3xf32, 2 : i64>
// CHECK-NEXT:    arith.constant 0xff800000 : f32
// CHECK-NEXT:    linalg.fill
// CHECK-NEXT:    linalg.generic
// CHECK:         math.exp
// CHECK:         linalg.fill
// CHECK:         arith.divf
// CHECK:         func.return
// CHECK:       func.func @main(
// CHECK-NEXT:    func.call @node_unnamed(%{{.*}}) {qmm.dispatch = 0 : i64}
// CHECK-NEXT:    func.return

// APART:       func.func @main(
// APART-NEXT:    func.call @node_unnamed(
// APART-NEXT:    func.call @node_unnamed_2(
// APART-NEXT:    memref.alloc
// APART-NEXT:    func.call @node_unnamed_3(
// APART-NEXT:    func.call @node_unnamed_4(
// APART-NEXT:    func.return

// C-LABEL:     // ---- kernels.c ----
// C:           void node_unnamed(float *restrict y1, const float *restrict x0, float *restrict y) {
// C-NEXT:          for (ptrdiff_t i0 = 0; i0 < 3; i0++) {
// C-NEXT:              float p0;
// C-NEXT:              float p1;
// C-NEXT:              p0 = (-QF_INF);
// C-NEXT:              for (ptrdiff_t i1 = 0; i1 < 8; i1++) {
// C-NEXT:                  p0 = qf_maximumf(p0, x0[i0 * 8 + i1]);
// C-NEXT:              }
// C-NEXT:              y1[i0] = p0;
// C-NEXT:              for (ptrdiff_t i1 = 0; i1 < 8; i1++) {
// C-NEXT:                  y[i0 * 8 + i1] = qf_expf((x0[i0 * 8 + i1] - p0));
// C-NEXT:              }
// C-NEXT:              p1 = 0.0f;
// C-NEXT:              for (ptrdiff_t i1 = 0; i1 < 8; i1++) {
// C-NEXT:                  p1 = p1 + y[i0 * 8 + i1];
// C-NEXT:              }
// C-NEXT:              for (ptrdiff_t i1 = 0; i1 < 8; i1++) {
// C-NEXT:                  y[i0 * 8 + i1] = y[i0 * 8 + i1] / p1;
// C-NEXT:              }
// C-NEXT:          }
// C-NEXT:      }
