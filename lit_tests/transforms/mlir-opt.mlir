// REQUIRES: mlir-opt
// RUN: qfold-opt %s -p qmm-fuse-dequant,qmm-hoist-zero-point,convert-qmm-to-linalg | mlir-opt --one-shot-bufferize=bufferize-function-boundaries --convert-linalg-to-loops | filecheck %s

// Upstream takes what we hand over, down to loops on the integers as they are stored.
func.func @matmul(%a: tensor<4x3xf32>) -> tensor<4x2xf32> {
  %w = qmm.constant #qmm.weight<"0x010203040506" : tensor<3x2xui8>>
  %d = qmm.dequantize %w {quant = #qmm.quant<ui8, scale = [0.5, 1.0], zero_point = [1, 20], axis = 1>} : (tensor<3x2xui8>) -> tensor<3x2xf32>
  %y = qmm.matmul %a, %d : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}

// CHECK: memref.global "private" constant @{{.*}} : memref<3x2xi8> = dense<{{.*}}1, 2], [3, 4], [5, 6
// CHECK: func.func @matmul
// CHECK: scf.for
// CHECK: arith.extui %{{.*}} : i8 to i32
// CHECK: arith.sitofp
// CHECK: arith.mulf
// CHECK: arith.addf
