// RUN: qfold-opt %s --split-input-file -p 'qmm-unsigned-weights{target="spike:inserti=1"}' | filecheck %s
// RUN: qfold-opt %s --split-input-file -p 'qmm-unsigned-weights{target="spike"}' | filecheck %s --check-prefix EXACT

// One row: i8 becomes ui8, the zero point comes back, and the sum goes that nobody reads.
func.func @one_row(%a: tensor<1x2xf32>) -> tensor<1x1xf32> {
  %s = qmm.row_sum %a : (tensor<1x2xf32>) -> tensor<1xf32>
  %y = qmm.dequant_matmul %a row_sum(%s) {weight = #qmm.weight<"0x01FF" : tensor<2x1xi8>>, quant = #qmm.quant<i8, scale = 0.5, zero_point = 3>, hoisted} : (tensor<1x2xf32>, tensor<1xf32>) -> tensor<1x1xf32>
  func.return %y : tensor<1x1xf32>
}

// CHECK:      func.func @one_row(%[[Va:\w+]]: tensor<1x2xf32>) -> tensor<1x1xf32> {
// CHECK-NEXT:   %[[Vy:\w+]] = qmm.dequant_matmul %[[Va]] {weight = #qmm.weight<"0x817F" : tensor<2x1xui8>>, quant = #qmm.quant<ui8, scale = 5.0e-01, zero_point = 131>, qmm.weight_bias = 260 : i64} : (tensor<1x2xf32>) -> tensor<1x1xf32>
// CHECK-NEXT:   func.return %[[Vy]] : tensor<1x1xf32>
// CHECK-NEXT: }

// EXACT:      %[[Vy:\w+]] = qmm.dequant_matmul %{{.*}} row_sum(%{{.*}}) {weight = #qmm.weight<"0x01FF" : tensor<2x1xi8>>
// EXACT-NOT:  weight_bias

// -----

// Two rows convert each weight once for both; a weight that they share with one row stays as it is.
func.func @several_rows(%a: tensor<1x2xf32>, %b: tensor<2x2xf32>) -> (tensor<1x1xf32>, tensor<2x1xf32>) {
  %y = qmm.dequant_matmul %a {weight = #qmm.weight<"0x01FF" : tensor<2x1xi8>>, quant = #qmm.quant<i8, scale = 0.5>, hoisted} : (tensor<1x2xf32>) -> tensor<1x1xf32>
  %z = qmm.dequant_matmul %b {weight = #qmm.weight<"0x01FF" : tensor<2x1xi8>>, quant = #qmm.quant<i8, scale = 0.5>, hoisted} : (tensor<2x2xf32>) -> tensor<2x1xf32>
  func.return %y, %z : tensor<1x1xf32>, tensor<2x1xf32>
}

// CHECK:      func.func @several_rows(
// CHECK-NEXT:   qmm.dequant_matmul %{{.*}} {weight = #qmm.weight<"0x01FF" : tensor<2x1xi8>>, quant = #qmm.quant<i8, scale = 5.0e-01>, hoisted}
// CHECK-NEXT:   qmm.dequant_matmul %{{.*}} {weight = #qmm.weight<"0x01FF" : tensor<2x1xi8>>, quant = #qmm.quant<i8, scale = 5.0e-01>, hoisted}

// -----

// Other widths, and scales along K, are packed.
func.func @packed(%a: tensor<1x2xf32>) -> (tensor<1x1xf32>, tensor<1x1xf32>) {
  %y = qmm.dequant_matmul %a {weight = #qmm.weight<"0x21" : tensor<2x1xi4>>, quant = #qmm.quant<i4, scale = 0.5>} : (tensor<1x2xf32>) -> tensor<1x1xf32>
  %z = qmm.dequant_matmul %a {weight = #qmm.weight<"0x0080" : tensor<2x1xui8>>, quant = #qmm.quant<ui8, scale = "0x0000803F00000040" : tensor<2x1xf32>, zero_point = "0x0102" : tensor<2x1xui8>, axis = 0, block_size = 1>} : (tensor<1x2xf32>) -> tensor<1x1xf32>
  func.return %y, %z : tensor<1x1xf32>, tensor<1x1xf32>
}

// CHECK:      func.func @packed(
// CHECK-NOT:  weight_bias
