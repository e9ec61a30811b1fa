// RUN: qfold-opt %s | qfold-opt | filecheck %s

func.func @copies(%w: memref<16x32xi8, strided<[64, 1], offset: ?>, 2 : i64>, %tile: memref<16x32xi8, 1 : i64>, %n: index, %one: index) {
  %t = pulp.dma_start %w, %tile : (memref<16x32xi8, strided<[64, 1], offset: ?>, 2 : i64>, memref<16x32xi8, 1 : i64>) -> !pulp.transfer
  pulp.dma_wait %t
  %u = pulp.dma_start %w, %tile {note = "the first tile"} : (memref<16x32xi8, strided<[64, 1], offset: ?>, 2 : i64>, memref<16x32xi8, 1 : i64>) -> !pulp.transfer
  %last = scf.for %i = %one to %n step %one iter_args(%before = %u) -> (!pulp.transfer) {
    pulp.dma_wait %before
    %next = pulp.dma_start %w, %tile : (memref<16x32xi8, strided<[64, 1], offset: ?>, 2 : i64>, memref<16x32xi8, 1 : i64>) -> !pulp.transfer
    scf.yield %next : !pulp.transfer
  }
  pulp.dma_wait %last
  func.return
}

// CHECK:      func.func @copies(%[[W:\w+]]: memref<16x32xi8, strided<[64, 1], offset: ?>, 2 : i64>, %[[TILE:\w+]]: memref<16x32xi8, 1 : i64>, %[[N:\w+]]: index, %[[ONE:\w+]]: index) {
// CHECK-NEXT:   %[[T:\w+]] = pulp.dma_start %[[W]], %[[TILE]] : (memref<16x32xi8, strided<[64, 1], offset: ?>, 2 : i64>, memref<16x32xi8, 1 : i64>) -> !pulp.transfer
// CHECK-NEXT:   pulp.dma_wait %[[T]]
// CHECK-NEXT:   %[[U:\w+]] = pulp.dma_start %[[W]], %[[TILE]] {note = "the first tile"} : (memref<16x32xi8, strided<[64, 1], offset: ?>, 2 : i64>, memref<16x32xi8, 1 : i64>) -> !pulp.transfer
// CHECK-NEXT:   %[[LAST:\w+]] = scf.for %{{\w+}} = %[[ONE]] to %[[N]] step %[[ONE]] iter_args(%[[BEFORE:\w+]] = %[[U]]) -> (!pulp.transfer) {
// CHECK-NEXT:     pulp.dma_wait %[[BEFORE]]
// CHECK-NEXT:     %[[NEXT:\w+]] = pulp.dma_start %[[W]], %[[TILE]] : (memref<16x32xi8, strided<[64, 1], offset: ?>, 2 : i64>, memref<16x32xi8, 1 : i64>) -> !pulp.transfer
// CHECK-NEXT:     scf.yield %[[NEXT]] : !pulp.transfer
// CHECK-NEXT:   }
// CHECK-NEXT:   pulp.dma_wait %[[LAST]]
