// RUN: qfold-opt %s -p qmm-check-accumulators --split-input-file --verify-diagnostics | filecheck %s

// What is in a constant bounds each of its columns: 127 * (100 + 28) and -128 * (100 + 28) at the worst, not 2 * 128 * 128.
func.func @constant(%a: tensor<4x2xi8>) -> tensor<4x2xi32> {
  %b = qmm.constant #qmm.weight<"0x64011C02" : tensor<2x2xi8>>
  %0 = qmm.quant_matmul %a, %b : (tensor<4x2xi8>, tensor<2x2xi8>) -> tensor<4x2xi32>
  func.return %0 : tensor<4x2xi32>
}

// CHECK: qmm.quant_matmul %a, %b {qmm.accumulator = {low = -16384 : i64, high = 16256 : i64, k = 2 : i64, largest_k = 131071 : i64}}

// -----

// A zero point that is known at run time only may be any.
func.func @run_time(%a: tensor<4x3xui8>, %b: tensor<3x2xi8>, %za: tensor<ui8>, %zb: tensor<2xi8>) -> tensor<4x2xi32> {
  %0 = qmm.quant_matmul %a, %b a_zero_point(%za) b_zero_point(%zb) : (tensor<4x3xui8>, tensor<3x2xi8>, tensor<ui8>, tensor<2xi8>) -> tensor<4x2xi32>
  func.return %0 : tensor<4x2xi32>
}

// CHECK: {qmm.accumulator = {low = -195075 : i64, high = 195075 : i64, k = 3 : i64, largest_k = 33025 : i64}}

// -----

// 65793 products of ui8 and i8 fit, one more does not.
func.func @longest(%a: tensor<1x65793xui8>, %b: tensor<65793x1xi8>) -> tensor<1x1xi32> {
  %0 = qmm.quant_matmul %a, %b : (tensor<1x65793xui8>, tensor<65793x1xi8>) -> tensor<1x1xi32>
  func.return %0 : tensor<1x1xi32>
}

// CHECK: low = -2147483520 : i64, high = 2130706305 : i64, k = 65793 : i64, largest_k = 65793 : i64

// -----

func.func @too_long(%a: tensor<1x65794xui8>, %b: tensor<65794x1xi8>) -> tensor<1x1xi32> {
  %0 = qmm.quant_matmul %a, %b : (tensor<1x65794xui8>, tensor<65794x1xi8>) -> tensor<1x1xi32>
  func.return %0 : tensor<1x1xi32>
}

// CHECK: sums of K = 65794 products of ui8 x i8 may reach 2147516160, but an accumulator of 32 bits holds 2147483647; of these types and zero points it holds any 65793 products

// -----

// The bias counts.
func.func @bias(%a: tensor<1x2xi8>, %b: tensor<2x1xi8>) -> tensor<1x1xi32> {
  %c = arith.constant dense<[2147480000]> : tensor<1xi32>
  %0 = qmm.quant_matmul %a, %b epilogue(%c) maps [affine_map<(d0, d1) -> (d1)>] : (tensor<1x2xi8>, tensor<2x1xi8>, tensor<1xi32>) -> tensor<1x1xi32> {
  ^bb0(%acc: i32, %e: i32):
    %r = arith.addi %acc, %e : i32
    qmm.yield %r : i32
  }
  func.return %0 : tensor<1x1xi32>
}

// CHECK: sums of K = 2 products of i8 x i8 may reach 2147512768 with what is added to them

// -----

// Padding is a difference of 0; a group has its own channels.
func.func @conv(%x: tensor<1x4x5xui8>) -> tensor<1x2x5xi32> {
  %z = qmm.constant #qmm.weight<"0xFF" : tensor<ui8>>
  %w = qmm.constant #qmm.weight<"0x010203040506F9F8F7F6F5F4" : tensor<2x2x3xi8>>
  %0 = qmm.quant_conv %x, %w x_zero_point(%z) {strides = array<i64: 1>, pads = array<i64: 1, 1>, dilations = array<i64: 1>, groups = 2 : i64} : (tensor<1x4x5xui8>, tensor<2x2x3xi8>, tensor<ui8>) -> tensor<1x2x5xi32>
  func.return %0 : tensor<1x2x5xi32>
}

// CHECK: qmm.accumulator = {low = -5355 : i64, high = 14535 : i64, k = 6 : i64, largest_k = 65793 : i64}
