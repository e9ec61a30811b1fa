// RUN: qfold-opt %s --split-input-file -p 'qmm-turn-weights{target=host}' | filecheck %s
// RUN: qfold-opt %s --split-input-file -p 'qmm-turn-weights{target=threads}' | filecheck %s --check-prefix PACKS

// Five rows: turned round once, here. Both products read the same bytes.
func.func @main(%a: tensor<5x3xi8>, %b: tensor<2x4x3xi8>) -> (tensor<5x2xi32>, tensor<2x4x2xi32>) {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<3x2xi8>>
  %y = qmm.quant_matmul %a, %w : (tensor<5x3xi8>, tensor<3x2xi8>) -> tensor<5x2xi32>
  %z = qmm.quant_matmul %b, %w : (tensor<2x4x3xi8>, tensor<3x2xi8>) -> tensor<2x4x2xi32>
  func.return %y, %z : tensor<5x2xi32>, tensor<2x4x2xi32>
}

// CHECK:      %[[W:.*]] = qmm.constant #qmm.weight<"0x010305020406" : tensor<2x3xi8>>
// CHECK-NEXT: qmm.quant_matmul %{{.*}}, %[[W]] {transpose_b} : (tensor<5x3xi8>, tensor<2x3xi8>) -> tensor<5x2xi32>
// CHECK-NEXT: qmm.quant_matmul %{{.*}}, %[[W]] {transpose_b} : (tensor<2x4x3xi8>, tensor<2x3xi8>) -> tensor<2x4x2xi32>
// PACKS-NOT:  transpose_b

// -----

// Four rows are read along N; what is read in two ways stays as it is.
func.func @main(%a: tensor<5x3xi8>, %b: tensor<4x3xi8>) -> (tensor<5x2xi32>, tensor<4x2xi32>) {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<3x2xi8>>
  %y = qmm.quant_matmul %a, %w : (tensor<5x3xi8>, tensor<3x2xi8>) -> tensor<5x2xi32>
  %z = qmm.quant_matmul %b, %w : (tensor<4x3xi8>, tensor<3x2xi8>) -> tensor<4x2xi32>
  func.return %y, %z : tensor<5x2xi32>, tensor<4x2xi32>
}

// CHECK:      qmm.constant #qmm.weight<"0x010203040506" : tensor<3x2xi8>>
// CHECK-NOT:  transpose_b
