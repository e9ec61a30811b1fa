// RUN: qfold-opt %s --nhwc-inputs | filecheck %s
// RUN: qfold-opt %s -p 'qmm-nhwc-inputs{inputs=image}' | filecheck %s --check-prefix NAMED
// RUN: qfold-opt %s --nhwc-inputs -p qmm-bufferize | filecheck %s --check-prefix VIEW
// RUN: not qfold-opt %s -p 'qmm-nhwc-inputs{inputs=flat}' 2>&1 | filecheck %s --check-prefix FLAT
// RUN: not qfold-opt %s -p 'qmm-nhwc-inputs{inputs=picture}' 2>&1 | filecheck %s --check-prefix UNKNOWN

func.func @main(%x: tensor<1x3x5x4xi8> {qmm.name = "image"}, %s: tensor<2x3x4xf32> {qmm.name = "sound"}, %f: tensor<2x2xf32> {qmm.name = "flat"}) -> (tensor<1x2x3x2xi32> {qmm.name = "y"}, tensor<2x3x4xf32>, tensor<2x2xf32>) {
  %w = qmm.constant #qmm.weight<"0x010203040506070809010203040506070809010203040506070809010203040506070809010203040506070809010203040506070809" : tensor<2x3x3x3xi8>>
  %y = qmm.quant_conv %x, %w {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, groups = 1 : i64} : (tensor<1x3x5x4xi8>, tensor<2x3x3x3xi8>) -> tensor<1x2x3x2xi32>
  func.return %y, %s, %f : tensor<1x2x3x2xi32>, tensor<2x3x4xf32>, tensor<2x2xf32>
}

// CHECK:      func.func @main(%[[X:.*]]: tensor<1x5x4x3xi8> {qmm.name = "image", qmm.layout = "NHWC"},
// CHECK-SAME:   %[[S:.*]]: tensor<2x4x3xf32> {qmm.name = "sound", qmm.layout = "NLC"}, %{{.*}}: tensor<2x2xf32> {qmm.name = "flat"})
// CHECK-DAG:  %[[T:.*]] = linalg.transpose ins(%[[X]]:tensor<1x5x4x3xi8>) outs(%{{.*}}:tensor<1x3x5x4xi8>) permutation = [0, 3, 1, 2]
// CHECK-DAG:  linalg.transpose ins(%[[S]]:tensor<2x4x3xf32>) outs(%{{.*}}:tensor<2x3x4xf32>) permutation = [0, 2, 1]
// CHECK:      qmm.quant_conv %[[T]]

// NAMED:      func.func @main(%{{.*}}: tensor<1x5x4x3xi8> {qmm.name = "image", qmm.layout = "NHWC"}, %{{.*}}: tensor<2x3x4xf32> {qmm.name = "sound"}

// The convolution reads through strides: no copy of x.
// VIEW:       func.func @main(%[[X:[^:]*]]: memref<1x5x4x3xi8
// VIEW-NOT:   memref.copy %[[X]]
// VIEW:       %[[V:.*]] = memref.reinterpret_cast %[[X]] to offset: [0], sizes: [1, 3, 5, 4], strides: [60, 1, 12, 3]
// VIEW-NOT:   memref.alloc
// VIEW:       qkernel.quant_conv %[[V]]

// FLAT:       input 'flat' has 2 dimensions; NHWC has 4, NLC has 3
// UNKNOWN:    there is no input 'picture' to be NHWC; inputs are 'image' of 4 dimensions, 'sound' of 3 dimensions, 'flat' of 2 dimensions
