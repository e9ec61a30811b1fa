// RUN: qfold-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: a weight has a static shape
%0 = qmm.constant #qmm.weight<"0x" : tensor<?xi8>>

// -----

// CHECK: tensor<4xi8> takes 4 bytes, got 3
%0 = qmm.constant #qmm.weight<"0x010203" : tensor<4xi8>>

// -----

// CHECK: tensor<3xi4> takes 2 bytes, got 3
%0 = qmm.constant #qmm.weight<"0x010203" : tensor<3xi4>>

// -----

// A zero point is in the storage type: -56 for 200 is refused, not guessed.
%q = "test.op"() : () -> tensor<4xi8>
// CHECK: expected signed integers of -128..127
%0 = qmm.dequantize %q {quant = #qmm.quant<i8, scale = 0.5, zero_point = 200>} : (tensor<4xi8>) -> tensor<4xf32>

// -----

%q = "test.op"() : () -> tensor<4xi8>
// CHECK: a scale is finite and positive, got -0.5
%0 = qmm.dequantize %q {quant = #qmm.quant<i8, scale = -0.5>} : (tensor<4xi8>) -> tensor<4xf32>

// -----

%q = "test.op"() : () -> tensor<4xui8>
// CHECK: quantised as i8, but the tensor is tensor<4xui8>
%0 = qmm.dequantize %q {quant = #qmm.quant<i8, scale = 0.5>} : (tensor<4xui8>) -> tensor<4xf32>

// -----

%q = "test.op"() : () -> tensor<4x2xi8>
// CHECK: tensor<4x2xi8> per axis on axis 0 takes scales of shape [4], got [2]
%0 = qmm.dequantize %q {quant = #qmm.quant<i8, scale = [0.5, 0.5], axis = 0>} : (tensor<4x2xi8>) -> tensor<4x2xf32>

// -----

%q = "test.op"() : () -> tensor<4x2xi8>
// CHECK: takes either the attribute quant or the operand runtime_scale
%0 = qmm.dequantize %q : (tensor<4x2xi8>) -> tensor<4x2xf32>

// -----

%q, %s = "test.op"() : () -> (tensor<4x2xi8>, tensor<2xf32>)
// CHECK: a runtime scale has shape [] or [4], got tensor<2xf32>
%0 = qmm.dequantize %q scale(%s) : (tensor<4x2xi8>, tensor<2xf32>) -> tensor<4x2xf32>

// -----

// The seed of it all: a float contraction never reads integer bytes.
%a, %b = "test.op"() : () -> (tensor<4x8xf32>, tensor<8x3xi8>)
// CHECK: qmm.matmul reads f32, got tensor<8x3xi8>
%0 = qmm.matmul %a, %b : (tensor<4x8xf32>, tensor<8x3xi8>) -> tensor<4x3xf32>

// -----

%a, %b = "test.op"() : () -> (tensor<4x8xf32>, tensor<7x3xf32>)
// CHECK: the operands differ in K: 8 in [4, 8], 7 in [7, 3]
%0 = qmm.matmul %a, %b : (tensor<4x8xf32>, tensor<7x3xf32>) -> tensor<4x3xf32>

// -----

%a, %b = "test.op"() : () -> (tensor<2x4x8xf32>, tensor<3x8x3xf32>)
// CHECK: batch dimensions of [2, 4, 8] and [3, 8, 3] do not broadcast
%0 = qmm.matmul %a, %b : (tensor<2x4x8xf32>, tensor<3x8x3xf32>) -> tensor<2x4x3xf32>

// -----

// K = N: only the axis tells a scale along K.
%a = "test.op"() : () -> tensor<1x2xf32>
// CHECK: a scale along K (axis 0 of the weight) cannot leave the sum over K
%0 = qmm.dequant_matmul %a {weight = #qmm.weight<"0x01020304" : tensor<2x2xi8>>, quant = #qmm.quant<i8, scale = [0.5, 1.0], axis = 0>} : (tensor<1x2xf32>) -> tensor<1x2xf32>

// -----

%a = "test.op"() : () -> tensor<1x2xf32>
// CHECK: blocks run along K (axis 0 of the weight), got axis 1
%0 = qmm.dequant_matmul %a {weight = #qmm.weight<"0x01020304" : tensor<2x2xi8>>, quant = #qmm.quant<i8, scale = "0x0000803F0000803F" : tensor<2x1xf32>, axis = 1, block_size = 2>} : (tensor<1x2xf32>) -> tensor<1x2xf32>

// -----

%a = "test.op"() : () -> tensor<1x2xf32>
// CHECK: hoisted with a non-zero zero point, but there is no row_sum
%0 = qmm.dequant_matmul %a {weight = #qmm.weight<"0x01020304" : tensor<2x2xi8>>, quant = #qmm.quant<i8, scale = 0.5, zero_point = 3>, hoisted} : (tensor<1x2xf32>) -> tensor<1x2xf32>

// -----

%a, %s = "test.op"() : () -> (tensor<1x2xf32>, tensor<1xf32>)
// CHECK: row_sum has no use: every zero point is 0
%0 = qmm.dequant_matmul %a row_sum(%s) {weight = #qmm.weight<"0x01020304" : tensor<2x2xi8>>, quant = #qmm.quant<i8, scale = 0.5>, hoisted} : (tensor<1x2xf32>, tensor<1xf32>) -> tensor<1x2xf32>

// -----

%a, %s = "test.op"() : () -> (tensor<1x2xf32>, tensor<2xf32>)
// CHECK: row_sum has shape [1], got tensor<2xf32>
%0 = qmm.dequant_matmul %a row_sum(%s) {weight = #qmm.weight<"0x01020304" : tensor<2x2xi8>>, quant = #qmm.quant<i8, scale = 0.5, zero_point = 3>, hoisted} : (tensor<1x2xf32>, tensor<2xf32>) -> tensor<1x2xf32>

// -----

%a, %b, %c = "test.op"() : () -> (tensor<4x8xf32>, tensor<8x3xf32>, tensor<3xf32>)
// CHECK: epilogue map (d0, d1) -> (d0) leaves the operand's shape [3]
%0 = qmm.matmul %a, %b epilogue(%c) maps [affine_map<(d0, d1) -> (d0)>] : (tensor<4x8xf32>, tensor<8x3xf32>, tensor<3xf32>) -> tensor<4x3xf32> {
^bb0(%acc: f32, %e: f32):
  %r = arith.addf %acc, %e : f32
  qmm.yield %r : f32
}

// -----

%a, %b = "test.op"() : () -> (tensor<4x8xf32>, tensor<8x3xf32>)
// CHECK: the epilogue yields f32, the output is tensor<4x3xi8>
%0 = qmm.matmul %a, %b : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xi8> {
^bb0(%acc: f32):
  qmm.yield %acc : f32
}

// -----

%x = "test.op"() : () -> tensor<1x2x4x4xf32>
// CHECK: a convolution takes a scale per tensor or per output channel (axis 0), got one per axis on axis 2
%0 = qmm.dequant_conv %x {weight = #qmm.weight<"0x01020304" : tensor<1x2x2x1xi8>>, quant = #qmm.quant<i8, scale = [0.5, 0.25], axis = 2>, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x1x3x4xf32>

// -----

%x, %w = "test.op"() : () -> (tensor<1x3x4x4xf32>, tensor<2x1x3x3xf32>)
// CHECK: 2 groups do not divide 3 channels
%0 = qmm.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 2 : i64} : (tensor<1x3x4x4xf32>, tensor<2x1x3x3xf32>) -> tensor<1x2x2x2xf32>

// -----

%x, %w = "test.op"() : () -> (tensor<1x1x2x2xf32>, tensor<1x1x3x3xf32>)
// CHECK: the window of 3 (dilation 1) does not fit the extent 2 with pads 0 and 0
%0 = qmm.conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x1x2x2xf32>, tensor<1x1x3x3xf32>) -> tensor<1x1x1x1xf32>

// -----

%i = "test.op"() : () -> tensor<2xi8>
// CHECK: indices are i32 or i64, got tensor<2xi8>
%0 = qmm.dequant_gather %i {weight = #qmm.weight<"0x010203040506" : tensor<3x2xi8>>, quant = #qmm.quant<i8, scale = 0.5>} : (tensor<2xi8>) -> tensor<2x2xf32>

// -----

%a = "test.op"() : () -> tensor<1x4xf32>
// CHECK: the result has shape [1, 2], got tensor<1x1xf32>
%0 = qmm.row_sum %a {block_size = 3 : i64} : (tensor<1x4xf32>) -> tensor<1x1xf32>
