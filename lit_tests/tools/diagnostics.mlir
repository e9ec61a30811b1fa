// RUN: qfold-opt %s --split-input-file --verify-diagnostics | filecheck %s
// RUN: not qfold-opt %s --split-input-file 2>&1 | filecheck %s --check-prefix PLAIN
// RUN: not qfold-opt %s -p no-such-pass 2>&1 | filecheck %s --check-prefix PASS

// CHECK: a matmul takes operands of rank 2 or more
func.func @rank(%a: tensor<3xf32>, %b: tensor<3x2xf32>) {
  %c = qmm.matmul %a, %b : (tensor<3xf32>, tensor<3x2xf32>) -> tensor<2xf32>
  func.return
}

// -----

// CHECK: qmm.matmul reads f32, got tensor<3x2xi8>
func.func @bytes(%a: tensor<2x3xf32>, %b: tensor<3x2xi8>) {
  %c = qmm.matmul %a, %b : (tensor<2x3xf32>, tensor<3x2xi8>) -> tensor<2x2xf32>
  func.return
}

// PLAIN-NOT: Traceback
// PLAIN:     error: {{.*}}
// PLAIN:     a matmul takes operands of rank 2 or more
// PASS:      error: argument -p/--passes: {{.*}}no-such-pass
