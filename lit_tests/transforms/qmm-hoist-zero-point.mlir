// RUN: qfold-opt %s --split-input-file -p qmm-hoist-zero-point | filecheck %s

// One sum for both readers of the activation.
func.func @shared_sum(%a: tensor<4x2xf32>) -> (tensor<4x1xf32>, tensor<4x1xf32>) {
  %q = qmm.dequant_matmul %a {weight = #qmm.weight<"0x0102" : tensor<2x1xi8>>, quant = #qmm.quant<i8, scale = 0.5, zero_point = 3>} : (tensor<4x2xf32>) -> tensor<4x1xf32>
  %k = qmm.dequant_matmul %a {weight = #qmm.weight<"0x0304" : tensor<2x1xi8>>, quant = #qmm.quant<i8, scale = 0.25, zero_point = -7>} : (tensor<4x2xf32>) -> tensor<4x1xf32>
  func.return %q, %k : tensor<4x1xf32>, tensor<4x1xf32>
}

// CHECK:      func.func @shared_sum(%[[Va:\w+]]: tensor<4x2xf32>) -> (tensor<4x1xf32>, tensor<4x1xf32>) {
// CHECK-NEXT:   %[[V0:\w+]] = qmm.row_sum %[[Va]] : (tensor<4x2xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[Vq:\w+]] = qmm.dequant_matmul %[[Va]] row_sum(%[[V0]]) {weight = #qmm.weight<"0x0102" : tensor<2x1xi8>>, quant = #qmm.quant<i8, scale = 5.0e-01, zero_point = 3>, hoisted} : (tensor<4x2xf32>, tensor<4xf32>) -> tensor<4x1xf32>
// CHECK-NEXT:   %[[Vk:\w+]] = qmm.dequant_matmul %[[Va]] row_sum(%[[V0]]) {weight = #qmm.weight<"0x0304" : tensor<2x1xi8>>, quant = #qmm.quant<i8, scale = 2.5e-01, zero_point = -7>, hoisted} : (tensor<4x2xf32>, tensor<4xf32>) -> tensor<4x1xf32>
// CHECK-NEXT:   func.return %[[Vq]], %[[Vk]] : tensor<4x1xf32>, tensor<4x1xf32>
// CHECK-NEXT: }

// -----

func.func @symmetric(%a: tensor<4x2xf32>) -> tensor<4x1xf32> {
  %q = qmm.dequant_matmul %a {weight = #qmm.weight<"0x0102" : tensor<2x1xi8>>, quant = #qmm.quant<i8, scale = 0.5>} : (tensor<4x2xf32>) -> tensor<4x1xf32>
  func.return %q : tensor<4x1xf32>
}

// CHECK:      func.func @symmetric(%[[Va:\w+]]: tensor<4x2xf32>) -> tensor<4x1xf32> {
// CHECK-NEXT:   %[[Vq:\w+]] = qmm.dequant_matmul %[[Va]] {weight = #qmm.weight<"0x0102" : tensor<2x1xi8>>, quant = #qmm.quant<i8, scale = 5.0e-01>, hoisted} : (tensor<4x2xf32>) -> tensor<4x1xf32>
// CHECK-NEXT:   func.return %[[Vq]] : tensor<4x1xf32>
// CHECK-NEXT: }

// -----

// The middle of an unsigned type: the top bits flip, and there is nothing to correct.
func.func @centred(%a: tensor<4x3xf32>) -> (tensor<4x1xf32>, tensor<4x1xf32>) {
  %0 = qmm.dequant_matmul %a {weight = #qmm.weight<"0x0080FF" : tensor<3x1xui8>>, quant = #qmm.quant<ui8, scale = 0.5, zero_point = 128>} : (tensor<4x3xf32>) -> tensor<4x1xf32>
  %1 = qmm.dequant_matmul %a {weight = #qmm.weight<"0x800F" : tensor<3x1xui4>>, quant = #qmm.quant<ui4, scale = 0.5, zero_point = 8>} : (tensor<4x3xf32>) -> tensor<4x1xf32>
  func.return %0, %1 : tensor<4x1xf32>, tensor<4x1xf32>
}

// CHECK:      func.func @centred(%[[Va:\w+]]: tensor<4x3xf32>) -> (tensor<4x1xf32>, tensor<4x1xf32>) {
// CHECK-NEXT:   %[[V0:\w+]] = qmm.dequant_matmul %[[Va]] {weight = #qmm.weight<"0x80007F" : tensor<3x1xi8>>, quant = #qmm.quant<i8, scale = 5.0e-01>, hoisted} : (tensor<4x3xf32>) -> tensor<4x1xf32>
// CHECK-NEXT:   %[[V1:\w+]] = qmm.dequant_matmul %[[Va]] {weight = #qmm.weight<"0x0807" : tensor<3x1xi4>>, quant = #qmm.quant<i4, scale = 5.0e-01>, hoisted} : (tensor<4x3xf32>) -> tensor<4x1xf32>
// CHECK-NEXT:   func.return %[[V0]], %[[V1]] : tensor<4x1xf32>, tensor<4x1xf32>
// CHECK-NEXT: }

// -----

func.func @blocks(%a: tensor<4x3xf32>) -> tensor<4x1xf32> {
  %0 = qmm.dequant_matmul %a {weight = #qmm.weight<"0x0080FF" : tensor<3x1xui8>>, quant = #qmm.quant<ui8, scale = "0x0000803F00000040" : tensor<2x1xf32>, zero_point = "0x0102" : tensor<2x1xui8>, axis = 0, block_size = 2>} : (tensor<4x3xf32>) -> tensor<4x1xf32>
  func.return %0 : tensor<4x1xf32>
}

// CHECK:      func.func @blocks(%[[Va:\w+]]: tensor<4x3xf32>) -> tensor<4x1xf32> {
// CHECK-NEXT:   %[[V0:\w+]] = qmm.row_sum %[[Va]] {block_size = 2 : i64} : (tensor<4x3xf32>) -> tensor<4x2xf32>
// CHECK-NEXT:   %[[V1:\w+]] = qmm.dequant_matmul %[[Va]] row_sum(%[[V0]]) {weight = #qmm.weight<"0x0080FF" : tensor<3x1xui8>>, quant = #qmm.quant<ui8, scale = "0x0000803F00000040" : tensor<2x1xf32>, zero_point = "0x0102" : tensor<2x1xui8>, axis = 0, block_size = 2>, hoisted} : (tensor<4x3xf32>, tensor<4x2xf32>) -> tensor<4x1xf32>
// CHECK-NEXT:   func.return %[[V1]] : tensor<4x1xf32>
// CHECK-NEXT: }

// -----

func.func @conv(%x: tensor<1x1x3x3xf32>) -> tensor<1x1x3x3xf32> {
  %y = qmm.dequant_conv %x {weight = #qmm.weight<"0x01020304" : tensor<1x1x2x2xi8>>, quant = #qmm.quant<i8, scale = 0.5, zero_point = 1>, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x1x3x3xf32>) -> tensor<1x1x3x3xf32>
  func.return %y : tensor<1x1x3x3xf32>
}

// CHECK:      func.func @conv(%[[Vx:\w+]]: tensor<1x1x3x3xf32>) -> tensor<1x1x3x3xf32> {
// CHECK-NEXT:   %[[V0:\w+]] = qmm.window_sum %[[Vx]] {kernel_shape = array<i64: 2, 2>, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x1x3x3xf32>) -> tensor<1x1x3x3xf32>
// CHECK-NEXT:   %[[Vy:\w+]] = qmm.dequant_conv %[[Vx]] window_sum(%[[V0]]) {weight = #qmm.weight<"0x01020304" : tensor<1x1x2x2xi8>>, quant = #qmm.quant<i8, scale = 5.0e-01, zero_point = 1>, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64, hoisted} : (tensor<1x1x3x3xf32>, tensor<1x1x3x3xf32>) -> tensor<1x1x3x3xf32>
// CHECK-NEXT:   func.return %[[Vy]] : tensor<1x1x3x3xf32>
// CHECK-NEXT: }

// -----

// Nearer to the middle than to 0: read as signed, and corrected by what is left.
func.func @nearly_centred(%a: tensor<4x2xf32>) -> tensor<4x1xf32> {
  %0 = qmm.dequant_matmul %a {weight = #qmm.weight<"0x0080" : tensor<2x1xui8>>, quant = #qmm.quant<ui8, scale = 0.5, zero_point = 130>} : (tensor<4x2xf32>) -> tensor<4x1xf32>
  func.return %0 : tensor<4x1xf32>
}

// CHECK:      func.func @nearly_centred(%[[Va:\w+]]: tensor<4x2xf32>) -> tensor<4x1xf32> {
// CHECK-NEXT:   %[[V0:\w+]] = qmm.row_sum %[[Va]] : (tensor<4x2xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[V1:\w+]] = qmm.dequant_matmul %[[Va]] row_sum(%[[V0]]) {weight = #qmm.weight<"0x8000" : tensor<2x1xi8>>, quant = #qmm.quant<i8, scale = 5.0e-01, zero_point = 2>, hoisted} : (tensor<4x2xf32>, tensor<4xf32>) -> tensor<4x1xf32>
// CHECK-NEXT:   func.return %[[V1]] : tensor<4x1xf32>
// CHECK-NEXT: }
