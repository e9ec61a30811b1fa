// RUN: qfold-opt %s --split-input-file -p qmm-expand-zero-points,qmm-linalg-cse | filecheck %s
// RUN: qfold-opt %s --split-input-file -p 'qmm-expand-zero-points{target=host}' | filecheck %s --check-prefix HOST

// -3 times the sums of the columns, 2 + 4 and -1 + 6, and the bias are one constant.
func.func @constant(%a: tensor<4x2xui8>) -> tensor<4x2xi32> {
  %za = qmm.constant #qmm.weight<"0x03" : tensor<ui8>>
  %b = arith.constant dense<[[2, -1], [4, 6]]> : tensor<2x2xi8>
  %bias = arith.constant dense<[100, 200]> : tensor<2xi32>
  %0 = qmm.quant_matmul %a, %b a_zero_point(%za) epilogue(%bias) maps [affine_map<(d0, d1) -> (d1)>] : (tensor<4x2xui8>, tensor<2x2xi8>, tensor<ui8>, tensor<2xi32>) -> tensor<4x2xi32> {
  ^bb0(%acc: i32, %c: i32):
    %s = arith.addi %acc, %c : i32
    qmm.yield %s : i32
  }
  func.return %0 : tensor<4x2xi32>
}

// CHECK:      @constant
// CHECK:        %[[C:.*]] = arith.constant dense<[82, 185]> : tensor<2xi32>
// CHECK-NEXT:   qmm.quant_matmul %a, %{{.*}} epilogue(%[[C]]) maps [affine_map<(d0, d1) -> (d1)>] : (tensor<4x2xui8>, tensor<2x2xi8>, tensor<2xi32>) -> tensor<4x2xi32> {
// CHECK-NEXT:   ^bb0(%[[ACC:.*]]: i32, %[[E:.*]]: i32):
// CHECK-NEXT:     %[[S:.*]] = arith.addi %[[ACC]], %[[E]] : i32
// CHECK-NEXT:     qmm.yield %[[S]] : i32
// HOST:       @constant
// HOST:         a_zero_point

// -----

// The weight's zero point times the sum of the row, which is computed once. ui8 with 130 is stored as i8 with 2.
func.func @rows(%a: tensor<4x2xi8>) -> (tensor<4x2xi32>, tensor<4x2xi32>) {
  %zb = qmm.constant #qmm.weight<"0x82" : tensor<ui8>>
  %b = qmm.constant #qmm.weight<"0x80818283" : tensor<2x2xui8>>
  %zc = arith.constant dense<[5, -7]> : tensor<2xi8>
  %c = arith.constant dense<[[2, -1], [4, 6]]> : tensor<2x2xi8>
  %0 = qmm.quant_matmul %a, %b b_zero_point(%zb) : (tensor<4x2xi8>, tensor<2x2xui8>, tensor<ui8>) -> tensor<4x2xi32>
  %1 = qmm.quant_matmul %a, %c b_zero_point(%zc) : (tensor<4x2xi8>, tensor<2x2xi8>, tensor<2xi8>) -> tensor<4x2xi32>
  func.return %0, %1 : tensor<4x2xi32>, tensor<4x2xi32>
}

// CHECK:      @rows
// CHECK:        %[[SUMS:.*]] = linalg.generic {{.*}}iterator_types = ["parallel", "reduction"]
// CHECK-NOT:    linalg.generic
// CHECK:        qmm.quant_matmul %a, %{{.*}} epilogue(%[[SUMS]]) maps [affine_map<(d0, d1) -> (d0)>] : (tensor<4x2xi8>, tensor<2x2xi8>, tensor<4xi32>) -> tensor<4x2xi32> {
// CHECK:          %[[MINUS:.*]] = arith.constant -2 : i32
// CHECK-NEXT:     arith.muli %{{.*}}, %[[MINUS]] : i32
// CHECK:        %[[Z:.*]] = arith.constant dense<[-5, 7]> : tensor<2xi32>
// CHECK:        qmm.quant_matmul %a, %{{.*}} epilogue(%[[SUMS]], %[[Z]])

// -----

// What is padded is the zero point. So it is where each channel is a group.
func.func @convolutions(%x: tensor<1x2x5xui8>) -> (tensor<1x2x5xi32>, tensor<1x2x5xi32>) {
  %zx = qmm.constant #qmm.weight<"0x07" : tensor<ui8>>
  %w = arith.constant dense<[[[1], [2]], [[3], [4]]]> : tensor<2x2x1xi8>
  %d = arith.constant dense<[[[1, 2, 3]], [[4, 5, 6]]]> : tensor<2x1x3xi8>
  %0 = qmm.quant_conv %x, %w x_zero_point(%zx) {strides = array<i64: 1>, pads = array<i64: 1, 0>, dilations = array<i64: 1>, groups = 1 : i64} : (tensor<1x2x5xui8>, tensor<2x2x1xi8>, tensor<ui8>) -> tensor<1x2x6xi32>
  %1 = qmm.quant_conv %x, %d x_zero_point(%zx) {strides = array<i64: 1>, pads = array<i64: 1, 1>, dilations = array<i64: 1>, groups = 2 : i64} : (tensor<1x2x5xui8>, tensor<2x1x3xi8>, tensor<ui8>) -> tensor<1x2x5xi32>
  %s = tensor.extract_slice %0[0, 0, 0] [1, 2, 5] [1, 1, 1] : tensor<1x2x6xi32> to tensor<1x2x5xi32>
  func.return %s, %1 : tensor<1x2x5xi32>, tensor<1x2x5xi32>
}

// CHECK:      @convolutions
// CHECK:        %[[C:.*]] = arith.constant dense<[-21, -49]> : tensor<2xi32>
// CHECK-NEXT:   qmm.quant_conv %x, %{{.*}} epilogue(%[[C]]) maps [affine_map<(d0, d1, d2) -> (d1)>] {strides = array<i64: 1>, pads = array<i64: 1, 0>, dilations = array<i64: 1>, groups = 1 : i64, pad_value = 7 : i64}
// CHECK:        %[[D:.*]] = arith.constant dense<[-42, -105]> : tensor<2xi32>
// CHECK-NEXT:   qmm.quant_conv %x, %{{.*}} epilogue(%[[D]]) maps [affine_map<(d0, d1, d2) -> (d1)>] {strides = array<i64: 1>, pads = array<i64: 1, 1>, dilations = array<i64: 1>, groups = 2 : i64, pad_value = 7 : i64}

// -----

// Known at run time: a number joins the bias outside of the product, one per row multiplies a constant for each column.
func.func @run_time(%a: tensor<4x2xui8>, %z: tensor<ui8>, %zs: tensor<4xui8>) -> (tensor<4x2xi32>, tensor<4x2xi32>) {
  %b = arith.constant dense<[[2, -1], [4, 6]]> : tensor<2x2xi8>
  %0 = qmm.quant_matmul %a, %b a_zero_point(%z) : (tensor<4x2xui8>, tensor<2x2xi8>, tensor<ui8>) -> tensor<4x2xi32>
  %1 = qmm.quant_matmul %a, %b a_zero_point(%zs) : (tensor<4x2xui8>, tensor<2x2xi8>, tensor<4xui8>) -> tensor<4x2xi32>
  func.return %0, %1 : tensor<4x2xi32>, tensor<4x2xi32>
}

// CHECK:      @run_time
// CHECK:        %[[SUMS:.*]] = arith.constant dense<[6, 5]> : tensor<2xi32>
// CHECK:        %[[C:.*]] = linalg.generic {{.*}}ins(%[[SUMS]], %z : tensor<2xi32>, tensor<ui8>)
// CHECK:        qmm.quant_matmul %a, %{{.*}} epilogue(%[[C]]) maps [affine_map<(d0, d1) -> (d1)>]
// CHECK:        %[[MINUS:.*]] = linalg.generic {{.*}}ins(%zs : tensor<4xui8>)
// CHECK:        qmm.quant_matmul %a, %{{.*}} epilogue(%[[MINUS]], %[[SUMS]]) maps [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d1)>]
