// RUN: qfold-opt %s --split-input-file -p qmm-lower-quantization | filecheck %s

// Clamped as a float, so that the conversion is exact: by the range less the zero point, which is added after it. NaN is 0 steps.
func.func @quantize(%x: tensor<4xf32>) -> tensor<4xui8> {
  %q = qmm.quantize %x {quant = #qmm.quant<ui8, scale = 0.5, zero_point = 128>} : (tensor<4xf32>) -> tensor<4xui8>
  func.return %q : tensor<4xui8>
}

// CHECK:      func.func @quantize(%[[Vx:\w+]]: tensor<4xf32>) -> tensor<4xui8> {
// CHECK-NEXT:   %[[V0:\w+]] = tensor.empty() : tensor<4xui8>
// CHECK-NEXT:   %[[Vq:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%[[Vx]] : tensor<4xf32>) outs(%[[V0]] : tensor<4xui8>) {
// CHECK-NEXT:   ^bb0(%[[V1:\w+]]: f32, %[[V2:\w+]]: ui8):
// CHECK-NEXT:     %[[V3:\w+]] = arith.constant 5.000000e-01 : f32
// CHECK-NEXT:     %[[V4:\w+]] = arith.constant 128 : i32
// CHECK-NEXT:     %[[V5:\w+]] = arith.divf %[[V1]], %[[V3]] : f32
// CHECK-NEXT:     %[[V6:\w+]] = arith.cmpf uno, %[[V5]], %[[V5]] : f32
// CHECK-NEXT:     %[[V7:\w+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:     %[[V8:\w+]] = arith.select %[[V6]], %[[V7]], %[[V5]] : f32
// CHECK-NEXT:     %[[V9:\w+]] = math.roundeven %[[V8]] : f32
// CHECK-NEXT:     %[[V10:\w+]] = arith.constant -1.280000e+02 : f32
// CHECK-NEXT:     %[[V11:\w+]] = arith.maxnumf %[[V9]], %[[V10]] : f32
// CHECK-NEXT:     %[[V12:\w+]] = arith.constant 1.270000e+02 : f32
// CHECK-NEXT:     %[[V13:\w+]] = arith.minnumf %[[V11]], %[[V12]] : f32
// CHECK-NEXT:     %[[V14:\w+]] = arith.fptosi %[[V13]] : f32 to i32
// CHECK-NEXT:     %[[V15:\w+]] = arith.addi %[[V14]], %[[V4]] : i32
// CHECK-NEXT:     %[[V16:\w+]] = arith.trunci %[[V15]] : i32 to i8
// CHECK-NEXT:     %[[V17:\w+]] = builtin.unrealized_conversion_cast %[[V16]] : i8 to ui8
// CHECK-NEXT:     linalg.yield %[[V17]] : ui8
// CHECK-NEXT:   } -> tensor<4xui8>
// CHECK-NEXT:   func.return %[[Vq]] : tensor<4xui8>
// CHECK-NEXT: }

// -----

// Differing parameters are operands; the zero point keeps its own type.
func.func @dequantize(%q: tensor<2x3xui8>) -> tensor<2x3xf32> {
  %x = qmm.dequantize %q {quant = #qmm.quant<ui8, scale = [0.5, 1.0], zero_point = [3, 200], axis = 0>} : (tensor<2x3xui8>) -> tensor<2x3xf32>
  func.return %x : tensor<2x3xf32>
}

// CHECK:      func.func @dequantize(%[[Vq:\w+]]: tensor<2x3xui8>) -> tensor<2x3xf32> {
// CHECK-NEXT:   %[[V0:\w+]] = arith.constant dense<[5.000000e-01, 1.000000e+00]> : tensor<2xf32>
// CHECK-NEXT:   %[[V1:\w+]] = qmm.constant #qmm.weight<"0x03C8" : tensor<2xui8>>
// CHECK-NEXT:   %[[V2:\w+]] = tensor.empty() : tensor<2x3xf32>
// CHECK-NEXT:   %[[Vx:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%[[Vq]], %[[V0]], %[[V1]] : tensor<2x3xui8>, tensor<2xf32>, tensor<2xui8>) outs(%[[V2]] : tensor<2x3xf32>) {
// CHECK-NEXT:   ^bb0(%[[V3:\w+]]: ui8, %[[V4:\w+]]: f32, %[[V5:\w+]]: ui8, %[[V6:\w+]]: f32):
// CHECK-NEXT:     %[[V7:\w+]] = builtin.unrealized_conversion_cast %[[V3]] : ui8 to i8
// CHECK-NEXT:     %[[V8:\w+]] = builtin.unrealized_conversion_cast %[[V5]] : ui8 to i8
// CHECK-NEXT:     %[[V9:\w+]] = arith.extui %[[V8]] : i8 to i32
// CHECK-NEXT:     %[[V10:\w+]] = arith.extui %[[V7]] : i8 to i32
// CHECK-NEXT:     %[[V11:\w+]] = arith.subi %[[V10]], %[[V9]] : i32
// CHECK-NEXT:     %[[V12:\w+]] = arith.sitofp %[[V11]] : i32 to f32
// CHECK-NEXT:     %[[V13:\w+]] = arith.mulf %[[V12]], %[[V4]] : f32
// CHECK-NEXT:     linalg.yield %[[V13]] : f32
// CHECK-NEXT:   } -> tensor<2x3xf32>
// CHECK-NEXT:   func.return %[[Vx]] : tensor<2x3xf32>
// CHECK-NEXT: }

// -----

// Blocks: whole ones, and what is left.
func.func @row_sum(%a: tensor<2x5xf32>) -> tensor<2x3xf32> {
  %s = qmm.row_sum %a {block_size = 2 : i64} : (tensor<2x5xf32>) -> tensor<2x3xf32>
  func.return %s : tensor<2x3xf32>
}

// CHECK:      func.func @row_sum(%[[Va:\w+]]: tensor<2x5xf32>) -> tensor<2x3xf32> {
// CHECK-NEXT:   %[[V0:\w+]] = tensor.empty() : tensor<2xf32>
// CHECK-NEXT:   %[[V1:\w+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:   %[[V2:\w+]] = tensor.empty() : tensor<2x2xf32>
// CHECK-NEXT:   %[[V3:\w+]] = linalg.fill ins(%[[V1]] : f32) outs(%[[V2]] : tensor<2x2xf32>) -> tensor<2x2xf32>
// CHECK-NEXT:   %[[V4:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, ((d1 * 2) + d2))>, affine_map<(d0, d1, d2) -> (d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%[[Va]], %[[V0]] : tensor<2x5xf32>, tensor<2xf32>) outs(%[[V3]] : tensor<2x2xf32>) {
// CHECK-NEXT:   ^bb0(%[[V5:\w+]]: f32, %[[V6:\w+]]: f32, %[[V7:\w+]]: f32):
// CHECK-NEXT:     %[[V8:\w+]] = arith.addf %[[V7]], %[[V5]] : f32
// CHECK-NEXT:     linalg.yield %[[V8]] : f32
// CHECK-NEXT:   } -> tensor<2x2xf32>
// CHECK-NEXT:   %[[V9:\w+]] = tensor.empty() : tensor<1xf32>
// CHECK-NEXT:   %[[V10:\w+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:   %[[V11:\w+]] = tensor.empty() : tensor<2x1xf32>
// CHECK-NEXT:   %[[V12:\w+]] = linalg.fill ins(%[[V10]] : f32) outs(%[[V11]] : tensor<2x1xf32>) -> tensor<2x1xf32>
// CHECK-NEXT:   %[[V13:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, ((d1 + d2) + 4))>, affine_map<(d0, d1, d2) -> (d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%[[Va]], %[[V9]] : tensor<2x5xf32>, tensor<1xf32>) outs(%[[V12]] : tensor<2x1xf32>) {
// CHECK-NEXT:   ^bb0(%[[V14:\w+]]: f32, %[[V15:\w+]]: f32, %[[V16:\w+]]: f32):
// CHECK-NEXT:     %[[V17:\w+]] = arith.addf %[[V16]], %[[V14]] : f32
// CHECK-NEXT:     linalg.yield %[[V17]] : f32
// CHECK-NEXT:   } -> tensor<2x1xf32>
// CHECK-NEXT:   %[[V18:\w+]] = tensor.empty() : tensor<2x3xf32>
// CHECK-NEXT:   %[[V19:\w+]] = tensor.insert_slice %[[V4]] into %[[V18]][0, 0] [2, 2] [1, 1] : tensor<2x2xf32> into tensor<2x3xf32>
// CHECK-NEXT:   %[[Vs:\w+]] = tensor.insert_slice %[[V13]] into %[[V19]][0, 2] [2, 1] [1, 1] : tensor<2x1xf32> into tensor<2x3xf32>
// CHECK-NEXT:   func.return %[[Vs]] : tensor<2x3xf32>
// CHECK-NEXT: }

// -----

// The table is read as integers, row by row.
func.func @gather(%i: tensor<2xi64>) -> tensor<2x2xf32> {
  %0 = qmm.dequant_gather %i {weight = #qmm.weight<"0x010203040506" : tensor<3x2xi8>>, quant = #qmm.quant<i8, scale = [0.5, 1.0, 2.0], axis = 0>} : (tensor<2xi64>) -> tensor<2x2xf32>
  func.return %0 : tensor<2x2xf32>
}

// CHECK:      func.func @gather(%[[Vi:\w+]]: tensor<2xi64>) -> tensor<2x2xf32> {
// CHECK-NEXT:   %[[V0:\w+]] = qmm.constant #qmm.weight<"0x010203040506" : tensor<3x2xi8>>
// CHECK-NEXT:   %[[V1:\w+]] = arith.constant dense<[5.000000e-01, 1.000000e+00, 2.000000e+00]> : tensor<3xf32>
// CHECK-NEXT:   %[[V2:\w+]] = tensor.empty() : tensor<2x2xf32>
// CHECK-NEXT:   %[[V3:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%[[Vi]] : tensor<2xi64>) outs(%[[V2]] : tensor<2x2xf32>) {
// CHECK-NEXT:   ^bb0(%[[V4:\w+]]: i64, %[[V5:\w+]]: f32):
// CHECK-NEXT:     %[[V6:\w+]] = arith.index_cast %[[V4]] : i64 to index
// CHECK-NEXT:     %[[V7:\w+]] = arith.constant 0 : index
// CHECK-NEXT:     %[[V8:\w+]] = arith.cmpi slt, %[[V6]], %[[V7]] : index
// CHECK-NEXT:     %[[V9:\w+]] = arith.constant 3 : index
// CHECK-NEXT:     %[[V10:\w+]] = arith.addi %[[V6]], %[[V9]] : index
// CHECK-NEXT:     %[[V11:\w+]] = arith.select %[[V8]], %[[V10]], %[[V6]] : index
// CHECK-NEXT:     %[[V12:\w+]] = linalg.index 1 : index
// CHECK-NEXT:     %[[V13:\w+]] = tensor.extract %[[V0]][%[[V11]], %[[V12]]] : tensor<3x2xi8>
// CHECK-NEXT:     %[[V14:\w+]] = tensor.extract %[[V1]][%[[V11]]] : tensor<3xf32>
// CHECK-NEXT:     %[[V15:\w+]] = arith.extsi %[[V13]] : i8 to i32
// CHECK-NEXT:     %[[V16:\w+]] = arith.sitofp %[[V15]] : i32 to f32
// CHECK-NEXT:     %[[V17:\w+]] = arith.mulf %[[V16]], %[[V14]] : f32
// CHECK-NEXT:     linalg.yield %[[V17]] : f32
// CHECK-NEXT:   } -> tensor<2x2xf32>
// CHECK-NEXT:   func.return %[[V3]] : tensor<2x2xf32>
// CHECK-NEXT: }
