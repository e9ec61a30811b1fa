// RUN: qfold-opt %s -p 'qmm-bufferize{target=host}' | filecheck %s

// The weight is one global, the scale another; the bias is added in place of nothing: it is in the epilogue.
// The second softmax step updates its operand, the last one writes the output.
func.func @main(%x: tensor<2x4xf32> {qmm.name = "x"}) -> (tensor<3x2xf32> {qmm.name = "y"}) {
  %y = qmm.dequant_matmul %x {weight = #qmm.weight<"0x0102030405060708090A0B0C" : tensor<4x3xi8>>, quant = #qmm.quant<i8, scale = 0.5>} : (tensor<2x4xf32>) -> tensor<2x3xf32>
  %e = tensor.empty() : tensor<2x3xf32>
  %a = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%y : tensor<2x3xf32>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%p: f32, %q: f32):
    %r = math.exp %p : f32
    linalg.yield %r : f32
  } -> tensor<2x3xf32>
  %zero = arith.constant 0.0 : f32
  %se = tensor.empty() : tensor<2xf32>
  %sf = linalg.fill ins(%zero : f32) outs(%se : tensor<2xf32>) -> tensor<2xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%a : tensor<2x3xf32>) outs(%sf : tensor<2xf32>) {
  ^bb0(%p: f32, %q: f32):
    %r = arith.addf %q, %p : f32
    linalg.yield %r : f32
  } -> tensor<2xf32>
  %d = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%a, %s : tensor<2x3xf32>, tensor<2xf32>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %r = arith.divf %p, %q : f32
    linalg.yield %r : f32
  } -> tensor<2x3xf32>
  %te = tensor.empty() : tensor<3x2xf32>
  %t = linalg.transpose ins(%d : tensor<2x3xf32>) outs(%te : tensor<3x2xf32>) permutation = [1, 0]
  func.return %t : tensor<3x2xf32>
}

// CHECK:       builtin.module attributes {qmm.target = "host"} {
// CHECK-NEXT:    "memref.global"() <{sym_name = "[[Scale:w_[0-9a-f]+]]", type = memref<1xf32, 2 : i64>, initial_value, sym_visibility = "private", constant, alignment = 64 : i64}> {qmm.weight = #qmm.weight<"0x0000003F" : tensor<1xf32>>, qmm.sha256 = "{{[0-9a-f]+}}"} : () -> ()
// CHECK-NEXT:    "memref.global"() <{sym_name = "[[Weight:w_[0-9a-f]+]]", type = memref<12xi8, 2 : i64>, initial_value, sym_visibility = "private", constant, alignment = 64 : i64}> {qmm.weight = #qmm.weight<"0x0102030405060708090A0B0C" : tensor<12xi8>>, qmm.sha256 = "{{[0-9a-f]+}}"} : () -> ()
// CHECK-NEXT:    func.func @main(%{{x|[0-9]+}}: memref<2x4xf32, 2 : i64> {qmm.name = "x", qmm.role = "input"}, %[[OUT:[0-9a-z_]+]]: memref<3x2xf32, 2 : i64> {qmm.name = "y", qmm.role = "output"}) {
// CHECK:           %[[A:[0-9]+]] = memref.alloc() : memref<2x3xf32, 2 : i64>
// CHECK:           memref.get_global @[[Scale]] : memref<1xf32, 2 : i64>
// CHECK-NEXT:      memref.reinterpret_cast {{.*}} to memref<f32, 2 : i64>
// CHECK-NEXT:      memref.get_global @[[Weight]] : memref<12xi8, 2 : i64>
// CHECK-NEXT:      memref.expand_shape {{.*}} into memref<4x3xi8, 2 : i64>
// CHECK-NEXT:      qkernel.dequant_matmul {{.*}} outs(%[[A]])
// CHECK-NEXT:      linalg.generic {{.*}} ins(%[[A]] : memref<2x3xf32, 2 : i64>) outs(%[[A]] : memref<2x3xf32, 2 : i64>) {
// CHECK:           %[[S:[0-9]+]] = memref.alloc() : memref<2xf32, 2 : i64>
// CHECK-NEXT:      linalg.fill {{.*}} outs(%[[S]] : memref<2xf32, 2 : i64>)
// CHECK-NEXT:      linalg.generic {{.*}} ins(%[[A]] : memref<2x3xf32, 2 : i64>) outs(%[[S]] : memref<2xf32, 2 : i64>) {
// CHECK:           %[[T:[0-9]+]] = memref.reinterpret_cast %[[OUT]] to offset: [0], sizes: [2, 3], strides: [1, 2] : memref<3x2xf32, 2 : i64> to memref<2x3xf32, strided<[1, 2]>, 2 : i64>
// CHECK-NEXT:      linalg.generic {{.*}} outs(%[[T]] : memref<2x3xf32, strided<[1, 2]>, 2 : i64>) {
// CHECK-NOT:       memref.copy
// CHECK:           func.return
