// RUN: qfold-opt %s --split-input-file -p qmm-requantize-in-integers | filecheck %s
// RUN: qfold-opt %s --split-input-file -p 'qmm-requantize-in-integers{target=host}' | filecheck %s --check-prefix HOST

// Sums of 8 products: one shift and one addition, half of a unit and the zero point, for both channels.
func.func @channels(%a: tensor<4x8xui8>, %b: tensor<8x2xi8>) -> tensor<4x2xui8> {
  %acc = qmm.quant_matmul %a, %b : (tensor<4x8xui8>, tensor<8x2xi8>) -> tensor<4x2xi32>
  %q = qmm.requantize %acc {multiplier = array<f64: 0.0123, 0.0156789>, zero_point = 128 : i64, axis = 1 : i64} : (tensor<4x2xi32>) -> tensor<4x2xui8>
  func.return %q : tensor<4x2xui8>
}

// CHECK:      @channels
// CHECK:        qmm.requantize_shift %{{.*}} {mul = array<i64: {{[0-9]+}}, {{[0-9]+}}>, add = array<i64: {{[0-9]+}}>, shift = array<i64: 36>, rounding = "floor", axis = 1 : i64} : (tensor<4x2xi32>) -> tensor<4x2xui8>
// HOST:       @channels
// HOST:         qmm.requantize %{{.*}} {multiplier

// -----

// Halves are met: they go to where they are even before an odd zero point is added. Bounds stay.
func.func @halves(%a: tensor<4x8xi8>, %b: tensor<8x2xi8>) -> tensor<4x2xi8> {
  %acc = qmm.quant_matmul %a, %b : (tensor<4x8xi8>, tensor<8x2xi8>) -> tensor<4x2xi32>
  %q = qmm.requantize %acc {multiplier = array<f64: 0.0078125>, zero_point = -3 : i64, low = -3 : i64} : (tensor<4x2xi32>) -> tensor<4x2xi8>
  func.return %q : tensor<4x2xi8>
}

// CHECK:      @halves
// CHECK:        qmm.requantize_shift %{{.*}} rounding = "half_odd", ties = array<i64: {{[0-9]+}}>, low = -3 : i64}

// -----

// 256 levels over accumulators of 32 bits, of which nothing is known.
func.func @too_fine(%acc: tensor<4x2xi32>) -> tensor<4x2xi8> {
  %q = qmm.requantize %acc {multiplier = array<f64: 5.9123e-08, 5.8765e-08>, zero_point = 0 : i64, axis = 1 : i64} : (tensor<4x2xi32>) -> tensor<4x2xi8>
  func.return %q : tensor<4x2xi8>
}

// CHECK:      @too_fine
// CHECK:        qmm.requantize %acc {qmm.reason = "no integers round as its multipliers do for accumulators of -2147483648 to 2147483647: it stays in f64"
