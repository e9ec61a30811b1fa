// RUN: qfold-opt %s -p qmm-select-kernels --split-input-file --verify-diagnostics | filecheck %s

func.func private @half(%x: memref<2x4xf32, 2 : i64>, %w: memref<2x4xf32, strided<[1, 2]>, 2 : i64>, %y: memref<2x2xf32, 2 : i64>) {
  %s = arith.constant 0.0 : f32
  func.return
}

// CHECK: @half holds nothing to select a kernel for
