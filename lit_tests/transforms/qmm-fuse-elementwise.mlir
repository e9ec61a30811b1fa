// RUN: qfold-opt %s --split-input-file -p qmm-fuse-elementwise | filecheck %s

// A chain, a fill and a transpose become one generic.
func.func @chain(%x: tensor<2x3xf32>) -> tensor<3x2xf32> {
  %two = arith.constant 2.0 : f32
  %e0 = tensor.empty() : tensor<2x3xf32>
  %fill = linalg.fill ins(%two : f32) outs(%e0 : tensor<2x3xf32>) -> tensor<2x3xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%x, %fill : tensor<2x3xf32>, tensor<2x3xf32>) outs(%e0 : tensor<2x3xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.mulf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<2x3xf32>
  %e1 = tensor.empty() : tensor<3x2xf32>
  %t = linalg.transpose ins(%0 : tensor<2x3xf32>) outs(%e1 : tensor<3x2xf32>) permutation = [1, 0]
  %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%t : tensor<3x2xf32>) outs(%e1 : tensor<3x2xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = math.exp %p : f32
    linalg.yield %s : f32
  } -> tensor<3x2xf32>
  func.return %1 : tensor<3x2xf32>
}

// CHECK:      func.func @chain(%[[Vx:\w+]]: tensor<2x3xf32>) -> tensor<3x2xf32> {
// CHECK-NEXT:   %[[Ve1:\w+]] = tensor.empty() : tensor<3x2xf32>
// CHECK-NEXT:   %[[V0:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%[[Vx]] : tensor<2x3xf32>) outs(%[[Ve1]] : tensor<3x2xf32>) {
// CHECK-NEXT:   ^bb0(%[[V1:\w+]]: f32, %[[Vo:\w+]]: f32):
// CHECK-NEXT:     %[[Vq:\w+]] = arith.constant 2.000000e+00 : f32
// CHECK-NEXT:     %[[Vs:\w+]] = arith.mulf %[[V1]], %[[Vq]] : f32
// CHECK-NEXT:     %[[Vs_1:\w+]] = math.exp %[[Vs]] : f32
// CHECK-NEXT:     linalg.yield %[[Vs_1]] : f32
// CHECK-NEXT:   } -> tensor<3x2xf32>
// CHECK-NEXT:   func.return %[[V0]] : tensor<3x2xf32>
// CHECK-NEXT: }

// -----

// The exp of a row is not computed again for each element that it is broadcast to.
func.func @broadcast(%x: tensor<2x3xf32>, %r: tensor<2xf32>) -> tensor<2x3xf32> {
  %e0 = tensor.empty() : tensor<2xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%r : tensor<2xf32>) outs(%e0 : tensor<2xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = math.exp %p : f32
    linalg.yield %s : f32
  } -> tensor<2xf32>
  %e1 = tensor.empty() : tensor<2x3xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%x, %0 : tensor<2x3xf32>, tensor<2xf32>) outs(%e1 : tensor<2x3xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.mulf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<2x3xf32>
  func.return %1 : tensor<2x3xf32>
}

// CHECK:      func.func @broadcast(%[[Vx:\w+]]: tensor<2x3xf32>, %[[Vr:\w+]]: tensor<2xf32>) -> tensor<2x3xf32> {
// CHECK-NEXT:   %[[Ve0:\w+]] = tensor.empty() : tensor<2xf32>
// CHECK-NEXT:   %[[V0:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%[[Vr]] : tensor<2xf32>) outs(%[[Ve0]] : tensor<2xf32>) {
// CHECK-NEXT:   ^bb0(%[[Vp:\w+]]: f32, %[[Vo:\w+]]: f32):
// CHECK-NEXT:     %[[Vs:\w+]] = math.exp %[[Vp]] : f32
// CHECK-NEXT:     linalg.yield %[[Vs]] : f32
// CHECK-NEXT:   } -> tensor<2xf32>
// CHECK-NEXT:   %[[Ve1:\w+]] = tensor.empty() : tensor<2x3xf32>
// CHECK-NEXT:   %[[V1:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%[[Vx]], %[[V0]] : tensor<2x3xf32>, tensor<2xf32>) outs(%[[Ve1]] : tensor<2x3xf32>) {
// CHECK-NEXT:   ^bb0(%[[Vp_1:\w+]]: f32, %[[Vq:\w+]]: f32, %[[Vo_1:\w+]]: f32):
// CHECK-NEXT:     %[[Vs_1:\w+]] = arith.mulf %[[Vp_1]], %[[Vq]] : f32
// CHECK-NEXT:     linalg.yield %[[Vs_1]] : f32
// CHECK-NEXT:   } -> tensor<2x3xf32>
// CHECK-NEXT:   func.return %[[V1]] : tensor<2x3xf32>
// CHECK-NEXT: }
