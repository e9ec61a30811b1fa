// RUN: qfold-opt %s --split-input-file -p qmm-fuse-dequant | filecheck %s

// A matmul of a dequantised constant keeps the integers.
func.func @matmul(%a: tensor<4x3xf32>) -> tensor<4x2xf32> {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<3x2xi8>>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = [0.5, 1.0], zero_point = [1, 2], axis = 1>} : (tensor<3x2xi8>) -> tensor<3x2xf32>
  %y = qmm.matmul %a, %d : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}

// CHECK:      func.func @matmul(%[[Va:\w+]]: tensor<4x3xf32>) -> tensor<4x2xf32> {
// CHECK-NEXT:   %[[Vy:\w+]] = qmm.dequant_matmul %[[Va]] {weight = #qmm.weight<"0x010203040506" : tensor<3x2xi8>>, quant = #qmm.quant<i8, scale = [5.0e-01, 1.0e+00], zero_point = [1, 2], axis = 1>} : (tensor<4x3xf32>) -> tensor<4x2xf32>
// CHECK-NEXT:   func.return %[[Vy]] : tensor<4x2xf32>
// CHECK-NEXT: }

// -----

// A transposed weight is a flag, with the axis of the stored bytes.
func.func @transposed(%a: tensor<4x3xf32>) -> tensor<4x2xf32> {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<2x3xi8>>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = [0.5, 1.0], axis = 0>} : (tensor<2x3xi8>) -> tensor<2x3xf32>
  %e = tensor.empty() : tensor<3x2xf32>
  %t = linalg.transpose ins(%d : tensor<2x3xf32>) outs(%e : tensor<3x2xf32>) permutation = [1, 0]
  %y = qmm.matmul %a, %t : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}

// CHECK:      func.func @transposed(%[[Va:\w+]]: tensor<4x3xf32>) -> tensor<4x2xf32> {
// CHECK-NEXT:   %[[Vy:\w+]] = qmm.dequant_matmul %[[Va]] {weight = #qmm.weight<"0x010203040506" : tensor<2x3xi8>>, quant = #qmm.quant<i8, scale = [5.0e-01, 1.0e+00], axis = 0>, transpose_b} : (tensor<4x3xf32>) -> tensor<4x2xf32>
// CHECK-NEXT:   func.return %[[Vy]] : tensor<4x2xf32>
// CHECK-NEXT: }

// -----

// A dequantise that is a result too stays; the matmul is fused all the same.
func.func @shared(%a: tensor<4x3xf32>) -> (tensor<4x2xf32>, tensor<3x2xf32>) {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<3x2xi8>>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = 0.5>} : (tensor<3x2xi8>) -> tensor<3x2xf32>
  %y = qmm.matmul %a, %d : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  func.return %y, %d : tensor<4x2xf32>, tensor<3x2xf32>
}

// CHECK:      func.func @shared(%[[Va:\w+]]: tensor<4x3xf32>) -> (tensor<4x2xf32>, tensor<3x2xf32>) {
// CHECK-NEXT:   %[[Vw:\w+]] = qmm.constant #qmm.weight<"0x010203040506" : tensor<3x2xi8>>
// CHECK-NEXT:   %[[Vd:\w+]] = qmm.dequantize %[[Vw]] {quant = #qmm.quant<i8, scale = 5.0e-01>} : (tensor<3x2xi8>) -> tensor<3x2xf32>
// CHECK-NEXT:   %[[Vy:\w+]] = qmm.dequant_matmul %[[Va]] {weight = #qmm.weight<"0x010203040506" : tensor<3x2xi8>>, quant = #qmm.quant<i8, scale = 5.0e-01>} : (tensor<4x3xf32>) -> tensor<4x2xf32>
// CHECK-NEXT:   func.return %[[Vy]], %[[Vd]] : tensor<4x2xf32>, tensor<3x2xf32>
// CHECK-NEXT: }

// -----

// A scale along K multiplies the activation.
func.func @along_k(%a: tensor<4x2xf32>) -> tensor<4x2xf32> {
  %w = qmm.constant #qmm.weight<"0x01020304" : tensor<2x2xi8>>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = [0.5, 1.0], zero_point = [3, 3], axis = 0>} : (tensor<2x2xi8>) -> tensor<2x2xf32>
  %y = qmm.matmul %a, %d : (tensor<4x2xf32>, tensor<2x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}

// CHECK:      func.func @along_k(%[[Va:\w+]]: tensor<4x2xf32>) -> tensor<4x2xf32> {
// CHECK-NEXT:   %[[V0:\w+]] = arith.constant dense<[5.000000e-01, 1.000000e+00]> : tensor<2xf32>
// CHECK-NEXT:   %[[V1:\w+]] = tensor.empty() : tensor<4x2xf32>
// CHECK-NEXT:   %[[V2:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%[[Va]], %[[V0]] : tensor<4x2xf32>, tensor<2xf32>) outs(%[[V1]] : tensor<4x2xf32>) {
// CHECK-NEXT:   ^bb0(%[[V3:\w+]]: f32, %[[V4:\w+]]: f32, %[[V5:\w+]]: f32):
// CHECK-NEXT:     %[[V6:\w+]] = arith.mulf %[[V3]], %[[V4]] : f32
// CHECK-NEXT:     linalg.yield %[[V6]] : f32
// CHECK-NEXT:   } -> tensor<4x2xf32>
// CHECK-NEXT:   %[[Vy:\w+]] = qmm.dequant_matmul %[[V2]] {weight = #qmm.weight<"0x01020304" : tensor<2x2xi8>>, quant = #qmm.quant<i8, scale = 1.0e+00, zero_point = 3>} : (tensor<4x2xf32>) -> tensor<4x2xf32>
// CHECK-NEXT:   func.return %[[Vy]] : tensor<4x2xf32>
// CHECK-NEXT: }

// -----

// Zero points that differ along K are summed over the activation, and the epilogue subtracts the sum.
func.func @zero_points_along_k(%a: tensor<4x2xf32>) -> tensor<4x2xf32> {
  %w = qmm.constant #qmm.weight<"0x01020304" : tensor<2x2xi8>>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = [0.5, 1.0], zero_point = [3, 4], axis = 0>} : (tensor<2x2xi8>) -> tensor<2x2xf32>
  %y = qmm.matmul %a, %d : (tensor<4x2xf32>, tensor<2x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}

// CHECK:      func.func @zero_points_along_k(%[[Va:\w+]]: tensor<4x2xf32>) -> tensor<4x2xf32> {
// CHECK-NEXT:   %[[V0:\w+]] = arith.constant dense<[5.000000e-01, 1.000000e+00]> : tensor<2xf32>
// CHECK-NEXT:   %[[V1:\w+]] = tensor.empty() : tensor<4x2xf32>
// CHECK-NEXT:   %[[V2:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%[[Va]], %[[V0]] : tensor<4x2xf32>, tensor<2xf32>) outs(%[[V1]] : tensor<4x2xf32>) {
// CHECK-NEXT:   ^bb0(%[[V3:\w+]]: f32, %[[V4:\w+]]: f32, %[[V5:\w+]]: f32):
// CHECK-NEXT:     %[[V6:\w+]] = arith.mulf %[[V3]], %[[V4]] : f32
// CHECK-NEXT:     linalg.yield %[[V6]] : f32
// CHECK-NEXT:   } -> tensor<4x2xf32>
// CHECK-NEXT:   %[[V7:\w+]] = arith.constant dense<[3.000000e+00, 4.000000e+00]> : tensor<2xf32>
// CHECK-NEXT:   %[[V8:\w+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:   %[[V9:\w+]] = tensor.empty() : tensor<4xf32>
// CHECK-NEXT:   %[[V10:\w+]] = linalg.fill ins(%[[V8]] : f32) outs(%[[V9]] : tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[V11:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%[[V2]], %[[V7]] : tensor<4x2xf32>, tensor<2xf32>) outs(%[[V10]] : tensor<4xf32>) {
// CHECK-NEXT:   ^bb0(%[[V12:\w+]]: f32, %[[V13:\w+]]: f32, %[[V14:\w+]]: f32):
// CHECK-NEXT:     %[[V15:\w+]] = arith.mulf %[[V12]], %[[V13]] : f32
// CHECK-NEXT:     %[[V16:\w+]] = arith.addf %[[V14]], %[[V15]] : f32
// CHECK-NEXT:     linalg.yield %[[V16]] : f32
// CHECK-NEXT:   } -> tensor<4xf32>
// CHECK-NEXT:   %[[Vy:\w+]] = qmm.dequant_matmul %[[V2]] epilogue(%[[V11]]) maps [affine_map<(d0, d1) -> (d0)>] {weight = #qmm.weight<"0x01020304" : tensor<2x2xi8>>, quant = #qmm.quant<i8, scale = 1.0e+00>} : (tensor<4x2xf32>, tensor<4xf32>) -> tensor<4x2xf32> {
// CHECK-NEXT:   ^bb0(%[[V17:\w+]]: f32, %[[V18:\w+]]: f32):
// CHECK-NEXT:     %[[V19:\w+]] = arith.subf %[[V17]], %[[V18]] : f32
// CHECK-NEXT:     qmm.yield %[[V19]] : f32
// CHECK-NEXT:   }
// CHECK-NEXT:   func.return %[[Vy]] : tensor<4x2xf32>
// CHECK-NEXT: }

// -----

func.func @batch_of_weights(%a: tensor<2x1x3xf32>) -> tensor<2x1x1xf32> {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<2x3x1xi8>>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = 0.5>} : (tensor<2x3x1xi8>) -> tensor<2x3x1xf32>
  %y = qmm.matmul %a, %d : (tensor<2x1x3xf32>, tensor<2x3x1xf32>) -> tensor<2x1x1xf32>
  func.return %y : tensor<2x1x1xf32>
}

// CHECK:      func.func @batch_of_weights(%[[Va:\w+]]: tensor<2x1x3xf32>) -> tensor<2x1x1xf32> {
// CHECK-NEXT:   %[[Vw:\w+]] = qmm.constant #qmm.weight<"0x010203040506" : tensor<2x3x1xi8>>
// CHECK-NEXT:   %[[Vd:\w+]] = qmm.dequantize %[[Vw]] {quant = #qmm.quant<i8, scale = 5.0e-01>} : (tensor<2x3x1xi8>) -> tensor<2x3x1xf32>
// CHECK-NEXT:   %[[Vy:\w+]] = qmm.matmul %[[Va]], %[[Vd]] {qmm.reason = "found a batch of weights [2, 3, 1]; supported: a constant matrix, quantised per tensor, along one axis or in blocks along K"} : (tensor<2x1x3xf32>, tensor<2x3x1xf32>) -> tensor<2x1x1xf32>
// CHECK-NEXT:   func.return %[[Vy]] : tensor<2x1x1xf32>
// CHECK-NEXT: }

// -----

// The weight on the left: the transposed product.
func.func @left(%b: tensor<3x4xf32>) -> tensor<2x4xf32> {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<2x3xi8>>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = [0.5, 1.0], axis = 0>} : (tensor<2x3xi8>) -> tensor<2x3xf32>
  %y = qmm.matmul %d, %b : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  func.return %y : tensor<2x4xf32>
}

// CHECK:      func.func @left(%[[Vb:\w+]]: tensor<3x4xf32>) -> tensor<2x4xf32> {
// CHECK-NEXT:   %[[V0:\w+]] = tensor.empty() : tensor<4x3xf32>
// CHECK-NEXT:   %[[V1:\w+]] = linalg.transpose ins(%[[Vb]]:tensor<3x4xf32>) outs(%[[V0]]:tensor<4x3xf32>) permutation = [1, 0]
// CHECK-NEXT:   %[[V2:\w+]] = qmm.dequant_matmul %[[V1]] {weight = #qmm.weight<"0x010203040506" : tensor<2x3xi8>>, quant = #qmm.quant<i8, scale = [5.0e-01, 1.0e+00], axis = 0>, transpose_b} : (tensor<4x3xf32>) -> tensor<4x2xf32>
// CHECK-NEXT:   %[[V3:\w+]] = tensor.empty() : tensor<2x4xf32>
// CHECK-NEXT:   %[[Vy:\w+]] = linalg.transpose ins(%[[V2]]:tensor<4x2xf32>) outs(%[[V3]]:tensor<2x4xf32>) permutation = [1, 0]
// CHECK-NEXT:   func.return %[[Vy]] : tensor<2x4xf32>
// CHECK-NEXT: }

// -----

func.func @conv(%x: tensor<1x1x3x3xf32>) -> tensor<1x2x3x3xf32> {
  %w = qmm.constant #qmm.weight<"0x0102" : tensor<2x1x1x1xi8>>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = [0.5, 1.0], axis = 0>} : (tensor<2x1x1x1xi8>) -> tensor<2x1x1x1xf32>
  %y = qmm.conv %x, %d {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x1x3x3xf32>, tensor<2x1x1x1xf32>) -> tensor<1x2x3x3xf32>
  func.return %y : tensor<1x2x3x3xf32>
}

// CHECK:      func.func @conv(%[[Vx:\w+]]: tensor<1x1x3x3xf32>) -> tensor<1x2x3x3xf32> {
// CHECK-NEXT:   %[[Vy:\w+]] = qmm.dequant_conv %[[Vx]] {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64, weight = #qmm.weight<"0x0102" : tensor<2x1x1x1xi8>>, quant = #qmm.quant<i8, scale = [5.0e-01, 1.0e+00], axis = 0>} : (tensor<1x1x3x3xf32>) -> tensor<1x2x3x3xf32>
// CHECK-NEXT:   func.return %[[Vy]] : tensor<1x2x3x3xf32>
// CHECK-NEXT: }

// -----

func.func @gather(%i: tensor<2xi64>) -> tensor<2x2xf32> {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<3x2xi8>>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = [0.5, 1.0, 2.0], axis = 0>} : (tensor<3x2xi8>) -> tensor<3x2xf32>
  %e = tensor.empty() : tensor<2x2xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%i : tensor<2xi64>) outs(%e : tensor<2x2xf32>) attrs = {qmm.gather} {
  ^bb0(%index: i64, %out: f32):
    %row = arith.index_cast %index : i64 to index
    %column = linalg.index 1 : index
    %element = tensor.extract %d[%row, %column] : tensor<3x2xf32>
    linalg.yield %element : f32
  } -> tensor<2x2xf32>
  func.return %y : tensor<2x2xf32>
}

// CHECK:      func.func @gather(%[[Vi:\w+]]: tensor<2xi64>) -> tensor<2x2xf32> {
// CHECK-NEXT:   %[[Vy:\w+]] = qmm.dequant_gather %[[Vi]] {weight = #qmm.weight<"0x010203040506" : tensor<3x2xi8>>, quant = #qmm.quant<i8, scale = [5.0e-01, 1.0e+00, 2.0e+00], axis = 0>} : (tensor<2xi64>) -> tensor<2x2xf32>
// CHECK-NEXT:   func.return %[[Vy]] : tensor<2x2xf32>
// CHECK-NEXT: }
