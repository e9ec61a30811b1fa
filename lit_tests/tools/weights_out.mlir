// RUN: rm -rf %t && mkdir %t
// RUN: qfold-opt %s -o %t/inline.mlir --weights-out %t/w.bin && filecheck %s --input-file %t/inline.mlir
// RUN: qfold-opt %t/inline.mlir | filecheck %s
// RUN: not ls %t/w.bin

// Weights up to 1 MiB stay in the text, and a sidecar that nothing went to is not left behind.
// CHECK: qmm.constant #qmm.weight<"0x00010203
func.func @main() -> tensor<17xi8> {
  %w = qmm.constant #qmm.weight<"0x000102030405060708090A0B0C0D0E0F10" : tensor<17xi8>>
  func.return %w : tensor<17xi8>
}
