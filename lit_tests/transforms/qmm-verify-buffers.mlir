// RUN: qfold-opt %s -p qmm-verify-buffers --split-input-file --verify-diagnostics | filecheck %s

func.func @subview(%x: memref<4x6xf32>) {
  %v = memref.subview %x[1, 2] [4, 2] [1, 1] : memref<4x6xf32> to memref<4x2xf32, strided<[6, 1], offset: 8>>
  func.return
}

// CHECK: memref.subview: elements 1..4 of dimension 0, which has 4

// -----

func.func @layout(%x: memref<4x6xf32>) {
  %v = memref.reinterpret_cast %x to offset: [0], sizes: [6, 4], strides: [1, 6] : memref<4x6xf32> to memref<6x4xf32>
  func.return
}

// CHECK: memref.reinterpret_cast: the type says [6, 4] at 0 + strides [4, 1], but the view is [6, 4] at 0 + strides [1, 6]

// -----

func.func @written(%x: memref<4xf32> {qmm.role = "input"}) {
  %zero = arith.constant 0.0 : f32
  linalg.fill ins(%zero : f32) outs(%x : memref<4xf32>)
  func.return
}

// CHECK: linalg.fill: writes to an input or a constant: memref<4xf32>
