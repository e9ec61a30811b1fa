// RUN: qfold-opt %s --split-input-file -p qmm-sink-dequantize | filecheck %s

// A residual sum: both integers are dequantised in the loop that adds, the transposed ones through another map.
func.func @residual(%a: tensor<2x3xi8>, %b: tensor<3x2xui8>) -> tensor<2x3xf32> {
  %e = tensor.empty() : tensor<2x3xf32>
  %x = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<2x3xi8>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%q: i8, %o: f32):
    %s = arith.constant 5.000000e-01 : f32
    %f = arith.sitofp %q : i8 to f32
    %m = arith.mulf %f, %s : f32
    linalg.yield %m : f32
  } -> tensor<2x3xf32>
  %g = tensor.empty() : tensor<3x2xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%b : tensor<3x2xui8>) outs(%g : tensor<3x2xf32>) {
  ^bb0(%q: ui8, %o: f32):
    %s = arith.constant 2.500000e-01 : f32
    %z = arith.constant 128 : i32
    %c = builtin.unrealized_conversion_cast %q : ui8 to i8
    %w = arith.extui %c : i8 to i32
    %d = arith.subi %w, %z : i32
    %f = arith.sitofp %d : i32 to f32
    %m = arith.mulf %f, %s : f32
    linalg.yield %m : f32
  } -> tensor<3x2xf32>
  %h = tensor.empty() : tensor<2x3xf32>
  %t = linalg.transpose ins(%y : tensor<3x2xf32>) outs(%h : tensor<2x3xf32>) permutation = [1, 0]
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%x, %t : tensor<2x3xf32>, tensor<2x3xf32>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.addf %i, %j : f32
    linalg.yield %m : f32
  } -> tensor<2x3xf32>
  func.return %r : tensor<2x3xf32>
}

// CHECK:      func.func @residual(%[[A:.*]]: tensor<2x3xi8>, %[[B:.*]]: tensor<3x2xui8>) -> tensor<2x3xf32> {
// CHECK-NEXT:   %[[E:.*]] = tensor.empty() : tensor<2x3xf32>
// CHECK:        %[[R:.*]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>], {{.*}} ins(%[[A]], %[[B]] : tensor<2x3xi8>, tensor<3x2xui8>) outs(%[[E]] : tensor<2x3xf32>) {
// CHECK:          arith.subi
// CHECK:          arith.addf
// CHECK-NEXT:     linalg.yield
// CHECK-NEXT:   } -> tensor<2x3xf32>
// CHECK-NEXT:   func.return %[[R]] : tensor<2x3xf32>

// -----

// Two loop nests read the floats: each dequantises, what comes between them included.
func.func @twice(%a: tensor<2x3xi8>) -> (tensor<2xf32>, tensor<2x3xf32>) {
  %e = tensor.empty() : tensor<2x3xf32>
  %x = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<2x3xi8>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%q: i8, %o: f32):
    %s = arith.constant 5.000000e-01 : f32
    %f = arith.sitofp %q : i8 to f32
    %m = arith.mulf %f, %s : f32
    linalg.yield %m : f32
  } -> tensor<2x3xf32>
  %low = arith.constant 0xFF800000 : f32
  %d = tensor.empty() : tensor<2xf32>
  %l = linalg.fill ins(%low : f32) outs(%d : tensor<2xf32>) -> tensor<2xf32>
  %n = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<2x3xf32>) outs(%l : tensor<2xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = arith.maximumf %i, %o : f32
    linalg.yield %m : f32
  } -> tensor<2xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<2x3xf32>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = math.exp %i : f32
    linalg.yield %m : f32
  } -> tensor<2x3xf32>
  func.return %n, %r : tensor<2xf32>, tensor<2x3xf32>
}

// CHECK:      func.func @twice(%[[A:.*]]: tensor<2x3xi8>)
// CHECK:        linalg.fill
// CHECK-NEXT:   linalg.generic {{.*}} ins(%[[A]] : tensor<2x3xi8>)
// CHECK:          arith.maximumf
// CHECK-NEXT:     linalg.yield
// CHECK-NEXT:   } -> tensor<2xf32>
// CHECK-NEXT:   linalg.generic {{.*}} ins(%[[A]] : tensor<2x3xi8>)
// CHECK:          math.exp

// -----

// An output of the network is stored as floats, once; who else reads it may as well do so.
func.func @output(%a: tensor<2x3xi8>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
  %e = tensor.empty() : tensor<2x3xf32>
  %x = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<2x3xi8>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%q: i8, %o: f32):
    %s = arith.constant 5.000000e-01 : f32
    %f = arith.sitofp %q : i8 to f32
    %m = arith.mulf %f, %s : f32
    linalg.yield %m : f32
  } -> tensor<2x3xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<2x3xf32>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = math.exp %i : f32
    linalg.yield %m : f32
  } -> tensor<2x3xf32>
  func.return %x, %r : tensor<2x3xf32>, tensor<2x3xf32>
}

// CHECK:      func.func @output(%[[A:.*]]: tensor<2x3xi8>)
// CHECK:        %[[X:.*]] = linalg.generic {{.*}} ins(%[[A]] : tensor<2x3xi8>)
// CHECK:        linalg.generic {{.*}} ins(%[[X]] : tensor<2x3xf32>)
// CHECK:        func.return %[[X]]
