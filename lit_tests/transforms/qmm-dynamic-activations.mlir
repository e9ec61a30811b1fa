// RUN: qfold-opt %s --split-input-file -p "qmm-dynamic-activations{least_products=1}" | filecheck %s

// One scale for each row of a, one for each column of the weight; the zero points stay constant operands of the product.
func.func @columns(%a: tensor<4x3xf32>) -> tensor<4x2xf32> {
  %y = qmm.dequant_matmul %a {weight = #qmm.weight<"0x0102FF7F8003" : tensor<3x2xi8>>, quant = #qmm.quant<i8, scale = [0.5, 0.25], zero_point = [0, 3], axis = 1>} : (tensor<4x3xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}

// CHECK:      func.func @columns(%[[A:\w+]]: tensor<4x3xf32>) -> tensor<4x2xf32> {
// CHECK-NEXT:   %[[Q:\w+]], %[[SA:\w+]], %{{\w+}} = qmm.dynamic_quantize %[[A]] {per_row} : (tensor<4x3xf32>) -> (tensor<4x3xi8>, tensor<4xf32>, tensor<4xi8>)
// CHECK-NEXT:   %[[W:\w+]] = qmm.constant #qmm.weight<"0x0102FF7F8003" : tensor<3x2xi8>>
// CHECK-NEXT:   %[[Z:\w+]] = arith.constant dense<[0, 3]> : tensor<2xi8>
// CHECK-NEXT:   %[[ACC:\w+]] = qmm.quant_matmul %[[Q]], %[[W]] b_zero_point(%[[Z]]) {qmm.dynamic_activations = "per row"} : (tensor<4x3xi8>, tensor<3x2xi8>, tensor<2xi8>) -> tensor<4x2xi32>
// CHECK-NEXT:   %[[SB:\w+]] = arith.constant dense<[5.000000e-01, 2.500000e-01]> : tensor<2xf32>
// CHECK-NEXT:   %{{\w+}} = tensor.empty() : tensor<4x2xf32>
// CHECK-NEXT:   %[[Y:\w+]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%[[ACC]], %[[SA]], %[[SB]] : tensor<4x2xi32>, tensor<4xf32>, tensor<2xf32>)
// CHECK:          %[[S:\w+]] = arith.mulf %{{\w+}}, %{{\w+}} : f32
// CHECK-NEXT:     %[[F:\w+]] = arith.sitofp %{{\w+}} : i32 to f32
// CHECK-NEXT:     %[[P:\w+]] = arith.mulf %[[F]], %[[S]] : f32
// CHECK-NEXT:     linalg.yield %[[P]] : f32
// CHECK:        func.return %[[Y]] : tensor<4x2xf32>

// -----

// Two readers of one activation: quantised once. ui8 with 128 is i8 with 0.
func.func @shared(%a: tensor<1x2xf32>) -> (tensor<1x2xf32>, tensor<1x1xf32>) {
  %0 = qmm.dequant_matmul %a {weight = #qmm.weight<"0x80818283" : tensor<2x2xui8>>, quant = #qmm.quant<ui8, scale = 0.5, zero_point = 128>, transpose_b} : (tensor<1x2xf32>) -> tensor<1x2xf32>
  %1 = qmm.dequant_matmul %a {weight = #qmm.weight<"0x21" : tensor<2x1xi4>>, quant = #qmm.quant<i4, scale = 0.5>} : (tensor<1x2xf32>) -> tensor<1x1xf32>
  func.return %0, %1 : tensor<1x2xf32>, tensor<1x1xf32>
}

// CHECK:      func.func @shared(
// CHECK:        %[[Q:\w+]], %{{\w+}}, %{{\w+}} = qmm.dynamic_quantize
// CHECK:        qmm.constant #qmm.weight<"0x00010203" : tensor<2x2xi8>>
// CHECK-NEXT:   qmm.quant_matmul %[[Q]], %{{\w+}} {transpose_b, qmm.dynamic_activations = "per row"} : (tensor<1x2xi8>, tensor<2x2xi8>) -> tensor<1x2xi32>
// CHECK-NOT:    qmm.dynamic_quantize
// CHECK:        qmm.quant_matmul %[[Q]], %{{\w+}} {qmm.dynamic_activations = "per row"} : (tensor<1x2xi8>, tensor<2x1xi4>) -> tensor<1x1xi32>

// -----

// A convolution: a scale for each sample. Its epilogue follows the scaling.
func.func @conv(%x: tensor<2x1x3xf32>, %b: tensor<1xf32>) -> tensor<2x1x2xf32> {
  %y = qmm.dequant_conv %x epilogue(%b) {weight = #qmm.weight<"0x01FF" : tensor<1x1x2xi8>>, quant = #qmm.quant<i8, scale = 0.5>, strides = array<i64: 1>, pads = array<i64: 0, 0>, dilations = array<i64: 1>, groups = 1 : i64, epilogue_maps = [affine_map<(d0, d1, d2) -> (d1)>]} : (tensor<2x1x3xf32>, tensor<1xf32>) -> tensor<2x1x2xf32> {
  ^bb0(%acc: f32, %e: f32):
    %0 = arith.addf %acc, %e : f32
    qmm.yield %0 : f32
  }
  func.return %y : tensor<2x1x2xf32>
}

// CHECK:      func.func @conv(%[[X:\w+]]: tensor<2x1x3xf32>, %[[B:\w+]]: tensor<1xf32>)
// CHECK-NEXT:   %[[ROWS:\w+]] = tensor.collapse_shape %[[X]] {{\[\[}}0 : i64], [1 : i64, 2 : i64]] : tensor<2x1x3xf32> into tensor<2x3xf32>
// CHECK-NEXT:   %[[Q:\w+]], %[[SX:\w+]], %{{\w+}} = qmm.dynamic_quantize %[[ROWS]] {per_row} : (tensor<2x3xf32>) -> (tensor<2x3xi8>, tensor<2xf32>, tensor<2xi8>)
// CHECK-NEXT:   %[[QX:\w+]] = tensor.expand_shape %[[Q]]
// CHECK:        %[[ACC:\w+]] = qmm.quant_conv %[[QX]], %{{\w+}} {{.*}}qmm.dynamic_activations = "per sample"
// CHECK:        %[[S:\w+]] = linalg.generic {{.*}} ins(%[[ACC]], %[[SX]] : tensor<2x1x2xi32>, tensor<2xf32>)
// CHECK:        %{{\w+}} = linalg.generic {{.*}} ins(%[[S]], %[[B]] : tensor<2x1x2xf32>, tensor<1xf32>)

// -----

// What stays in floats says why.
func.func @stays(%a: tensor<1x4xf32>, %x: tensor<1x2x3xf32>) -> (tensor<1x1xf32>, tensor<1x2x3xf32>) {
  %0 = qmm.dequant_matmul %a {weight = #qmm.weight<"0x01020304" : tensor<4x1xi8>>, quant = #qmm.quant<i8, scale = "0x0000803F00000040" : tensor<2x1xf32>, axis = 0, block_size = 2>} : (tensor<1x4xf32>) -> tensor<1x1xf32>
  %1 = qmm.dequant_conv %x {weight = #qmm.weight<"0x0102" : tensor<2x1x1xi8>>, quant = #qmm.quant<i8, scale = 0.5>, strides = array<i64: 1>, pads = array<i64: 0, 0>, dilations = array<i64: 1>, groups = 2 : i64} : (tensor<1x2x3xf32>) -> tensor<1x2x3xf32>
  func.return %0, %1 : tensor<1x1xf32>, tensor<1x2x3xf32>
}

// CHECK:      func.func @stays(
// CHECK-NEXT:   qmm.dequant_matmul {{.*}}qmm.dynamic_activations = "none: found a weight with a scale for each block of 2 along K; supported: {{.*}}"
// CHECK-NEXT:   qmm.dequant_conv {{.*}}qmm.dynamic_activations = "none: found a convolution of 2 groups; supported: {{.*}}"
