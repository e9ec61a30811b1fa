// RUN: qfold-opt -t qfold-c %s | filecheck %s

builtin.module attributes {qmm.target = "host"} {
  // Neighbouring dimensions that every operand walks through contiguously are one loop; an update in place is one pointer.
  func.func private @node_relu(%y: memref<2x3x4xf32, 2 : i64>) attributes {qmm.kernel = "c.loops"} {
    linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%y : memref<2x3x4xf32, 2 : i64>) outs(%y : memref<2x3x4xf32, 2 : i64>) {
    ^bb0(%x: f32, %o: f32):
      %zero = arith.constant 0.0 : f32
      %m = arith.maximumf %x, %zero : f32
      linalg.yield %m : f32
    }
    func.return
  }
  // CHECK-LABEL: // ---- kernels.c ----
  // CHECK:      void node_relu(float *restrict y) {
  // CHECK-NEXT:     for (ptrdiff_t i2 = 0; i2 < 24; i2++) {
  // CHECK-NEXT:         y[i2] = qf_maximumf(y[i2], 0.0f);
  // CHECK-NEXT:     }
  // CHECK-NEXT: }

  // A reduction starts from its fill, in a variable.
  func.func private @node_sum(%x: memref<3x5xf32, 2 : i64>, %y: memref<3xf32, 2 : i64>) attributes {qmm.kernel = "c.loops"} {
    %zero = arith.constant 0.0 : f32
    linalg.fill ins(%zero : f32) outs(%y : memref<3xf32, 2 : i64>)
    linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%x : memref<3x5xf32, 2 : i64>) outs(%y : memref<3xf32, 2 : i64>) {
    ^bb0(%e: f32, %acc: f32):
      %s = arith.addf %acc, %e : f32
      linalg.yield %s : f32
    }
    func.return
  }
  // CHECK:      void node_sum(const float *restrict x0, float *restrict y) {
  // CHECK-NEXT:     for (ptrdiff_t i0 = 0; i0 < 3; i0++) {
  // CHECK-NEXT:         float acc = 0.0f;
  // CHECK-NEXT:         for (ptrdiff_t i1 = 0; i1 < 5; i1++) {
  // CHECK-NEXT:             acc = acc + x0[i0 * 5 + i1];
  // CHECK-NEXT:         }
  // CHECK-NEXT:         y[i0] = acc;

  // Signedness comes from the type: an unsigned element is widened as one.
  func.func private @node_cast(%x: memref<4xui8, 2 : i64>, %y: memref<4xf32, 2 : i64>) attributes {qmm.kernel = "c.loops"} {
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<4xui8, 2 : i64>) outs(%y : memref<4xf32, 2 : i64>) {
    ^bb0(%e: ui8, %o: f32):
      %s = builtin.unrealized_conversion_cast %e : ui8 to i8
      %f = arith.uitofp %s : i8 to f32
      linalg.yield %f : f32
    }
    func.return
  }
  // CHECK:      void node_cast(const uint8_t *restrict x0, float *restrict y) {
  // CHECK:      y[i0] = (float)x0[i0];

  func.func @main(%a: memref<2x3x4xf32, 2 : i64> {qmm.name = "a", qmm.role = "output"}, %x: memref<3x5xf32, 2 : i64> {qmm.name = "x", qmm.role = "input"}, %b: memref<3xf32, 2 : i64> {qmm.name = "b", qmm.role = "output"}, %u: memref<4xui8, 2 : i64> {qmm.name = "u", qmm.role = "input"}, %f: memref<4xf32, 2 : i64> {qmm.name = "f", qmm.role = "output"}) {
    func.call @node_relu(%a) {qmm.dispatch = 0 : i64} : (memref<2x3x4xf32, 2 : i64>) -> ()
    func.call @node_sum(%x, %b) {qmm.dispatch = 1 : i64} : (memref<3x5xf32, 2 : i64>, memref<3xf32, 2 : i64>) -> ()
    func.call @node_cast(%u, %f) {qmm.dispatch = 2 : i64} : (memref<4xui8, 2 : i64>, memref<4xf32, 2 : i64>) -> ()
    func.return
  }
}
