// RUN: qfold-opt %s --split-input-file -p qmm-lower-quantization | filecheck %s
// RUN: qfold-opt %s --split-input-file -p qmm-lower-quantization,qmm-fuse-epilogue | filecheck %s --check-prefix FUSED

// Clamped as a float, around the zero point, which is added as an integer.
func.func @requantize(%a: tensor<4x8xui8>, %b: tensor<8x2xi8>) -> tensor<4x2xui8> {
  %acc = qmm.quant_matmul %a, %b : (tensor<4x8xui8>, tensor<8x2xi8>) -> tensor<4x2xi32>
  %q = qmm.requantize %acc {multiplier = array<f64: 0.5, 0.25>, zero_point = 3 : i64, axis = 1 : i64} : (tensor<4x2xi32>) -> tensor<4x2xui8>
  func.return %q : tensor<4x2xui8>
}

// CHECK:      @requantize
// CHECK:        %[[ACC:.*]] = qmm.quant_matmul
// CHECK-NEXT:   %[[M:.*]] = arith.constant dense<[5.000000e-01, 2.500000e-01]> : tensor<2xf64>
// CHECK-NEXT:   %[[E:.*]] = tensor.empty() : tensor<4x2xui8>
// CHECK-NEXT:   linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%[[ACC]], %[[M]] : tensor<4x2xi32>, tensor<2xf64>) outs(%[[E]] : tensor<4x2xui8>) {
// CHECK-NEXT:   ^bb0(%[[X:.*]]: i32, %[[F:.*]]: f64, %{{.*}}: ui8):
// CHECK-NEXT:     %[[V0:.*]] = arith.sitofp %[[X]] : i32 to f64
// CHECK-NEXT:     %[[V1:.*]] = arith.mulf %[[V0]], %[[F]] : f64
// CHECK-NEXT:     %[[V2:.*]] = math.roundeven %[[V1]] : f64
// CHECK-NEXT:     %[[LOW:.*]] = arith.constant -3.000000e+00 : f64
// CHECK-NEXT:     %[[V3:.*]] = arith.maxnumf %[[V2]], %[[LOW]] : f64
// CHECK-NEXT:     %[[HIGH:.*]] = arith.constant 2.520000e+02 : f64
// CHECK-NEXT:     %[[V4:.*]] = arith.minnumf %[[V3]], %[[HIGH]] : f64
// CHECK-NEXT:     %[[V5:.*]] = arith.fptosi %[[V4]] : f64 to i32
// CHECK-NEXT:     %[[Z:.*]] = arith.constant 3 : i32
// CHECK-NEXT:     %[[V6:.*]] = arith.addi %[[V5]], %[[Z]] : i32
// CHECK-NEXT:     %[[V7:.*]] = arith.trunci %[[V6]] : i32 to i8
// CHECK-NEXT:     %[[V8:.*]] = builtin.unrealized_conversion_cast %[[V7]] : i8 to ui8
// CHECK-NEXT:     linalg.yield %[[V8]] : ui8

// FUSED:      @requantize
// FUSED:        qmm.quant_matmul %a, %b epilogue(%{{.*}}) maps [affine_map<(d0, d1) -> (d1)>] : (tensor<4x8xui8>, tensor<8x2xi8>, tensor<2xf64>) -> tensor<4x2xui8> {
// FUSED-NEXT:   ^bb0(%{{.*}}: i32, %{{.*}}: f64):
// FUSED:          qmm.yield %{{.*}} : ui8
// FUSED-NEXT:   }
// FUSED-NEXT:   func.return

// -----

// Halves go up; those that went to an odd result are taken back. 2048 is the half and what the op adds.
func.func @shift(%acc: tensor<4xi32>) -> tensor<4xi8> {
  %q = qmm.requantize_shift %acc {mul = array<i64: 37>, add = array<i64: 1536>, shift = array<i64: 10>, rounding = "half_even"} : (tensor<4xi32>) -> tensor<4xi8>
  func.return %q : tensor<4xi8>
}

// CHECK:      @shift
// CHECK:        ^bb0(%[[X:.*]]: i32, %{{.*}}: i8):
// CHECK-NEXT:     %[[MUL:.*]] = arith.constant 37 : i64
// CHECK-NEXT:     %[[ADD:.*]] = arith.constant 2048 : i64
// CHECK-NEXT:     %[[S:.*]] = arith.constant 10 : i64
// CHECK-NEXT:     %[[W:.*]] = arith.extsi %[[X]] : i32 to i64
// CHECK-NEXT:     %[[P:.*]] = arith.muli %[[W]], %[[MUL]] : i64
// CHECK-NEXT:     %[[T:.*]] = arith.addi %[[P]], %[[ADD]] : i64
// CHECK-NEXT:     %[[ONE:.*]] = arith.constant 1 : i64
// CHECK-NEXT:     %[[R:.*]] = arith.shrsi %[[T]], %[[S]] : i64
// CHECK-NEXT:     %[[ODD:.*]] = arith.andi %[[R]], %[[ONE]] : i64
// CHECK-NEXT:     %[[BACK:.*]] = arith.subi %[[T]], %[[ODD]] : i64
// CHECK-NEXT:     arith.shrsi %[[BACK]], %[[S]] : i64
// CHECK:          arith.maxsi
// CHECK:          arith.minsi
// CHECK-NEXT:     arith.trunci %{{.*}} : i64 to i8

// -----

// Sums of 8 products of bytes and a multiplier of 8 bits fit 32 bits; nothing but the upper bound can be left.
func.func @narrow(%a: tensor<4x8xui8>) -> tensor<4x2xui8> {
  %b = qmm.constant #qmm.weight<"0x01010101010101010101010101010101" : tensor<8x2xi8>>
  %acc = qmm.quant_matmul %a, %b : (tensor<4x8xui8>, tensor<8x2xi8>) -> tensor<4x2xi32>
  %q = qmm.requantize_shift %acc {mul = array<i64: 200>, add = array<i64: 512>, shift = array<i64: 10>, rounding = "floor"} : (tensor<4x2xi32>) -> tensor<4x2xui8>
  func.return %q : tensor<4x2xui8>
}

// CHECK:      @narrow
// CHECK:        ^bb0(%[[X:.*]]: i32, %{{.*}}: ui8):
// CHECK:          %[[P:.*]] = arith.muli %[[X]], %{{.*}} : i32
// CHECK-NEXT:     %[[T:.*]] = arith.addi %[[P]], %{{.*}} : i32
// CHECK-NEXT:     %[[R:.*]] = arith.shrsi %[[T]], %{{.*}} : i32
// CHECK-NOT:      arith.maxsi
// CHECK:          arith.minsi %[[R]], %{{.*}} : i32

// -----

// A multiplier of 31 bits: the upper half of its product with the accumulator, moved up as far as 32 bits allow.
func.func @high_half(%a: tensor<4x8xi8>, %b: tensor<8x2xi8>) -> tensor<4x2xi8> {
  %acc = qmm.quant_matmul %a, %b : (tensor<4x8xi8>, tensor<8x2xi8>) -> tensor<4x2xi32>
  %q = qmm.requantize_shift %acc {mul = array<i64: 1234567891>, add = array<i64: 274877906944>, shift = array<i64: 39>, rounding = "floor"} : (tensor<4x2xi32>) -> tensor<4x2xi8>
  func.return %q : tensor<4x2xi8>
}

// CHECK:      @high_half
// CHECK:        ^bb0(%[[X:.*]]: i32, %{{.*}}: i8):
// CHECK:          %[[LEFT:.*]] = arith.constant 13 : i32
// CHECK-NEXT:     %[[UP:.*]] = arith.shli %[[X]], %[[LEFT]] : i32
// CHECK-NEXT:     %{{.*}}, %[[HIGH:.*]] = arith.mulsi_extended %[[UP]], %{{.*}} : i32
// CHECK-NEXT:     %[[T:.*]] = arith.addi %[[HIGH]], %{{.*}} : i32
// CHECK-NEXT:     arith.shrsi %[[T]], %{{.*}} : i32

// -----

// Two reductions give the range, and a quantisation by what it comes to follows.
func.func @dynamic(%x: tensor<4x8xf32>) -> (tensor<4x8xui8>, tensor<4xf32>, tensor<4xui8>) {
  %q, %s, %z = qmm.dynamic_quantize %x {per_row} : (tensor<4x8xf32>) -> (tensor<4x8xui8>, tensor<4xf32>, tensor<4xui8>)
  func.return %q, %s, %z : tensor<4x8xui8>, tensor<4xf32>, tensor<4xui8>
}

// CHECK:      @dynamic
// CHECK-NOT:  qmm.
// CHECK:        iterator_types = ["parallel", "reduction"]
// CHECK:          arith.maximumf
// CHECK:        iterator_types = ["parallel", "reduction"]
// CHECK:          arith.minimumf
// CHECK:        arith.constant 2.550000e+02 : f32
// CHECK:        ins(%x, %{{.*}}, %{{.*}} : tensor<4x8xf32>, tensor<4xf32>, tensor<4xui8>)
// CHECK-NOT:  qmm.
