// RUN: qfold-opt -t qfold-c %s | filecheck %s

builtin.module attributes {qmm.target = "host"} {
  "memref.global"() <{sym_name = "w_0", sym_visibility = "private", type = memref<96xi8, 2 : i64>, initial_value, constant, alignment = 64 : i64}> {qmm.weight = #qmm.weight<"0x000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000" : tensor<96xi8>>} : () -> ()
  func.func private @dequant_matmul_f32_i8_kn_tensor_5x3x32_bias(%a: memref<5x3xf32, 2 : i64>, %w: memref<3x32xi8, 2 : i64>, %s: memref<f32, 2 : i64>, %z: memref<i8, 2 : i64>, %r: memref<5xf32, 2 : i64>, %b: memref<32xf32, 2 : i64>, %y: memref<5x32xf32, 2 : i64>) attributes {qmm.kernel = "c.dequant_matmul"} {
    qkernel.dequant_matmul %a, %w, %s zero_point(%z) row_sum(%r) epilogue(%b) outs(%y) maps [affine_map<(d0, d1) -> (d1)>] {hoisted} : (memref<5x3xf32, 2 : i64>, memref<3x32xi8, 2 : i64>, memref<f32, 2 : i64>, memref<i8, 2 : i64>, memref<5xf32, 2 : i64>, memref<32xf32, 2 : i64>, memref<5x32xf32, 2 : i64>) -> () {
    ^bb0(%acc: f32, %c: f32):
      %t = arith.addf %acc, %c : f32
      qmm.yield %t : f32
    }
    func.return
  }
  func.func @main(%a: memref<5x3xf32, 2 : i64> {qmm.name = "a", qmm.role = "input"}, %s: memref<f32, 2 : i64> {qmm.name = "s", qmm.role = "input"}, %z: memref<i8, 2 : i64> {qmm.name = "z", qmm.role = "input"}, %r: memref<5xf32, 2 : i64> {qmm.name = "r", qmm.role = "input"}, %b: memref<32xf32, 2 : i64> {qmm.name = "b", qmm.role = "input"}, %y: memref<5x32xf32, 2 : i64> {qmm.name = "y", qmm.role = "output"}) {
    %0 = memref.get_global @w_0 : memref<96xi8, 2 : i64>
    %w = memref.expand_shape %0 [[0, 1]] output_shape [3, 32] : memref<96xi8, 2 : i64> into memref<3x32xi8, 2 : i64>
    func.call @dequant_matmul_f32_i8_kn_tensor_5x3x32_bias(%a, %w, %s, %z, %r, %b, %y) {qmm.dispatch = 0 : i64} : (memref<5x3xf32, 2 : i64>, memref<3x32xi8, 2 : i64>, memref<f32, 2 : i64>, memref<i8, 2 : i64>, memref<5xf32, 2 : i64>, memref<32xf32, 2 : i64>, memref<5x32xf32, 2 : i64>) -> ()
    func.return
  }
}

// The orchestration: the call, no cast.
// CHECK-LABEL: // ---- network.c ----
// CHECK:       dequant_matmul_f32_i8_kn_tensor_5x3x32_bias(in->a, net_w_0(net), in->s, in->z, in->r, in->b, out->y);

// The weight keeps its type.
// CHECK-LABEL: // ---- network_buffers.h ----
// CHECK:       extern const int8_t w_0[96];

// The types of the signature are those of the IR.
// CHECK-LABEL: // ---- kernels.c ----
// CHECK:       /* c.dequant_matmul: y[m, n] = scale * (sum of a[m, k] * w[k, n] - zero_point * row_sum), then the epilogue
// CHECK-NEXT:   *   reads a: memref<5x3xf32, 2 : i64>
// CHECK-NEXT:   *   reads w: memref<3x32xi8, 2 : i64>
// CHECK:       void dequant_matmul_f32_i8_kn_tensor_5x3x32_bias(
// CHECK-NEXT:      const float *restrict a,
// CHECK-NEXT:      const int8_t *restrict w,
// CHECK-NEXT:      const float *restrict scale,
// CHECK-NEXT:      const int8_t *restrict zero_point,
// CHECK-NEXT:      const float *restrict row_sum,
// CHECK-NEXT:      const float *restrict e0,
// CHECK-NEXT:      float *restrict y) {

// Hoisted: the loop over K does not subtract, and the zero point meets the accumulator after it.
// CHECK:       panel[k][c] = (float)w[k * 32 + c];
// CHECK:       for (ptrdiff_t m = 0; m < 4; m += 4) {
// CHECK:       s3[c] += a3 * w_kc;
// CHECK:       for (ptrdiff_t m = 4; m < 5; m++) {
// CHECK:       const float acc = scale[0] * (sum[m][c] - (float)zero_point[0] * row_sum[m]);
// CHECK-NEXT:  y[m * 32 + c] = acc + e0[c];

// CHECK-LABEL: // ---- weights.S ----
// CHECK:       .incbin "weights.bin", 0, 96
