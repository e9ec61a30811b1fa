// RUN: qfold-opt %s --split-input-file -p 'qmm-fold-constants{max_elements=4}' | filecheck %s

func.func @folded() -> tensor<2x2xi64> {
  %c = arith.constant dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>
  %e = tensor.empty() : tensor<2x2xi64>
  %t = linalg.transpose ins(%c : tensor<2x2xi64>) outs(%e : tensor<2x2xi64>) permutation = [1, 0]
  %0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%c, %t : tensor<2x2xi64>, tensor<2x2xi64>) outs(%e : tensor<2x2xi64>) {
  ^bb0(%p: i64, %q: i64, %o: i64):
    %s = arith.muli %p, %q : i64
    linalg.yield %s : i64
  } -> tensor<2x2xi64>
  func.return %0 : tensor<2x2xi64>
}

// CHECK:      func.func @folded() -> tensor<2x2xi64> {
// CHECK-NEXT:   %[[V0:\w+]] = arith.constant dense<{{\[\[}}1, 6], [6, 16]]> : tensor<2x2xi64>
// CHECK-NEXT:   func.return %[[V0]] : tensor<2x2xi64>
// CHECK-NEXT: }

// -----

// Integers that may be a weight are not widened ahead of time, and what is too large is left.
func.func @kept() -> (tensor<2xf32>, tensor<6xi64>) {
  %c = arith.constant dense<[1, 2]> : tensor<2xi8>
  %e = tensor.empty() : tensor<2xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%c : tensor<2xi8>) outs(%e : tensor<2xf32>) {
  ^bb0(%p: i8, %o: f32):
    %s = arith.sitofp %p : i8 to f32
    linalg.yield %s : f32
  } -> tensor<2xf32>
  %big = arith.constant dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi64>
  %1 = tensor.collapse_shape %big [[0, 1]] : tensor<2x3xi64> into tensor<6xi64>
  func.return %0, %1 : tensor<2xf32>, tensor<6xi64>
}

// CHECK:      func.func @kept() -> (tensor<2xf32>, tensor<6xi64>) {
// CHECK-NEXT:   %[[Vc:\w+]] = arith.constant dense<[1, 2]> : tensor<2xi8>
// CHECK-NEXT:   %[[Ve:\w+]] = tensor.empty() : tensor<2xf32>
// CHECK-NEXT:   %[[V0:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%[[Vc]] : tensor<2xi8>) outs(%[[Ve]] : tensor<2xf32>) {
// CHECK-NEXT:   ^bb0(%[[Vp:\w+]]: i8, %[[Vo:\w+]]: f32):
// CHECK-NEXT:     %[[Vs:\w+]] = arith.sitofp %[[Vp]] : i8 to f32
// CHECK-NEXT:     linalg.yield %[[Vs]] : f32
// CHECK-NEXT:   } -> tensor<2xf32>
// CHECK-NEXT:   %[[Vbig:\w+]] = arith.constant dense<{{\[\[}}1, 2, 3], [4, 5, 6]]> : tensor<2x3xi64>
// CHECK-NEXT:   %[[V1:\w+]] = tensor.collapse_shape %[[Vbig]] {{\[\[}}0 : i64, 1 : i64]] : tensor<2x3xi64> into tensor<6xi64>
// CHECK-NEXT:   func.return %[[V0]], %[[V1]] : tensor<2xf32>, tensor<6xi64>
// CHECK-NEXT: }
