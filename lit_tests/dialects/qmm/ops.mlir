// RUN: qfold-opt %s --split-input-file | qfold-opt --split-input-file | filecheck %s

// Constants: packed bytes; the shape may have no elements.
func.func @constants() {
  %a = qmm.constant #qmm.weight<"0x01FF02FE" : tensor<2x2xi8>>
  %b = qmm.constant #qmm.weight<"0x210F" : tensor<3xi4>> {note = "odd count"}
  %c = qmm.constant #qmm.weight<"0x" : tensor<0x4xui8>>
  %d = qmm.constant #qmm.weight<elided sha256 "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" : tensor<1024xi8>>
  func.return
}

// CHECK:      func.func @constants() {
// CHECK-NEXT:   %[[Va:\w+]] = qmm.constant #qmm.weight<"0x01FF02FE" : tensor<2x2xi8>>
// CHECK-NEXT:   %[[Vb:\w+]] = qmm.constant #qmm.weight<"0x210F" : tensor<3xi4>> {note = "odd count"}
// CHECK-NEXT:   %[[Vc:\w+]] = qmm.constant #qmm.weight<"0x" : tensor<0x4xui8>>
// CHECK-NEXT:   %[[Vd:\w+]] = qmm.constant #qmm.weight<elided sha256 "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" : tensor<1024xi8>>
// CHECK-NEXT:   func.return
// CHECK-NEXT: }

// -----

// Quantise and dequantise: per tensor, per axis, per block, and with parameters known at run time.
func.func @quantization(%x: tensor<4x6xf32>, %s: tensor<f32>, %rows: tensor<4xf32>, %z: tensor<4xi8>) {
  %a = qmm.quantize %x {quant = #qmm.quant<ui8, scale = 0.5, zero_point = 128>} : (tensor<4x6xf32>) -> tensor<4x6xui8>
  %b = qmm.dequantize %a {quant = #qmm.quant<ui8, scale = 0.5, zero_point = 128>} : (tensor<4x6xui8>) -> tensor<4x6xf32>
  %c = qmm.quantize %x {quant = #qmm.quant<i4, scale = [0.5, 1.0, 2.0, 4.0], zero_point = [-8, 0, 7, 1], axis = 0>} : (tensor<4x6xf32>) -> tensor<4x6xi4>
  %d = qmm.dequantize %c {quant = #qmm.quant<i4, scale = "0x0000803F000000400000803F00000040000080400000803F000000400000803F" : tensor<4x2xf32>, axis = 1, block_size = 3>} : (tensor<4x6xi4>) -> tensor<4x6xf32>
  %e = qmm.quantize %x scale(%s) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xi16>
  %f = qmm.quantize %x scale(%rows) zero_point(%z) : (tensor<4x6xf32>, tensor<4xf32>, tensor<4xi8>) -> tensor<4x6xi8>
  %g = qmm.dequantize %f scale(%rows) zero_point(%z) : (tensor<4x6xi8>, tensor<4xf32>, tensor<4xi8>) -> tensor<4x6xf32>
  func.return
}

// CHECK:      func.func @quantization(%[[Vx:\w+]]: tensor<4x6xf32>, %[[Vs:\w+]]: tensor<f32>, %[[Vrows:\w+]]: tensor<4xf32>, %[[Vz:\w+]]: tensor<4xi8>) {
// CHECK-NEXT:   %[[Va:\w+]] = qmm.quantize %[[Vx]] {quant = #qmm.quant<ui8, scale = 5.0e-01, zero_point = 128>} : (tensor<4x6xf32>) -> tensor<4x6xui8>
// CHECK-NEXT:   %[[Vb:\w+]] = qmm.dequantize %[[Va]] {quant = #qmm.quant<ui8, scale = 5.0e-01, zero_point = 128>} : (tensor<4x6xui8>) -> tensor<4x6xf32>
// CHECK-NEXT:   %[[Vc:\w+]] = qmm.quantize %[[Vx]] {quant = #qmm.quant<i4, scale = [5.0e-01, 1.0e+00, 2.0e+00, 4.0e+00], zero_point = [-8, 0, 7, 1], axis = 0>} : (tensor<4x6xf32>) -> tensor<4x6xi4>
// CHECK-NEXT:   %[[Vd:\w+]] = qmm.dequantize %[[Vc]] {quant = #qmm.quant<i4, scale = "0x0000803F000000400000803F00000040000080400000803F000000400000803F" : tensor<4x2xf32>, axis = 1, block_size = 3>} : (tensor<4x6xi4>) -> tensor<4x6xf32>
// CHECK-NEXT:   %[[Ve:\w+]] = qmm.quantize %[[Vx]] scale(%[[Vs]]) : (tensor<4x6xf32>, tensor<f32>) -> tensor<4x6xi16>
// CHECK-NEXT:   %[[Vf:\w+]] = qmm.quantize %[[Vx]] scale(%[[Vrows]]) zero_point(%[[Vz]]) : (tensor<4x6xf32>, tensor<4xf32>, tensor<4xi8>) -> tensor<4x6xi8>
// CHECK-NEXT:   %[[Vg:\w+]] = qmm.dequantize %[[Vf]] scale(%[[Vrows]]) zero_point(%[[Vz]]) : (tensor<4x6xi8>, tensor<4xf32>, tensor<4xi8>) -> tensor<4x6xf32>
// CHECK-NEXT:   func.return
// CHECK-NEXT: }

// -----

func.func @matmul(%a: tensor<2x4x8xf32>, %b: tensor<3x8xf32>, %t: tensor<8x4xf32>, %bias: tensor<3xf32>) {
  %0 = qmm.matmul %a, %b {transpose_b} : (tensor<2x4x8xf32>, tensor<3x8xf32>) -> tensor<2x4x3xf32>
  %1 = qmm.matmul %t, %b {transpose_a, transpose_b, qmm.reason = "found nothing"} : (tensor<8x4xf32>, tensor<3x8xf32>) -> tensor<4x3xf32>
  %2 = qmm.matmul %a, %b epilogue(%bias) maps [affine_map<(d0, d1, d2) -> (d2)>] {transpose_b} : (tensor<2x4x8xf32>, tensor<3x8xf32>, tensor<3xf32>) -> tensor<2x4x3xi8> {
  ^bb0(%acc: f32, %c: f32):
    %sum = arith.addf %acc, %c : f32
    %q = arith.fptosi %sum : f32 to i8
    qmm.yield %q : i8
  }
  func.return
}

// CHECK:      func.func @matmul(%[[Va:\w+]]: tensor<2x4x8xf32>, %[[Vb:\w+]]: tensor<3x8xf32>, %[[Vt:\w+]]: tensor<8x4xf32>, %[[Vbias:\w+]]: tensor<3xf32>) {
// CHECK-NEXT:   %[[V0:\w+]] = qmm.matmul %[[Va]], %[[Vb]] {transpose_b} : (tensor<2x4x8xf32>, tensor<3x8xf32>) -> tensor<2x4x3xf32>
// CHECK-NEXT:   %[[V1:\w+]] = qmm.matmul %[[Vt]], %[[Vb]] {transpose_a, transpose_b, qmm.reason = "found nothing"} : (tensor<8x4xf32>, tensor<3x8xf32>) -> tensor<4x3xf32>
// CHECK-NEXT:   %[[V2:\w+]] = qmm.matmul %[[Va]], %[[Vb]] epilogue(%[[Vbias]]) maps [affine_map<(d0, d1, d2) -> (d2)>] {transpose_b} : (tensor<2x4x8xf32>, tensor<3x8xf32>, tensor<3xf32>) -> tensor<2x4x3xi8> {
// CHECK-NEXT:   ^bb0(%[[Vacc:\w+]]: f32, %[[Vc:\w+]]: f32):
// CHECK-NEXT:     %[[Vsum:\w+]] = arith.addf %[[Vacc]], %[[Vc]] : f32
// CHECK-NEXT:     %[[Vq:\w+]] = arith.fptosi %[[Vsum]] : f32 to i8
// CHECK-NEXT:     qmm.yield %[[Vq]] : i8
// CHECK-NEXT:   }
// CHECK-NEXT:   func.return
// CHECK-NEXT: }

// -----

func.func @dequant_matmul(%a: tensor<1x4xf32>, %s: tensor<1xf32>, %blocks: tensor<1x2xf32>) {
  %0 = qmm.dequant_matmul %a {weight = #qmm.weight<"0x0102030405060708" : tensor<4x2xi8>>, quant = #qmm.quant<i8, scale = 0.5>, hoisted} : (tensor<1x4xf32>) -> tensor<1x2xf32>
  %1 = qmm.dequant_matmul %a row_sum(%s) {weight = #qmm.weight<"0x0102030405060708" : tensor<2x4xui8>>, quant = #qmm.quant<ui8, scale = [0.5, 0.25], zero_point = [3, 200], axis = 0>, transpose_b, hoisted} : (tensor<1x4xf32>, tensor<1xf32>) -> tensor<1x2xf32>
  %2 = qmm.dequant_matmul %a row_sum(%blocks) {weight = #qmm.weight<"0x0102030405060708" : tensor<4x2xi8>>, quant = #qmm.quant<i8, scale = "0x0000803F000000400000803F00000040" : tensor<2x2xf32>, zero_point = "0x01020304" : tensor<2x2xi8>, axis = 0, block_size = 2>, hoisted} : (tensor<1x4xf32>, tensor<1x2xf32>) -> tensor<1x2xf32>
  %3 = qmm.row_sum %a : (tensor<1x4xf32>) -> tensor<1xf32>
  %4 = qmm.row_sum %a {block_size = 3 : i64} : (tensor<1x4xf32>) -> tensor<1x2xf32>
  func.return
}

// CHECK:      func.func @dequant_matmul(%[[Va:\w+]]: tensor<1x4xf32>, %[[Vs:\w+]]: tensor<1xf32>, %[[Vblocks:\w+]]: tensor<1x2xf32>) {
// CHECK-NEXT:   %[[V0:\w+]] = qmm.dequant_matmul %[[Va]] {weight = #qmm.weight<"0x0102030405060708" : tensor<4x2xi8>>, quant = #qmm.quant<i8, scale = 5.0e-01>, hoisted} : (tensor<1x4xf32>) -> tensor<1x2xf32>
// CHECK-NEXT:   %[[V1:\w+]] = qmm.dequant_matmul %[[Va]] row_sum(%[[Vs]]) {weight = #qmm.weight<"0x0102030405060708" : tensor<2x4xui8>>, quant = #qmm.quant<ui8, scale = [5.0e-01, 2.5e-01], zero_point = [3, 200], axis = 0>, transpose_b, hoisted} : (tensor<1x4xf32>, tensor<1xf32>) -> tensor<1x2xf32>
// CHECK-NEXT:   %[[V2:\w+]] = qmm.dequant_matmul %[[Va]] row_sum(%[[Vblocks]]) {weight = #qmm.weight<"0x0102030405060708" : tensor<4x2xi8>>, quant = #qmm.quant<i8, scale = "0x0000803F000000400000803F00000040" : tensor<2x2xf32>, zero_point = "0x01020304" : tensor<2x2xi8>, axis = 0, block_size = 2>, hoisted} : (tensor<1x4xf32>, tensor<1x2xf32>) -> tensor<1x2xf32>
// CHECK-NEXT:   %[[V3:\w+]] = qmm.row_sum %[[Va]] : (tensor<1x4xf32>) -> tensor<1xf32>
// CHECK-NEXT:   %[[V4:\w+]] = qmm.row_sum %[[Va]] {block_size = 3 : i64} : (tensor<1x4xf32>) -> tensor<1x2xf32>
// CHECK-NEXT:   func.return
// CHECK-NEXT: }

// -----

func.func @conv(%x: tensor<1x2x4x4xf32>, %w: tensor<2x1x3x3xf32>, %sum: tensor<1x2x4x2xf32>) {
  %0 = qmm.conv %x, %w {strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x2x4x4xf32>, tensor<2x1x3x3xf32>) -> tensor<1x2x4x2xf32>
  %1 = qmm.dequant_conv %x window_sum(%sum) {weight = #qmm.weight<"0x0102030405060708090A0B0C0D0E0F101112" : tensor<2x1x3x3xi8>>, quant = #qmm.quant<i8, scale = [0.5, 0.25], zero_point = [1, -1], axis = 0>, hoisted, strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x2x4x4xf32>, tensor<1x2x4x2xf32>) -> tensor<1x2x4x2xf32>
  %2 = qmm.window_sum %x {kernel_shape = array<i64: 3, 3>, strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x2xf32>
  func.return
}

// CHECK:      func.func @conv(%[[Vx:\w+]]: tensor<1x2x4x4xf32>, %[[Vw:\w+]]: tensor<2x1x3x3xf32>, %[[Vsum:\w+]]: tensor<1x2x4x2xf32>) {
// CHECK-NEXT:   %[[V0:\w+]] = qmm.conv %[[Vx]], %[[Vw]] {strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x2x4x4xf32>, tensor<2x1x3x3xf32>) -> tensor<1x2x4x2xf32>
// CHECK-NEXT:   %[[V1:\w+]] = qmm.dequant_conv %[[Vx]] window_sum(%[[Vsum]]) {weight = #qmm.weight<"0x0102030405060708090A0B0C0D0E0F101112" : tensor<2x1x3x3xi8>>, quant = #qmm.quant<i8, scale = [5.0e-01, 2.5e-01], zero_point = [1, -1], axis = 0>, hoisted, strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x2x4x4xf32>, tensor<1x2x4x2xf32>) -> tensor<1x2x4x2xf32>
// CHECK-NEXT:   %[[V2:\w+]] = qmm.window_sum %[[Vx]] {kernel_shape = array<i64: 3, 3>, strides = array<i64: 1, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x2xf32>
// CHECK-NEXT:   func.return
// CHECK-NEXT: }

// -----

func.func @gather(%i: tensor<2xi64>) {
  %0 = qmm.dequant_gather %i {weight = #qmm.weight<"0x010203040506" : tensor<3x2xi8>>, quant = #qmm.quant<i8, scale = [0.5, 1.0, 2.0], axis = 0>} : (tensor<2xi64>) -> tensor<2x2xf32>
  func.return
}

// CHECK:      func.func @gather(%[[Vi:\w+]]: tensor<2xi64>) {
// CHECK-NEXT:   %[[V0:\w+]] = qmm.dequant_gather %[[Vi]] {weight = #qmm.weight<"0x010203040506" : tensor<3x2xi8>>, quant = #qmm.quant<i8, scale = [5.0e-01, 1.0e+00, 2.0e+00], axis = 0>} : (tensor<2xi64>) -> tensor<2x2xf32>
// CHECK-NEXT:   func.return
// CHECK-NEXT: }
