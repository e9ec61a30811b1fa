// RUN: qfold-opt %s --split-input-file -p qmm-linalg-cse | filecheck %s

func.func @equal(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %e0 = tensor.empty() : tensor<4xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : tensor<4xf32>) outs(%e0 : tensor<4xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = math.exp %p : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  %e1 = tensor.empty() : tensor<4xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : tensor<4xf32>) outs(%e1 : tensor<4xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = math.exp %p : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : tensor<4xf32>) outs(%e1 : tensor<4xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = math.tanh %p : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  %dead = tensor.empty() : tensor<5xf32>
  func.return %0, %1, %2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// CHECK:      func.func @equal(%[[Vx:\w+]]: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
// CHECK-NEXT:   %[[Ve0:\w+]] = tensor.empty() : tensor<4xf32>
// CHECK-NEXT:   %[[V0:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%[[Vx]] : tensor<4xf32>) outs(%[[Ve0]] : tensor<4xf32>) {
// CHECK-NEXT:   ^bb0(%[[Vp:\w+]]: f32, %[[Vo:\w+]]: f32):
// CHECK-NEXT:     %[[Vs:\w+]] = math.exp %[[Vp]] : f32
// CHECK-NEXT:     linalg.yield %[[Vs]] : f32
// CHECK-NEXT:   } -> tensor<4xf32>
// CHECK-NEXT:   %[[V1:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%[[Vx]] : tensor<4xf32>) outs(%[[Ve0]] : tensor<4xf32>) {
// CHECK-NEXT:   ^bb0(%[[Vp_1:\w+]]: f32, %[[Vo_1:\w+]]: f32):
// CHECK-NEXT:     %[[Vs_1:\w+]] = math.tanh %[[Vp_1]] : f32
// CHECK-NEXT:     linalg.yield %[[Vs_1]] : f32
// CHECK-NEXT:   } -> tensor<4xf32>
// CHECK-NEXT:   func.return %[[V0]], %[[V0]], %[[V1]] : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
// CHECK-NEXT: }
