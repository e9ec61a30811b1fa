// RUN: qfold-opt %s --split-input-file -p qmm-quantized-io | filecheck %s
// RUN: qfold-opt %s --split-input-file --quantized-io | filecheck %s

// The first op on each input and the last one before each output; layout ops move bytes. An output that is read inside too keeps its
// dequantise, for those readers.
func.func @main(%x: tensor<2x3xf32> {qmm.name = "x"}, %b: tensor<3x2xf32> {qmm.name = "b"}) -> (tensor<3x2xf32> {qmm.name = "y"}, tensor<2x3xf32> {qmm.name = "z"}) {
  %q = qmm.quantize %x {quant = #qmm.quant<ui8, scale = 0.5, zero_point = 128>} : (tensor<2x3xf32>) -> tensor<2x3xui8>
  %d = qmm.dequantize %q {quant = #qmm.quant<ui8, scale = 0.5, zero_point = 128>} : (tensor<2x3xui8>) -> tensor<2x3xf32>
  %e = tensor.empty() : tensor<2x3xf32>
  %t = linalg.transpose ins(%b : tensor<3x2xf32>) outs(%e : tensor<2x3xf32>) permutation = [1, 0]
  %p = qmm.quantize %t {quant = #qmm.quant<i8, scale = 0.25>} : (tensor<2x3xf32>) -> tensor<2x3xi8>
  %r = qmm.dequantize %p {quant = #qmm.quant<i8, scale = 0.25>} : (tensor<2x3xi8>) -> tensor<2x3xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%d, %r : tensor<2x3xf32>, tensor<2x3xf32>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %sum = arith.addf %i, %j : f32
    linalg.yield %sum : f32
  } -> tensor<2x3xf32>
  %u = qmm.quantize %s {quant = #qmm.quant<i8, scale = 1.0, zero_point = -3>} : (tensor<2x3xf32>) -> tensor<2x3xi8>
  %v = qmm.dequantize %u {quant = #qmm.quant<i8, scale = 1.0, zero_point = -3>} : (tensor<2x3xi8>) -> tensor<2x3xf32>
  %c = tensor.collapse_shape %v [[0, 1]] : tensor<2x3xf32> into tensor<6xf32>
  %f = tensor.expand_shape %c [[0, 1]] output_shape [3, 2] : tensor<6xf32> into tensor<3x2xf32>
  func.return %f, %v : tensor<3x2xf32>, tensor<2x3xf32>
}

// CHECK:      func.func @main(%[[X:.*]]: tensor<2x3xui8> {qmm.name = "x", qmm.quant = #qmm.quant<ui8, scale = 5.0e-01, zero_point = 128>},
// CHECK-SAME:   %[[B:.*]]: tensor<3x2xi8> {qmm.name = "b", qmm.quant = #qmm.quant<i8, scale = 2.5e-01>})
// CHECK-SAME:   -> (tensor<3x2xi8> {qmm.name = "y", qmm.quant = #qmm.quant<i8, scale = 1.0e+00, zero_point = -3>},
// CHECK-SAME:   tensor<2x3xi8> {qmm.name = "z", qmm.quant = #qmm.quant<i8, scale = 1.0e+00, zero_point = -3>})
// CHECK-NEXT:   %{{.*}} = qmm.dequantize %[[X]]
// CHECK:        %[[T:.*]] = linalg.transpose ins(%[[B]]:tensor<3x2xi8>)
// CHECK-NEXT:   %{{.*}} = qmm.dequantize %[[T]]
// CHECK:        %[[U:.*]] = qmm.quantize
// CHECK-NEXT:   %[[C:.*]] = tensor.collapse_shape %[[U]] {{.*}} : tensor<2x3xi8> into tensor<6xi8>
// CHECK-NEXT:   %[[F:.*]] = tensor.expand_shape %[[C]] {{.*}} : tensor<6xi8> into tensor<3x2xi8>
// CHECK-NEXT:   func.return %[[F]], %[[U]] : tensor<3x2xi8>, tensor<2x3xi8>

// -----

// What stays a float says why; integers say what they stand for.
func.func @main(%x: tensor<2xf32>, %y: tensor<2xf32>, %z: tensor<2xf32>, %w: tensor<2xf32>, %i: tensor<2xi8>) -> (tensor<2xi8>, tensor<2xi8>, tensor<2xi8>, tensor<2xf32>, tensor<2xf32>) {
  %a = qmm.quantize %x {quant = #qmm.quant<i8, scale = 0.5>} : (tensor<2xf32>) -> tensor<2xi8>
  %b = qmm.quantize %y {quant = #qmm.quant<i8, scale = 0.5>} : (tensor<2xf32>) -> tensor<2xi8>
  %c = qmm.quantize %y {quant = #qmm.quant<i8, scale = 0.25>} : (tensor<2xf32>) -> tensor<2xi8>
  %d = qmm.quantize %z {quant = #qmm.quant<i8, scale = [0.5, 0.25], axis = 0>} : (tensor<2xf32>) -> tensor<2xi8>
  %e = tensor.empty() : tensor<2xf32>
  %f = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%x : tensor<2xf32>) outs(%e : tensor<2xf32>) {
  ^bb0(%k: f32, %o: f32):
    %n = arith.negf %k : f32
    linalg.yield %n : f32
  } -> tensor<2xf32>
  %j = qmm.dequantize %i {quant = #qmm.quant<i8, scale = 2.0, zero_point = 127>} : (tensor<2xi8>) -> tensor<2xf32>
  func.return %a, %b, %d, %f, %j : tensor<2xi8>, tensor<2xi8>, tensor<2xi8>, tensor<2xf32>, tensor<2xf32>
}

// CHECK:      func.func @main(
// CHECK-SAME: tensor<2xf32> {qmm.note = "it is read by linalg.generic as a float, besides being quantised by qmm.quantize"}
// CHECK-SAME: tensor<2xf32> {qmm.note = "qmm.quantize and qmm.quantize quantise it differently"}
// CHECK-SAME: tensor<2xf32> {qmm.note = "qmm.quantize has parameters per axis; one scale can be handed over"}
// CHECK-SAME: tensor<2xf32> {qmm.note = "nothing reads it"}
// CHECK-SAME: tensor<2xi8> {qmm.quant = #qmm.quant<i8, scale = 2.0e+00, zero_point = 127>}
// CHECK-SAME: -> (tensor<2xi8> {qmm.quant = #qmm.quant<i8, scale = 5.0e-01>}
// CHECK-SAME: tensor<2xi8>
// CHECK-SAME: tensor<2xi8>
// CHECK-SAME: tensor<2xf32> {qmm.note = "it is computed as a float, by linalg.generic"}
// CHECK-SAME: tensor<2xi8> {qmm.quant = #qmm.quant<i8, scale = 2.0e+00, zero_point = 127>})

// -----

// Integers that were only held in floats have scale 1. Those of 32 bits stay floats.
func.func @main(%a: tensor<2x3xui8>, %b: tensor<2xi32>) -> (tensor<2x3xf32>, tensor<2xf32>) {
  %e = tensor.empty() : tensor<2x3xf32>
  %f = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<2x3xui8>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%k: ui8, %o: f32):
    %s = builtin.unrealized_conversion_cast %k : ui8 to i8
    %n = arith.uitofp %s : i8 to f32
    linalg.yield %n : f32
  } -> tensor<2x3xf32>
  %g = tensor.empty() : tensor<2xf32>
  %h = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%b : tensor<2xi32>) outs(%g : tensor<2xf32>) {
  ^bb0(%k: i32, %o: f32):
    %n = arith.sitofp %k : i32 to f32
    linalg.yield %n : f32
  } -> tensor<2xf32>
  func.return %f, %h : tensor<2x3xf32>, tensor<2xf32>
}

// CHECK:      func.func @main(%[[A:.*]]: tensor<2x3xui8>, %{{.*}}: tensor<2xi32>)
// CHECK-SAME:   -> (tensor<2x3xui8> {qmm.quant = #qmm.quant<ui8, scale = 1.0e+00>}, tensor<2xf32> {qmm.note = "it is i32 before; integers of 8 and 16 bits can be handed over"})
// CHECK-NOT:  uitofp
// CHECK:      func.return %[[A]], %{{.*}} : tensor<2x3xui8>, tensor<2xf32>
