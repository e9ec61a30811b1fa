// RUN: qfold-opt %s --split-input-file -p qmm-raise-dequant | filecheck %s

// extsi -> subi -> sitofp -> mulf in one generic.
func.func @one_generic() -> tensor<2x3xf32> {
  %w = arith.constant dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi8>
  %s = arith.constant dense<[0.5, 1.0, 2.0]> : tensor<3xf32>
  %e = tensor.empty() : tensor<2x3xf32>
  %zero = arith.constant 7 : i32
  %0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%w, %s : tensor<2x3xi8>, tensor<3xf32>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%q: i8, %scale: f32, %o: f32):
    %wide = arith.extsi %q : i8 to i32
    %centred = arith.subi %wide, %zero : i32
    %real = arith.sitofp %centred : i32 to f32
    %scaled = arith.mulf %real, %scale : f32
    linalg.yield %scaled : f32
  } -> tensor<2x3xf32>
  func.return %0 : tensor<2x3xf32>
}

// CHECK:      func.func @one_generic() -> tensor<2x3xf32> {
// CHECK-NEXT:   %[[Vw:\w+]] = arith.constant dense<{{\[\[}}1, 2, 3], [4, 5, 6]]> : tensor<2x3xi8>
// CHECK-NEXT:   %[[Vzero:\w+]] = arith.constant 7 : i32
// CHECK-NEXT:   %[[V0:\w+]] = qmm.dequantize %[[Vw]] {quant = #qmm.quant<i8, scale = [5.0e-01, 1.0e+00, 2.0e+00], zero_point = [7, 7, 7], axis = 1>} : (tensor<2x3xi8>) -> tensor<2x3xf32>
// CHECK-NEXT:   func.return %[[V0]] : tensor<2x3xf32>
// CHECK-NEXT: }

// -----

// Signless bits, zero-extended: the weight is unsigned.
func.func @unsigned() -> tensor<2x3xf32> {
  %w = arith.constant dense<[[-1, 2, 3], [4, 5, 6]]> : tensor<2x3xi8>
  %e = tensor.empty() : tensor<2x3xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%w : tensor<2x3xi8>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%q: i8, %o: f32):
    %real = arith.uitofp %q : i8 to f32
    linalg.yield %real : f32
  } -> tensor<2x3xf32>
  func.return %0 : tensor<2x3xf32>
}

// CHECK:      func.func @unsigned() -> tensor<2x3xf32> {
// CHECK-NEXT:   %[[V0:\w+]] = qmm.constant #qmm.weight<"0xFF0203040506" : tensor<2x3xui8>>
// CHECK-NEXT:   %[[V1:\w+]] = qmm.dequantize %[[V0]] {quant = #qmm.quant<ui8, scale = 1.0e+00>} : (tensor<2x3xui8>) -> tensor<2x3xf32>
// CHECK-NEXT:   func.return %[[V1]] : tensor<2x3xf32>
// CHECK-NEXT: }

// -----

// A difference in eight bits could wrap: no dequantise.
func.func @wraps() -> tensor<2xf32> {
  %w = arith.constant dense<[-128, 2]> : tensor<2xi8>
  %e = tensor.empty() : tensor<2xf32>
  %zero = arith.constant 7 : i8
  %0 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%w : tensor<2xi8>) outs(%e : tensor<2xf32>) {
  ^bb0(%q: i8, %o: f32):
    %centred = arith.subi %q, %zero : i8
    %real = arith.sitofp %centred : i8 to f32
    linalg.yield %real : f32
  } -> tensor<2xf32>
  func.return %0 : tensor<2xf32>
}

// CHECK:      func.func @wraps() -> tensor<2xf32> {
// CHECK-NEXT:   %[[Vw:\w+]] = arith.constant dense<[-128, 2]> : tensor<2xi8>
// CHECK-NEXT:   %[[Ve:\w+]] = tensor.empty() : tensor<2xf32>
// CHECK-NEXT:   %[[Vzero:\w+]] = arith.constant 7 : i8
// CHECK-NEXT:   %[[V0:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%[[Vw]] : tensor<2xi8>) outs(%[[Ve]] : tensor<2xf32>) {
// CHECK-NEXT:   ^bb0(%[[Vq:\w+]]: i8, %[[Vo:\w+]]: f32):
// CHECK-NEXT:     %[[Vcentred:\w+]] = arith.subi %[[Vq]], %[[Vzero]] : i8
// CHECK-NEXT:     %[[Vreal:\w+]] = arith.sitofp %[[Vcentred]] : i8 to f32
// CHECK-NEXT:     linalg.yield %[[Vreal]] : f32
// CHECK-NEXT:   } -> tensor<2xf32>
// CHECK-NEXT:   func.return %[[V0]] : tensor<2xf32>
// CHECK-NEXT: }
