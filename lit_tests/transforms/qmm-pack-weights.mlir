// RUN: qfold-opt %s --split-input-file -p 'qmm-pack-weights{target=spike},qmm-verify-buffers' | filecheck %s
// RUN: qfold-opt %s --split-input-file -p 'qmm-pack-weights{target=host}' | filecheck %s --check-prefix=HOST

// HOST-NOT: packed

// Panels of four columns, words of four k: column 0 is 1, 4, 7, 10, 13. Rows of the batch are rows of one matrix, for the epilogue too.
"memref.global"() <{sym_name = "w_b", type = memref<15xi8, 2 : i64>, initial_value, sym_visibility = "private", constant, alignment = 16 : i64}> {qmm.weight = #qmm.weight<"0x0102030405060708090A0B0C0D0E0F" : tensor<15xi8>>, qmm.sha256 = ""} : () -> ()
func.func @batch(%a: memref<1x2x5xui8, 2 : i64>, %bias: memref<3xi32, 2 : i64>, %skip: memref<1x2x3xi32, 2 : i64>, %y: memref<1x2x3xi32, 2 : i64>) {
  %0 = memref.get_global @w_b : memref<15xi8, 2 : i64>
  %1 = memref.expand_shape %0 [[0, 1]] output_shape [5, 3] : memref<15xi8, 2 : i64> into memref<5x3xi8, 2 : i64>
  qkernel.quant_matmul %a, %1 epilogue(%bias, %skip) outs(%y) maps [affine_map<(d0, d1, d2) -> (d2)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>] : (memref<1x2x5xui8, 2 : i64>, memref<5x3xi8, 2 : i64>, memref<3xi32, 2 : i64>, memref<1x2x3xi32, 2 : i64>, memref<1x2x3xi32, 2 : i64>) -> () {
  ^bb0(%acc: i32, %b: i32, %s: i32):
    %r = arith.addi %acc, %b : i32
    %t = arith.addi %r, %s : i32
    qmm.yield %t : i32
  }
  func.return
}

// CHECK:       builtin.module {
// CHECK-NEXT:    "memref.global"() <{sym_name = "[[P:w_[0-9a-f]+]]", type = memref<32xi8, 2 : i64>, initial_value, sym_visibility = "private", constant, alignment = 16 : i64}> {qmm.weight = #qmm.weight<"0x0104070A0205080B0306090C000000000D0000000E0000000F00000000000000" : tensor<32xi8>>, qmm.sha256 = "{{[0-9a-f]+}}"} : () -> ()
// CHECK-NEXT:    func.func @batch
// CHECK-NEXT:      %[[G:[0-9]+]] = memref.get_global @[[P]] : memref<32xi8, 2 : i64>
// CHECK-NEXT:      %[[PANELS:[0-9]+]] = memref.expand_shape %[[G]] {{.*}} output_shape [1, 2, 4, 4]
// CHECK-NEXT:      %[[A:[0-9]+]] = memref.collapse_shape %a {{.*}} into memref<2x5xui8, 2 : i64>
// CHECK-NEXT:      %[[Y:[0-9]+]] = memref.collapse_shape %y {{.*}} into memref<2x3xi32, 2 : i64>
// CHECK-NEXT:      %[[SKIP:[0-9]+]] = memref.collapse_shape %skip {{.*}} into memref<2x3xi32, 2 : i64>
// CHECK-NEXT:      qkernel.packed_quant_matmul %[[A]], %[[PANELS]] epilogue(%bias, %[[SKIP]]) outs(%[[Y]]) maps [affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>]
// CHECK-NEXT:      ^bb0(%acc: i32, %b: i32, %s: i32):

// -----

// Two products, one constant, read transposed. Rows of all batches lie 7 bytes apart.
"memref.global"() <{sym_name = "w_b", type = memref<15xui8, 2 : i64>, initial_value, sym_visibility = "private", constant, alignment = 16 : i64}> {qmm.weight = #qmm.weight<"0x0102030405060708090A0B0C0D0E0F" : tensor<15xui8>>, qmm.sha256 = ""} : () -> ()
func.func @transposed(%a: memref<2x4x3xi8, strided<[28, 7, 1]>, 2 : i64>, %c: memref<4x3xi8, 2 : i64>, %y: memref<2x4x5xi32, 2 : i64>, %z: memref<4x5xi32, 2 : i64>) {
  %0 = memref.get_global @w_b : memref<15xui8, 2 : i64>
  %1 = memref.expand_shape %0 [[0, 1]] output_shape [5, 3] : memref<15xui8, 2 : i64> into memref<5x3xui8, 2 : i64>
  qkernel.quant_matmul %a, %1 outs(%y) {transpose_b} : (memref<2x4x3xi8, strided<[28, 7, 1]>, 2 : i64>, memref<5x3xui8, 2 : i64>, memref<2x4x5xi32, 2 : i64>) -> ()
  qkernel.quant_matmul %c, %1 outs(%z) {transpose_b} : (memref<4x3xi8, 2 : i64>, memref<5x3xui8, 2 : i64>, memref<4x5xi32, 2 : i64>) -> ()
  func.return
}

// CHECK:       "memref.global"() <{sym_name = "[[P:w_[0-9a-f]+]]", type = memref<32xui8, 2 : i64>
// CHECK-SAME:  "0x0102030004050600070809000A0B0C000D0E0F00000000000000000000000000"
// CHECK-NOT:   memref.global
// CHECK:       func.func @transposed
// CHECK:         memref.collapse_shape %a {{.*}} into memref<8x3xi8, strided<[7, 1]>, 2 : i64>
// CHECK:         qkernel.packed_quant_matmul {{.*}} : (memref<8x3xi8, strided<[7, 1]>, 2 : i64>, memref<2x1x4x4xui8, 2 : i64>, memref<8x5xi32, 2 : i64>) -> ()
// CHECK:         qkernel.packed_quant_matmul %c, {{.*}} outs(%z) : (memref<4x3xi8, 2 : i64>, memref<2x1x4x4xui8, 2 : i64>, memref<4x5xi32, 2 : i64>) -> ()

// -----

// Panels of a 4 x 4 matrix that is read transposed are the matrix itself.
"memref.global"() <{sym_name = "w_b", type = memref<16xi8, 2 : i64>, initial_value, sym_visibility = "private", constant, alignment = 16 : i64}> {qmm.weight = #qmm.weight<"0x000102030405060708090A0B0C0D0E0F" : tensor<16xi8>>, qmm.sha256 = ""} : () -> ()
func.func @same(%a: memref<2x4xi8, 2 : i64>, %y: memref<2x4xi32, 2 : i64>) {
  %0 = memref.get_global @w_b : memref<16xi8, 2 : i64>
  %1 = memref.expand_shape %0 [[0, 1]] output_shape [4, 4] : memref<16xi8, 2 : i64> into memref<4x4xi8, 2 : i64>
  qkernel.quant_matmul %a, %1 outs(%y) {transpose_b} : (memref<2x4xi8, 2 : i64>, memref<4x4xi8, 2 : i64>, memref<2x4xi32, 2 : i64>) -> ()
  func.return
}

// CHECK:       memref.global
// CHECK-NEXT:  func.func @same
// CHECK-NEXT:    memref.get_global @w_b
// CHECK-NEXT:    output_shape [1, 1, 4, 4]
// CHECK-NEXT:    qkernel.packed_quant_matmul

// -----

// What stays: a constant that is read in two ways.
"memref.global"() <{sym_name = "w_b", type = memref<15xi8, 2 : i64>, initial_value, sym_visibility = "private", constant, alignment = 16 : i64}> {qmm.weight = #qmm.weight<"0x0102030405060708090A0B0C0D0E0F" : tensor<15xi8>>, qmm.sha256 = ""} : () -> ()
func.func @two_ways(%a: memref<2x5xi8, 2 : i64>, %c: memref<2x3xi8, 2 : i64>, %y: memref<2x3xi32, 2 : i64>, %z: memref<2x5xi32, 2 : i64>) {
  %0 = memref.get_global @w_b : memref<15xi8, 2 : i64>
  %1 = memref.expand_shape %0 [[0, 1]] output_shape [5, 3] : memref<15xi8, 2 : i64> into memref<5x3xi8, 2 : i64>
  qkernel.quant_matmul %a, %1 outs(%y) : (memref<2x5xi8, 2 : i64>, memref<5x3xi8, 2 : i64>, memref<2x3xi32, 2 : i64>) -> ()
  qkernel.quant_matmul %c, %1 outs(%z) {transpose_b} : (memref<2x3xi8, 2 : i64>, memref<5x3xi8, 2 : i64>, memref<2x5xi32, 2 : i64>) -> ()
  func.return
}

// CHECK:       func.func @two_ways
// CHECK-NOT:   packed
// CHECK:       qkernel.quant_matmul %a
// CHECK-NEXT:  qkernel.quant_matmul %c

// -----

// ... one that is copied, ...
"memref.global"() <{sym_name = "w_b", type = memref<15xi8, 2 : i64>, initial_value, sym_visibility = "private", constant, alignment = 16 : i64}> {qmm.weight = #qmm.weight<"0x0102030405060708090A0B0C0D0E0F" : tensor<15xi8>>, qmm.sha256 = ""} : () -> ()
func.func @copied(%a: memref<2x5xi8, 2 : i64>, %c: memref<15xi8, 2 : i64>, %y: memref<2x3xi32, 2 : i64>) {
  %0 = memref.get_global @w_b : memref<15xi8, 2 : i64>
  %1 = memref.expand_shape %0 [[0, 1]] output_shape [5, 3] : memref<15xi8, 2 : i64> into memref<5x3xi8, 2 : i64>
  qkernel.quant_matmul %a, %1 outs(%y) : (memref<2x5xi8, 2 : i64>, memref<5x3xi8, 2 : i64>, memref<2x3xi32, 2 : i64>) -> ()
  "memref.copy"(%0, %c) : (memref<15xi8, 2 : i64>, memref<15xi8, 2 : i64>) -> ()
  func.return
}

// CHECK:       func.func @copied
// CHECK:       qkernel.quant_matmul %a

// -----

// ... one of a product with a zero point, ...
"memref.global"() <{sym_name = "w_b", type = memref<15xi8, 2 : i64>, initial_value, sym_visibility = "private", constant, alignment = 16 : i64}> {qmm.weight = #qmm.weight<"0x0102030405060708090A0B0C0D0E0F" : tensor<15xi8>>, qmm.sha256 = ""} : () -> ()
func.func @zero(%a: memref<2x5xi8, 2 : i64>, %z: memref<i8, 2 : i64>, %y: memref<2x3xi32, 2 : i64>) {
  %0 = memref.get_global @w_b : memref<15xi8, 2 : i64>
  %1 = memref.expand_shape %0 [[0, 1]] output_shape [5, 3] : memref<15xi8, 2 : i64> into memref<5x3xi8, 2 : i64>
  qkernel.quant_matmul %a, %1 a_zero_point(%z) outs(%y) : (memref<2x5xi8, 2 : i64>, memref<5x3xi8, 2 : i64>, memref<i8, 2 : i64>, memref<2x3xi32, 2 : i64>) -> ()
  func.return
}

// CHECK:       func.func @zero
// CHECK:       qkernel.quant_matmul %a

// -----

// ... one whose product has rows that no two strides reach, or rows that are not runs of bytes, ...
"memref.global"() <{sym_name = "w_b", type = memref<15xi8, 2 : i64>, initial_value, sym_visibility = "private", constant, alignment = 16 : i64}> {qmm.weight = #qmm.weight<"0x0102030405060708090A0B0C0D0E0F" : tensor<15xi8>>, qmm.sha256 = ""} : () -> ()
func.func @strides(%a: memref<2x4x5xi8, strided<[40, 7, 1]>, 2 : i64>, %c: memref<4x5xi8, strided<[1, 4]>, 2 : i64>, %y: memref<2x4x3xi32, 2 : i64>, %z: memref<4x3xi32, 2 : i64>) {
  %0 = memref.get_global @w_b : memref<15xi8, 2 : i64>
  %1 = memref.expand_shape %0 [[0, 1]] output_shape [5, 3] : memref<15xi8, 2 : i64> into memref<5x3xi8, 2 : i64>
  qkernel.quant_matmul %a, %1 outs(%y) : (memref<2x4x5xi8, strided<[40, 7, 1]>, 2 : i64>, memref<5x3xi8, 2 : i64>, memref<2x4x3xi32, 2 : i64>) -> ()
  qkernel.quant_matmul %c, %1 outs(%z) : (memref<4x5xi8, strided<[1, 4]>, 2 : i64>, memref<5x3xi8, 2 : i64>, memref<4x3xi32, 2 : i64>) -> ()
  func.return
}

// CHECK:       func.func @strides
// CHECK-NOT:   collapse_shape
// CHECK:       qkernel.quant_matmul %a
// CHECK-NEXT:  qkernel.quant_matmul %c

// -----

// ... one with an epilogue operand along some of the rows' dimensions, ...
"memref.global"() <{sym_name = "w_b", type = memref<15xi8, 2 : i64>, initial_value, sym_visibility = "private", constant, alignment = 16 : i64}> {qmm.weight = #qmm.weight<"0x0102030405060708090A0B0C0D0E0F" : tensor<15xi8>>, qmm.sha256 = ""} : () -> ()
func.func @per_batch(%a: memref<2x4x5xi8, 2 : i64>, %s: memref<2xi32, 2 : i64>, %y: memref<2x4x3xi32, 2 : i64>) {
  %0 = memref.get_global @w_b : memref<15xi8, 2 : i64>
  %1 = memref.expand_shape %0 [[0, 1]] output_shape [5, 3] : memref<15xi8, 2 : i64> into memref<5x3xi8, 2 : i64>
  qkernel.quant_matmul %a, %1 epilogue(%s) outs(%y) maps [affine_map<(d0, d1, d2) -> (d0)>] : (memref<2x4x5xi8, 2 : i64>, memref<5x3xi8, 2 : i64>, memref<2xi32, 2 : i64>, memref<2x4x3xi32, 2 : i64>) -> () {
  ^bb0(%acc: i32, %b: i32):
    %r = arith.addi %acc, %b : i32
    qmm.yield %r : i32
  }
  func.return
}

// CHECK:       func.func @per_batch
// CHECK:       qkernel.quant_matmul %a

// -----

// ... a part of a constant, and four bits.
"memref.global"() <{sym_name = "w_b", type = memref<15xi8, 2 : i64>, initial_value, sym_visibility = "private", constant, alignment = 16 : i64}> {qmm.weight = #qmm.weight<"0x0102030405060708090A0B0C0D0E0F" : tensor<15xi8>>, qmm.sha256 = ""} : () -> ()
"memref.global"() <{sym_name = "w_4", type = memref<6xi4, 2 : i64>, initial_value, sym_visibility = "private", constant, alignment = 16 : i64}> {qmm.weight = #qmm.weight<"0x123456" : tensor<6xi4>>, qmm.sha256 = ""} : () -> ()
func.func @parts(%a: memref<2x3xi8, 2 : i64>, %y: memref<2x3xi32, 2 : i64>, %z: memref<2x2xi32, 2 : i64>) {
  %0 = memref.get_global @w_b : memref<15xi8, 2 : i64>
  %1 = memref.expand_shape %0 [[0, 1]] output_shape [5, 3] : memref<15xi8, 2 : i64> into memref<5x3xi8, 2 : i64>
  %2 = memref.subview %1[1, 0] [3, 3] [1, 1] : memref<5x3xi8, 2 : i64> to memref<3x3xi8, strided<[3, 1], offset: 3>, 2 : i64>
  %3 = memref.get_global @w_4 : memref<6xi4, 2 : i64>
  %4 = memref.expand_shape %3 [[0, 1]] output_shape [3, 2] : memref<6xi4, 2 : i64> into memref<3x2xi4, 2 : i64>
  qkernel.quant_matmul %a, %2 outs(%y) : (memref<2x3xi8, 2 : i64>, memref<3x3xi8, strided<[3, 1], offset: 3>, 2 : i64>, memref<2x3xi32, 2 : i64>) -> ()
  qkernel.quant_matmul %a, %4 outs(%z) : (memref<2x3xi8, 2 : i64>, memref<3x2xi4, 2 : i64>, memref<2x2xi32, 2 : i64>) -> ()
  func.return
}

// CHECK:       func.func @parts
// CHECK-NOT:   packed
// CHECK:       func.return
