// RUN: qfold-opt %s --split-input-file -p qmm-fuse-quantized | filecheck %s

// Two matmuls with a Relu between: no float from the first integers to the last. The Relu is the saturation where the zero
// point is the smallest integer.
func.func @chain(%a: tensor<4x3xui8>) -> tensor<4x1xi8> {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<3x2xi8>>
  %v = qmm.constant #qmm.weight<"0x0708" : tensor<2x1xi8>>
  %x = qmm.dequantize %a {quant = #qmm.quant<ui8, scale = 0.5, zero_point = 128>} : (tensor<4x3xui8>) -> tensor<4x3xf32>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = [0.5, 1.0], axis = 1>} : (tensor<3x2xi8>) -> tensor<3x2xf32>
  %y = qmm.matmul %x, %d : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  %e = tensor.empty() : tensor<4x2xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%y : tensor<4x2xf32>) outs(%e : tensor<4x2xf32>) {
  ^bb0(%i: f32, %o: f32):
    %zero = arith.constant 0.0 : f32
    %m = arith.maximumf %i, %zero : f32
    linalg.yield %m : f32
  } -> tensor<4x2xf32>
  %q = qmm.quantize %r {quant = #qmm.quant<ui8, scale = 2.0>} : (tensor<4x2xf32>) -> tensor<4x2xui8>
  %s = qmm.dequantize %q {quant = #qmm.quant<ui8, scale = 2.0>} : (tensor<4x2xui8>) -> tensor<4x2xf32>
  %f = qmm.dequantize %v {quant = #qmm.quant<i8, scale = 0.25>} : (tensor<2x1xi8>) -> tensor<2x1xf32>
  %z = qmm.matmul %s, %f : (tensor<4x2xf32>, tensor<2x1xf32>) -> tensor<4x1xf32>
  %p = qmm.quantize %z {quant = #qmm.quant<i8, scale = 4.0, zero_point = -3>} : (tensor<4x1xf32>) -> tensor<4x1xi8>
  func.return %p : tensor<4x1xi8>
}

// CHECK:      func.func @chain(%[[A:.*]]: tensor<4x3xui8>) -> tensor<4x1xi8> {
// CHECK-NEXT:   %[[W:.*]] = qmm.constant #qmm.weight<"0x010203040506" : tensor<3x2xi8>>
// CHECK-NEXT:   %[[Z:.*]] = qmm.constant #qmm.weight<"0x80" : tensor<ui8>>
// CHECK-NEXT:   %[[Y:.*]] = qmm.quant_matmul %[[A]], %[[W]] a_zero_point(%[[Z]]) : (tensor<4x3xui8>, tensor<3x2xi8>, tensor<ui8>) -> tensor<4x2xi32>
// CHECK-NEXT:   %[[Q:.*]] = qmm.requantize %[[Y]] {multiplier = array<f64: 1.250000e-01, 2.500000e-01>, zero_point = 0 : i64, axis = 1 : i64} : (tensor<4x2xi32>) -> tensor<4x2xui8>
// CHECK-NEXT:   %[[V:.*]] = qmm.constant #qmm.weight<"0x0708" : tensor<2x1xi8>>
// CHECK-NEXT:   %[[X:.*]] = qmm.quant_matmul %[[Q]], %[[V]] : (tensor<4x2xui8>, tensor<2x1xi8>) -> tensor<4x1xi32>
// CHECK-NEXT:   %[[P:.*]] = qmm.requantize %[[X]] {multiplier = array<f64: 1.250000e-01>, zero_point = -3 : i64} : (tensor<4x1xi32>) -> tensor<4x1xi8>
// CHECK-NEXT:   func.return %[[P]] : tensor<4x1xi8>
// CHECK-NEXT: }

// -----

// The bias is a multiple of the accumulator's scale; the Relu is a bound; the transpose moves bytes. The border is the zero point.
func.func @conv(%a: tensor<1x1x5xi8>) -> tensor<1x5x2xi8> {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<2x1x3xi8>>
  %x = qmm.dequantize %a {quant = #qmm.quant<i8, scale = 0.5, zero_point = 3>} : (tensor<1x1x5xi8>) -> tensor<1x1x5xf32>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = 0.5>} : (tensor<2x1x3xi8>) -> tensor<2x1x3xf32>
  %y = qmm.conv %x, %d {strides = array<i64: 1>, pads = array<i64: 1, 1>, dilations = array<i64: 1>, groups = 1 : i64} : (tensor<1x1x5xf32>, tensor<2x1x3xf32>) -> tensor<1x2x5xf32>
  %b = arith.constant dense<[[1.0], [-0.5]]> : tensor<2x1xf32>
  %e = tensor.empty() : tensor<1x2x5xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d1, 0)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%y, %b : tensor<1x2x5xf32>, tensor<2x1xf32>) outs(%e : tensor<1x2x5xf32>) {
  ^bb0(%i: f32, %c: f32, %o: f32):
    %sum = arith.addf %i, %c : f32
    %zero = arith.constant 0.0 : f32
    %m = arith.maximumf %sum, %zero : f32
    linalg.yield %m : f32
  } -> tensor<1x2x5xf32>
  %f = tensor.empty() : tensor<1x5x2xf32>
  %t = linalg.transpose ins(%r : tensor<1x2x5xf32>) outs(%f : tensor<1x5x2xf32>) permutation = [0, 2, 1]
  %q = qmm.quantize %t {quant = #qmm.quant<i8, scale = 2.0, zero_point = -5>} : (tensor<1x5x2xf32>) -> tensor<1x5x2xi8>
  func.return %q : tensor<1x5x2xi8>
}

// CHECK:      func.func @conv(%[[A:.*]]: tensor<1x1x5xi8>) -> tensor<1x5x2xi8> {
// CHECK:        %[[Y:.*]] = qmm.quant_conv %[[A]], %{{.*}} x_zero_point(%{{.*}}) {strides = array<i64: 1>, pads = array<i64: 1, 1>, dilations = array<i64: 1>, groups = 1 : i64} : (tensor<1x1x5xi8>, tensor<2x1x3xi8>, tensor<i8>) -> tensor<1x2x5xi32>
// CHECK-NEXT:   %[[B:.*]] = arith.constant {{.*}} : tensor<2x1xi32>
// CHECK:          arith.addi
// CHECK:        %[[Q:.*]] = qmm.requantize %{{.*}} {multiplier = array<f64: 1.250000e-01>, zero_point = -5 : i64, low = -5 : i64} : (tensor<1x2x5xi32>) -> tensor<1x2x5xi8>
// CHECK-NEXT:   %{{.*}} = tensor.empty() : tensor<1x5x2xi8>
// CHECK-NEXT:   %[[T:.*]] = linalg.transpose ins(%[[Q]]:tensor<1x2x5xi8>)
// CHECK-NEXT:   func.return %[[T]]

// -----

// Read as floats, an accumulator is converted and scaled.
func.func @float_output(%a: tensor<4x3xi8>) -> tensor<4x2xf32> {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<3x2xi8>>
  %x = qmm.dequantize %a {quant = #qmm.quant<i8, scale = 0.5>} : (tensor<4x3xi8>) -> tensor<4x3xf32>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = 0.5>} : (tensor<3x2xi8>) -> tensor<3x2xf32>
  %y = qmm.matmul %x, %d : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}

// CHECK:      func.func @float_output
// CHECK:        qmm.quant_matmul
// CHECK:          arith.sitofp
// CHECK-NEXT:     arith.constant 2.500000e-01 : f32
// CHECK-NEXT:     arith.mulf
// CHECK-NEXT:     linalg.yield

// -----

// 16 bits are no operand; the float product stays.
func.func @wide(%a: tensor<4x3xi16>) -> tensor<4x2xf32> {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<3x2xi8>>
  %x = qmm.dequantize %a {quant = #qmm.quant<i16, scale = 0.5>} : (tensor<4x3xi16>) -> tensor<4x3xf32>
  %d = qmm.dequantize %w {quant = #qmm.quant<i8, scale = 0.5>} : (tensor<3x2xi8>) -> tensor<3x2xf32>
  %y = qmm.matmul %x, %d : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}

// CHECK:      func.func @wide
// CHECK:        qmm.matmul %{{.*}}, %{{.*}} {qmm.reason = "found an operand of i16; supported: two dequantised operands:
