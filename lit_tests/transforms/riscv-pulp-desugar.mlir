// RUN: qfold-opt %s -p riscv-pulp-desugar --split-input-file --verify-diagnostics | filecheck %s

%p, %x, %y, %s = "test.op"() : () -> (!riscv.reg, !riscv.reg, !riscv.reg, !riscv.reg)

// Post-increment: the access, then the addition. The results keep their registers.
%a, %p1 = riscv_pulp.lb_post %p, -1 : (!riscv.reg) -> (!riscv.reg<a0>, !riscv.reg)
%b, %p2 = riscv_pulp.lw_post_reg %p1, %s : (!riscv.reg, !riscv.reg) -> (!riscv.reg, !riscv.reg)
%p3 = riscv_pulp.sh_post %p2, %x, 2 : (!riscv.reg, !riscv.reg) -> !riscv.reg
%p4 = riscv_pulp.sw_post_reg %p3, %x, %s : (!riscv.reg, !riscv.reg, !riscv.reg) -> !riscv.reg
"test.op"(%a, %b, %p4) : (!riscv.reg<a0>, !riscv.reg, !riscv.reg) -> ()
// CHECK:      %p, %x, %y, %s = "test.op"()
// CHECK-NEXT: %a = riscv_pulp.lb %p, 0 : (!riscv.reg) -> !riscv.reg<a0>
// CHECK-NEXT: %p1 = riscv.addi %p, -1 : (!riscv.reg) -> !riscv.reg
// CHECK-NEXT: %b = riscv.lw %p1, 0 : (!riscv.reg) -> !riscv.reg
// CHECK-NEXT: %p2 = riscv.add %p1, %s : (!riscv.reg, !riscv.reg) -> !riscv.reg
// CHECK-NEXT: riscv_pulp.sh %p2, %x, 0 : (!riscv.reg, !riscv.reg) -> ()
// CHECK-NEXT: %p3 = riscv.addi %p2, 2 : (!riscv.reg) -> !riscv.reg
// CHECK-NEXT: riscv.sw %p3, %x, 0 : (!riscv.reg, !riscv.reg) -> ()
// CHECK-NEXT: %p4 = riscv.add %p3, %s : (!riscv.reg, !riscv.reg) -> !riscv.reg

// Multiply-accumulate.
%m0 = riscv_pulp.mac %x, %y, %s : (!riscv.reg, !riscv.reg, !riscv.reg) -> !riscv.reg
%m1 = riscv_pulp.msu %m0, %y, %s : (!riscv.reg, !riscv.reg, !riscv.reg) -> !riscv.reg
"test.op"(%m1) : (!riscv.reg) -> ()
// CHECK:      %[[P0:[^ ]+]] = riscv.mul %y, %s
// CHECK-NEXT: %[[M0:[^ ]+]] = riscv.add %x, %[[P0]]
// CHECK-NEXT: %[[P1:[^ ]+]] = riscv.mul %y, %s
// CHECK-NEXT: riscv.sub %[[M0]], %[[P1]]

// A minimum without a branch: keep = (y < s) - 1, y ^ ((y ^ s) & keep).
%min = riscv_pulp.minu %y, %s : (!riscv.reg, !riscv.reg) -> !riscv.reg
"test.op"(%min) : (!riscv.reg) -> ()
// CHECK:      %[[LESS:[^ ]+]] = riscv.sltu %y, %s
// CHECK-NEXT: %[[KEEP:[^ ]+]] = riscv.addi %[[LESS]], -1
// CHECK-NEXT: %[[DIFF:[^ ]+]] = riscv.xor %y, %s
// CHECK-NEXT: %[[FLIP:[^ ]+]] = riscv.and %[[DIFF]], %[[KEEP]]
// CHECK-NEXT: riscv.xor %y, %[[FLIP]]

// The conversion of a byte to a float: p.insert at bit 15.
%f0 = rv32.li 1132462080 : !riscv.reg
%f1 = riscv_pulp.insert %f0, %y, 7, 15 : (!riscv.reg, !riscv.reg) -> !riscv.reg
"test.op"(%f1) : (!riscv.reg) -> ()
// CHECK:      %[[UP:[^ ]+]] = rv32.slli %y, 24
// CHECK-NEXT: %[[FIELD:[^ ]+]] = rv32.srli %[[UP]], 9
// CHECK-NEXT: %[[MASK:[^ ]+]] = rv32.li -8355841
// CHECK-NEXT: %[[KEPT:[^ ]+]] = riscv.and %f0, %[[MASK]]
// CHECK-NEXT: riscv.or %[[KEPT]], %[[FIELD]]

// Unsigned times signed half-words; the scalar is extended once.
%d = riscv_pulp.dotusp.sc.h %y, %s : (!riscv.reg, !riscv.reg) -> !riscv.reg
"test.op"(%d) : (!riscv.reg) -> ()
// CHECK:      %[[S0:[^ ]+]] = rv32.slli %s, 16
// CHECK-NEXT: %[[S1:[^ ]+]] = rv32.srai %[[S0]], 16
// CHECK-NEXT: %[[Y0:[^ ]+]] = rv32.slli %y, 16
// CHECK-NEXT: %[[Y1:[^ ]+]] = rv32.srli %[[Y0]], 16
// CHECK-NEXT: %[[LO:[^ ]+]] = riscv.mul %[[Y1]], %[[S1]]
// CHECK-NEXT: %[[Y2:[^ ]+]] = rv32.srli %y, 16
// CHECK-NEXT: %[[HI:[^ ]+]] = riscv.mul %[[Y2]], %[[S1]]
// CHECK-NEXT: riscv.add %[[LO]], %[[HI]]

// -----

// Hardware loops. A count in a register that is 0 becomes 1: the hardware would run the body once.
%n, %x, %y = "test.op"() : () -> (!riscv.reg, !riscv.reg, !riscv.reg)
%r = riscv_pulp.lp_setup 1, %n : !riscv.reg iter_args(%o = %x) -> (!riscv.reg) {
  %q = riscv_pulp.lp_setupi 0, 16 iter_args(%i = %o) -> (!riscv.reg) {
    %i1 = riscv.add %i, %y : (!riscv.reg, !riscv.reg) -> !riscv.reg
    %i2 = riscv.add %i1, %y : (!riscv.reg, !riscv.reg) -> !riscv.reg
    %i3 = riscv.add %i2, %y : (!riscv.reg, !riscv.reg) -> !riscv.reg
    riscv_pulp.yield %i3 : !riscv.reg
  }
  %o1 = riscv.addi %q, 1 : (!riscv.reg) -> !riscv.reg
  %o2 = riscv.addi %o1, 1 : (!riscv.reg) -> !riscv.reg
  riscv_pulp.yield %o2 : !riscv.reg
}
"test.op"(%r) : (!riscv.reg) -> ()
// CHECK:      %[[ZERO:[^ ]+]] = riscv.sltiu %n, 1
// CHECK-NEXT: %[[STOP:[^ ]+]] = riscv.add %n, %[[ZERO]]
// CHECK-NEXT: %[[START:[^ ]+]] = rv32.li 0
// CHECK-NEXT: %r = riscv_scf.for %{{[^ ]+}} : !riscv.reg = %[[START]] : !riscv.reg to %[[STOP]] : !riscv.reg step 1 : si12 iter_args(%o = %x) -> (!riscv.reg) {
// CHECK-NEXT:   %[[STOP0:[^ ]+]] = rv32.li 16
// CHECK-NEXT:   %[[START0:[^ ]+]] = rv32.li 0
// CHECK-NEXT:   %q = riscv_scf.for %{{[^ ]+}} : !riscv.reg = %[[START0]] : !riscv.reg to %[[STOP0]] : !riscv.reg step 1 : si12 iter_args(%i = %o) -> (!riscv.reg) {
// CHECK:          riscv_scf.yield %i3
// CHECK-NEXT:   }
// CHECK:        riscv_scf.yield %o2

// -----

%p = "test.op"() : () -> !riscv.reg
%event = riscv_pulp.elw %p, 28 : (!riscv.reg) -> !riscv.reg
// CHECK: p.elw waits for the event unit, which plain RV32 has no instruction for
