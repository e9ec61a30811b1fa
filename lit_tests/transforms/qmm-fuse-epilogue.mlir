// RUN: qfold-opt %s --split-input-file -p qmm-fuse-epilogue | filecheck %s

// Bias, then a residual that is defined after the contraction.
func.func @bias_and_residual(%a: tensor<4x3xf32>, %b: tensor<3x2xf32>, %bias: tensor<2xf32>, %r: tensor<1x4x2xf32>) -> tensor<1x4x2xf32> {
  %y = qmm.matmul %a, %b : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  %e0 = tensor.empty() : tensor<4x2xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%y, %bias : tensor<4x2xf32>, tensor<2xf32>) outs(%e0 : tensor<4x2xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.addf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<4x2xf32>
  %1 = tensor.expand_shape %0 [[0, 1], [2]] output_shape [1, 4, 2] : tensor<4x2xf32> into tensor<1x4x2xf32>
  %e1 = tensor.empty() : tensor<1x4x2xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%1, %r : tensor<1x4x2xf32>, tensor<1x4x2xf32>) outs(%e1 : tensor<1x4x2xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.addf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<1x4x2xf32>
  func.return %2 : tensor<1x4x2xf32>
}

// CHECK:      func.func @bias_and_residual(%[[Va:\w+]]: tensor<4x3xf32>, %[[Vb:\w+]]: tensor<3x2xf32>, %[[Vbias:\w+]]: tensor<2xf32>, %[[Vr:\w+]]: tensor<1x4x2xf32>) -> tensor<1x4x2xf32> {
// CHECK-NEXT:   %[[V0:\w+]] = qmm.matmul %[[Va]], %[[Vb]] epilogue(%[[Vbias]], %[[Vr]]) maps [affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (0, d0, d1)>] : (tensor<4x3xf32>, tensor<3x2xf32>, tensor<2xf32>, tensor<1x4x2xf32>) -> tensor<4x2xf32> {
// CHECK-NEXT:   ^bb0(%[[V1:\w+]]: f32, %[[V2:\w+]]: f32, %[[V3:\w+]]: f32):
// CHECK-NEXT:     %[[Vs:\w+]] = arith.addf %[[V1]], %[[V2]] : f32
// CHECK-NEXT:     %[[Vs_1:\w+]] = arith.addf %[[Vs]], %[[V3]] : f32
// CHECK-NEXT:     qmm.yield %[[Vs_1]] : f32
// CHECK-NEXT:   }
// CHECK-NEXT:   %[[V4:\w+]] = tensor.expand_shape %[[V0]] {{\[\[}}0 : i64, 1 : i64], [2 : i64]] output_shape [1, 4, 2] : tensor<4x2xf32> into tensor<1x4x2xf32>
// CHECK-NEXT:   func.return %[[V4]] : tensor<1x4x2xf32>
// CHECK-NEXT: }

// -----

// A result that something else reads too is left alone.
func.func @two_readers(%a: tensor<4x3xf32>, %b: tensor<3x2xf32>) -> (tensor<4x2xf32>, tensor<4x2xf32>) {
  %y = qmm.matmul %a, %b : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  %e0 = tensor.empty() : tensor<4x2xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%y : tensor<4x2xf32>) outs(%e0 : tensor<4x2xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = math.exp %p : f32
    linalg.yield %s : f32
  } -> tensor<4x2xf32>
  func.return %y, %0 : tensor<4x2xf32>, tensor<4x2xf32>
}

// CHECK:      func.func @two_readers(%[[Va:\w+]]: tensor<4x3xf32>, %[[Vb:\w+]]: tensor<3x2xf32>) -> (tensor<4x2xf32>, tensor<4x2xf32>) {
// CHECK-NEXT:   %[[Vy:\w+]] = qmm.matmul %[[Va]], %[[Vb]] : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
// CHECK-NEXT:   %[[Ve0:\w+]] = tensor.empty() : tensor<4x2xf32>
// CHECK-NEXT:   %[[V0:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%[[Vy]] : tensor<4x2xf32>) outs(%[[Ve0]] : tensor<4x2xf32>) {
// CHECK-NEXT:   ^bb0(%[[Vp:\w+]]: f32, %[[Vo:\w+]]: f32):
// CHECK-NEXT:     %[[Vs:\w+]] = math.exp %[[Vp]] : f32
// CHECK-NEXT:     linalg.yield %[[Vs]] : f32
// CHECK-NEXT:   } -> tensor<4x2xf32>
// CHECK-NEXT:   func.return %[[Vy]], %[[V0]] : tensor<4x2xf32>, tensor<4x2xf32>
// CHECK-NEXT: }
