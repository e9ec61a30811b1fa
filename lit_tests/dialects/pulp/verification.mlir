// RUN: qfold-opt %s --split-input-file --verify-diagnostics | filecheck %s

%a, %b = "test.op"() : () -> (memref<4x8xf32, 2 : i64>, memref<8x4xf32, 1 : i64>)
// CHECK: copies between equal shapes, got memref<4x8xf32, 2 : i64> and memref<8x4xf32, 1 : i64>
%t = pulp.dma_start %a, %b : (memref<4x8xf32, 2 : i64>, memref<8x4xf32, 1 : i64>) -> !pulp.transfer
pulp.dma_wait %t

// -----

%a, %b = "test.op"() : () -> (memref<4xi8, 2 : i64>, memref<4xui8, 1 : i64>)
// CHECK: copies between equal element types, got memref<4xi8, 2 : i64> and memref<4xui8, 1 : i64>
%t = pulp.dma_start %a, %b : (memref<4xi8, 2 : i64>, memref<4xui8, 1 : i64>) -> !pulp.transfer
pulp.dma_wait %t

// -----

%a, %b = "test.op"() : () -> (memref<4xf32, 1 : i64>, memref<4xf32, 1 : i64>)
// CHECK: copies between two memory spaces, got memref<4xf32, 1 : i64> and memref<4xf32, 1 : i64>, which are in one
%t = pulp.dma_start %a, %b : (memref<4xf32, 1 : i64>, memref<4xf32, 1 : i64>) -> !pulp.transfer
pulp.dma_wait %t

// -----

%a, %b = "test.op"() : () -> (memref<4xf32>, memref<4xf32, 1 : i64>)
// CHECK: copies between memory spaces, got memref<4xf32>, which has none
%t = pulp.dma_start %a, %b : (memref<4xf32>, memref<4xf32, 1 : i64>) -> !pulp.transfer
pulp.dma_wait %t

// -----

%a, %b = "test.op"() : () -> (memref<4xf32, strided<[?]>, 2 : i64>, memref<4xf32, 1 : i64>)
// CHECK: copies static shapes and strides, got memref<4xf32, strided<[?]>, 2 : i64>
%t = pulp.dma_start %a, %b : (memref<4xf32, strided<[?]>, 2 : i64>, memref<4xf32, 1 : i64>) -> !pulp.transfer
pulp.dma_wait %t

// -----

%a, %b = "test.op"() : () -> (memref<?xf32, 2 : i64>, memref<?xf32, 1 : i64>)
// CHECK: copies static shapes and strides, got memref<?xf32, 2 : i64>
%t = pulp.dma_start %a, %b : (memref<?xf32, 2 : i64>, memref<?xf32, 1 : i64>) -> !pulp.transfer
pulp.dma_wait %t

// -----

%a, %b = "test.op"() : () -> (memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>)
// CHECK: the transfer is taken by one pulp.dma_wait or loop, here never
%t = pulp.dma_start %a, %b : (memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>) -> !pulp.transfer

// -----

%a, %b = "test.op"() : () -> (memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>)
// CHECK: the transfer is taken by one pulp.dma_wait or loop, here 2 times
%t = pulp.dma_start %a, %b : (memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>) -> !pulp.transfer
pulp.dma_wait %t
pulp.dma_wait %t

// -----

%a, %b = "test.op"() : () -> (memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>)
// CHECK: a transfer is waited for or carried by scf.for, not test.op
%t = pulp.dma_start %a, %b : (memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>) -> !pulp.transfer
"test.op"(%t) : (!pulp.transfer) -> ()

// -----

%a, %b, %n = "test.op"() : () -> (memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>, index)
%t = pulp.dma_start %a, %b : (memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>) -> !pulp.transfer
// CHECK: the transfer is waited for in another block; a loop carries it in by iter_args
scf.for %i = %n to %n step %n {
  pulp.dma_wait %t
}

// -----

// The last copy of the loop.
%a, %b, %n = "test.op"() : () -> (memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>, index)
// CHECK: the transfer, carried by a loop, is taken by one pulp.dma_wait or loop, here never
%t = pulp.dma_start %a, %b : (memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>) -> !pulp.transfer
%r = scf.for %i = %n to %n step %n iter_args(%before = %t) -> (!pulp.transfer) {
  pulp.dma_wait %before
  %next = pulp.dma_start %a, %b : (memref<4xf32, 2 : i64>, memref<4xf32, 1 : i64>) -> !pulp.transfer
  scf.yield %next : !pulp.transfer
}
