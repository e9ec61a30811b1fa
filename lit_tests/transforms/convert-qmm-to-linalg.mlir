// RUN: qfold-opt %s --split-input-file -p convert-qmm-to-linalg | filecheck %s
// RUN: qfold-opt %s --split-input-file -p convert-qmm-to-linalg | filecheck %s --check-prefix=SIGNLESS
// SIGNLESS-NOT: ui8
// SIGNLESS-NOT: qmm.

// A raw sum of products on the stored integers, then the correction and the scale, then the epilogue.
func.func @hoisted(%a: tensor<4x3xf32> {qmm.name = "a"}, %s: tensor<4xf32>, %bias: tensor<2xf32>) -> tensor<4x2xf32> {
  %y = qmm.dequant_matmul %a row_sum(%s) epilogue(%bias) maps [affine_map<(d0, d1) -> (d1)>] {weight = #qmm.weight<"0x010203040506" : tensor<3x2xui8>>, quant = #qmm.quant<ui8, scale = [0.5, 1.0], zero_point = [1, 200], axis = 1>, hoisted} : (tensor<4x3xf32>, tensor<4xf32>, tensor<2xf32>) -> tensor<4x2xf32> {
  ^bb0(%acc: f32, %c: f32):
    %r = arith.addf %acc, %c : f32
    qmm.yield %r : f32
  }
  func.return %y : tensor<4x2xf32>
}

// CHECK:      func.func @hoisted(%[[Va:\w+]]: tensor<4x3xf32>, %[[Vs:\w+]]: tensor<4xf32>, %[[Vbias:\w+]]: tensor<2xf32>) -> tensor<4x2xf32> {
// CHECK-NEXT:   %[[V0:\w+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:   %[[V1:\w+]] = tensor.empty() : tensor<4x2xf32>
// CHECK-NEXT:   %[[V2:\w+]] = linalg.fill ins(%[[V0]] : f32) outs(%[[V1]] : tensor<4x2xf32>) -> tensor<4x2xf32>
// CHECK-NEXT:   %[[V3:\w+]] = arith.constant dense<{{\[\[}}1, 2], [3, 4], [5, 6]]> : tensor<3x2xi8>
// CHECK-NEXT:   %[[V4:\w+]] = arith.constant dense<[5.000000e-01, 1.000000e+00]> : tensor<2xf32>
// CHECK-NEXT:   %[[V5:\w+]] = arith.constant dense<[1, -56]> : tensor<2xi8>
// CHECK-NEXT:   %[[V6:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%[[Va]], %[[V3]] : tensor<4x3xf32>, tensor<3x2xi8>) outs(%[[V2]] : tensor<4x2xf32>) {
// CHECK-NEXT:   ^bb0(%[[V7:\w+]]: f32, %[[V8:\w+]]: i8, %[[V9:\w+]]: f32):
// CHECK-NEXT:     %[[V10:\w+]] = arith.extui %[[V8]] : i8 to i32
// CHECK-NEXT:     %[[V11:\w+]] = arith.sitofp %[[V10]] : i32 to f32
// CHECK-NEXT:     %[[V12:\w+]] = arith.mulf %[[V7]], %[[V11]] : f32
// CHECK-NEXT:     %[[V13:\w+]] = arith.addf %[[V9]], %[[V12]] : f32
// CHECK-NEXT:     linalg.yield %[[V13]] : f32
// CHECK-NEXT:   } -> tensor<4x2xf32>
// CHECK-NEXT:   %[[V14:\w+]] = tensor.empty() : tensor<4x2xf32>
// CHECK-NEXT:   %[[V15:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%[[V6]], %[[Vs]], %[[V4]], %[[V5]] : tensor<4x2xf32>, tensor<4xf32>, tensor<2xf32>, tensor<2xi8>) outs(%[[V14]] : tensor<4x2xf32>) {
// CHECK-NEXT:   ^bb0(%[[V16:\w+]]: f32, %[[V17:\w+]]: f32, %[[V18:\w+]]: f32, %[[V19:\w+]]: i8, %[[V20:\w+]]: f32):
// CHECK-NEXT:     %[[V21:\w+]] = arith.extui %[[V19]] : i8 to i32
// CHECK-NEXT:     %[[V22:\w+]] = arith.sitofp %[[V21]] : i32 to f32
// CHECK-NEXT:     %[[V23:\w+]] = arith.mulf %[[V22]], %[[V17]] : f32
// CHECK-NEXT:     %[[V24:\w+]] = arith.subf %[[V16]], %[[V23]] : f32
// CHECK-NEXT:     %[[V25:\w+]] = arith.mulf %[[V24]], %[[V18]] : f32
// CHECK-NEXT:     linalg.yield %[[V25]] : f32
// CHECK-NEXT:   } -> tensor<4x2xf32>
// CHECK-NEXT:   %[[V26:\w+]] = tensor.empty() : tensor<4x2xf32>
// CHECK-NEXT:   %[[Vy:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%[[V15]], %[[Vbias]] : tensor<4x2xf32>, tensor<2xf32>) outs(%[[V26]] : tensor<4x2xf32>) {
// CHECK-NEXT:   ^bb0(%[[V27:\w+]]: f32, %[[V28:\w+]]: f32, %[[V29:\w+]]: f32):
// CHECK-NEXT:     %[[Vr:\w+]] = arith.addf %[[V27]], %[[V28]] : f32
// CHECK-NEXT:     linalg.yield %[[Vr]] : f32
// CHECK-NEXT:   } -> tensor<4x2xf32>
// CHECK-NEXT:   func.return %[[Vy]] : tensor<4x2xf32>
// CHECK-NEXT: }

// -----

// Signatures lose their signs.
func.func @signless(%q: tensor<2xui8>) -> tensor<2xf32> {
  %x = qmm.dequantize %q {quant = #qmm.quant<ui8, scale = 0.5, zero_point = 200>} : (tensor<2xui8>) -> tensor<2xf32>
  func.return %x : tensor<2xf32>
}

// CHECK:      func.func @signless(%[[Vq:\w+]]: tensor<2xi8>) -> tensor<2xf32> {
// CHECK-NEXT:   %[[V0:\w+]] = tensor.empty() : tensor<2xf32>
// CHECK-NEXT:   %[[Vx:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%[[Vq]] : tensor<2xi8>) outs(%[[V0]] : tensor<2xf32>) {
// CHECK-NEXT:   ^bb0(%[[V1:\w+]]: i8, %[[V2:\w+]]: f32):
// CHECK-NEXT:     %[[V3:\w+]] = arith.constant 5.000000e-01 : f32
// CHECK-NEXT:     %[[V4:\w+]] = arith.constant 200 : i32
// CHECK-NEXT:     %[[V5:\w+]] = arith.extui %[[V1]] : i8 to i32
// CHECK-NEXT:     %[[V6:\w+]] = arith.subi %[[V5]], %[[V4]] : i32
// CHECK-NEXT:     %[[V7:\w+]] = arith.sitofp %[[V6]] : i32 to f32
// CHECK-NEXT:     %[[V8:\w+]] = arith.mulf %[[V7]], %[[V3]] : f32
// CHECK-NEXT:     linalg.yield %[[V8]] : f32
// CHECK-NEXT:   } -> tensor<2xf32>
// CHECK-NEXT:   func.return %[[Vx]] : tensor<2xf32>
// CHECK-NEXT: }
