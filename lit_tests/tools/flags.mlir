// RUN: qfold-opt %s --fuse-dequant | filecheck %s --check-prefix FUSE
// RUN: qfold-opt %s --fuse-dequant --hoist-zero-point | filecheck %s --check-prefix HOIST
// RUN: qfold-opt %s --fuse-dequant --hoist-zero-point -p qmm-linalg-cse,qmm-lower-quantization,qmm-bufferize,qmm-outline-kernels,qmm-select-kernels,qmm-plan-memory -t qfold-c | filecheck %s --check-prefix C

func.func @main(%x: tensor<2x4xf32> {qmm.name = "x"}) -> (tensor<2x3xf32> {qmm.name = "y"}) {
  %w = qmm.constant #qmm.weight<"0x0102030405060708090A0B0C" : tensor<4x3xi8>>
  %f = qmm.dequantize %w {quant = #qmm.quant<i8, scale = 0.5, zero_point = 3>} : (tensor<4x3xi8>) -> tensor<4x3xf32>
  %y = qmm.matmul %x, %f : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
  func.return %y : tensor<2x3xf32>
}

// FUSE-NOT:   qmm.dequantize
// FUSE:       qmm.dequant_matmul %{{.*}} {
// FUSE-NOT:   hoisted
// FUSE-NOT:   qmm.matmul

// HOIST:      %[[S:.*]] = qmm.row_sum %[[X:.*]] : (tensor<2x4xf32>) -> tensor<2xf32>
// HOIST-NEXT: qmm.dequant_matmul %[[X]] row_sum(%[[S]]) {{.*}}hoisted

// C:          // ---- network.h ----
// C:          int net_run(net_t *net, const net_in_t *in, net_out_t *out);
// C:          // ---- kernels.c ----
// C:          void dequant_matmul_f32_i8_kn_tensor_2x4x3(
// C:          const int8_t *restrict w
