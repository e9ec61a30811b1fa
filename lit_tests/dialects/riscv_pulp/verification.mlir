// RUN: qfold-opt %s --split-input-file --verify-diagnostics | filecheck %s

// Registers that are overwritten.

%p, %q = "test.op"() : () -> (!riscv.reg, !riscv.reg)
%a, %p1 = riscv_pulp.lw_post %p, 4 : (!riscv.reg) -> (!riscv.reg, !riscv.reg)
%b = riscv.lw %p, 0 : (!riscv.reg) -> !riscv.reg
// CHECK: %p is overwritten here and read again by riscv.lw; copy it with riscv.mv first

// -----

// What `cse` makes of the equal initial values of two accumulators.
%zero, %a, %b = "test.op"() : () -> (!riscv.reg, !riscv.reg, !riscv.reg)
%s0 = riscv_pulp.mac %zero, %a, %b : (!riscv.reg, !riscv.reg, !riscv.reg) -> !riscv.reg
%s1 = riscv_pulp.mac %zero, %b, %b : (!riscv.reg, !riscv.reg, !riscv.reg) -> !riscv.reg
// CHECK: %zero is overwritten here and read again by riscv_pulp.mac

// -----

%acc, %a, %n = "test.op"() : () -> (!riscv.reg, !riscv.reg, !riscv.reg)
riscv_pulp.lp_setup 0, %n : !riscv.reg {
  %r = riscv_pulp.insert %acc, %a, 7, 15 : (!riscv.reg, !riscv.reg) -> !riscv.reg
  riscv.nop
  riscv.nop
}
// CHECK: %acc is overwritten here but defined outside of this block; carry it as an argument of the loop

// -----

%acc = rv32.get_register : !riscv.reg<zero>
%r = riscv_pulp.mac %acc, %acc, %acc : (!riscv.reg<zero>, !riscv.reg<zero>, !riscv.reg<zero>) -> !riscv.reg<zero>
// CHECK: the result that overwrites %acc cannot be in x0

// -----

%p = rv32.get_register : !riscv.reg<a0>
%a, %p1 = riscv_pulp.lb_post %p, 1 : (!riscv.reg<a0>) -> (!riscv.reg<a0>, !riscv.reg<a0>)
// CHECK: rd and the incremented pointer are both a0

// -----

%p = rv32.get_register : !riscv.reg<a0>
%a, %p1 = riscv_pulp.lb_post %p, 1 : (!riscv.reg<a0>) -> (!riscv.reg<a2>, !riscv.reg<a1>)
// CHECK: attribute !riscv.reg<a0> expected from variable 'POINTER', but got !riscv.reg<a1>

// -----

// Immediates.

%p = "test.op"() : () -> !riscv.reg
%a, %p1 = riscv_pulp.lb_post %p, 2048 : (!riscv.reg) -> (!riscv.reg, !riscv.reg)
// CHECK: Integer value 2048 is out of range for type si12

// -----

%a = "test.op"() : () -> !riscv.reg
%b = riscv_pulp.clip %a, 32 : (!riscv.reg) -> !riscv.reg
// CHECK: Integer value 32 is out of range for type ui5

// -----

%a = "test.op"() : () -> !riscv.reg
%b = riscv_pulp.extract %a, 7, 25 : (!riscv.reg) -> !riscv.reg
// CHECK: a field of 8 bits at bit 25 does not fit in 32 bits

// -----

// What a hardware loop may contain.

%zero = rv32.get_register : !riscv.reg<zero>
riscv_pulp.lp_setupi 0, 8 {
  riscv.nop
  riscv.nop
  %cycles = riscv.csrrs %zero, 3072 : (!riscv.reg<zero>) -> !riscv.reg
}
// CHECK: riscv.csrrs in the body of a hardware loop accesses a CSR

// -----

riscv_pulp.lp_setupi 0, 8 {
  riscv.nop
  riscv.nop
  riscv.ecall
}
// CHECK: riscv.ecall in the body of a hardware loop is privileged

// -----

riscv_pulp.lp_setupi 0, 8 {
  riscv.nop
  riscv.nop
  riscv.wfi
}
// CHECK: riscv.wfi in the body of a hardware loop is privileged

// -----

riscv_pulp.lp_setupi 0, 8 {
  riscv.nop
  riscv.nop
  riscv.custom_assembly_instruction {"instruction_name" = "fence"} : () -> ()
}
// CHECK: riscv.custom_assembly_instruction in the body of a hardware loop is unknown: it may be a fence or a branch

// -----

%event = "test.op"() : () -> !riscv.reg
riscv_pulp.lp_setupi 0, 8 {
  riscv.nop
  riscv.nop
  %e = riscv_pulp.elw %event, 28 : (!riscv.reg) -> !riscv.reg
}
// CHECK: riscv_pulp.elw in the body of a hardware loop sleeps

// -----

%a = "test.op"() : () -> !riscv.reg
riscv_pulp.lp_setupi 0, 8 {
  riscv.nop
  riscv.nop
  riscv.beq %a, %a, "elsewhere" : (!riscv.reg, !riscv.reg) -> ()
}
// CHECK: riscv.beq in the body of a hardware loop branches

// -----

riscv_pulp.lp_setupi 0, 8 {
  riscv.nop
  riscv.nop
  riscv_func.call @f() : () -> ()
}
// CHECK: riscv_func.call in the body of a hardware loop branches

// -----

// A label could be branched to from outside.
riscv_pulp.lp_setupi 0, 8 {
  riscv.nop
  riscv.label "middle"
  riscv.nop
  riscv.nop
}
// CHECK: riscv.label cannot be in the body of a hardware loop

// -----

%a = "test.op"() : () -> !riscv.reg
riscv_pulp.lp_setupi 0, 8 {
  riscv.nop
  riscv.nop
  riscv_scf.for %i : !riscv.reg = %a : !riscv.reg to %a : !riscv.reg step 1 : si12 {
  }
}
// CHECK: riscv_scf.for cannot be in the body of a hardware loop

// -----

riscv_pulp.lp_setupi 0, 8 {
  riscv.nop
  riscv.nop
  %big = rv32.li 74565 : !riscv.reg
}
// CHECK: rv32.li in the body of a hardware loop takes more than one instruction; move it before the loop

// -----

// How large a body is, and how often it runs.

riscv_pulp.lp_setupi 0, 8 {
  riscv.nop
  riscv.nop
}
// CHECK: the body has 2 instructions, lp.setupi takes 3 to 15

// -----

riscv_pulp.lp_setupi 0, 8 {
  riscv.nop
  riscv.nop
  riscv.nop
  riscv.nop
  riscv.nop
  riscv.nop
  riscv.nop
  riscv.nop
  riscv.nop
  riscv.nop
  riscv.nop
  riscv.nop
  riscv.nop
  riscv.nop
  riscv.nop
  riscv.nop
}
// CHECK: the body has 16 instructions, lp.setupi takes 3 to 15

// -----

riscv_pulp.lp_setupi 0, 4096 {
  riscv.nop
  riscv.nop
  riscv.nop
}
// CHECK: Integer value 4096 is out of range for type ui12

// -----

%n = rv32.li 0 : !riscv.reg
riscv_pulp.lp_setup 0, %n : !riscv.reg {
  riscv.nop
  riscv.nop
  riscv.nop
}
// CHECK: a count of 0 would still run the body once

// -----

// Nesting.

riscv_pulp.lp_setupi 2, 8 {
  riscv.nop
  riscv.nop
  riscv.nop
}
// CHECK: there are two hardware loops, 0 and 1; found 2

// -----

riscv_pulp.lp_setupi 1, 8 {
  riscv_pulp.lp_setupi 1, 8 {
    riscv.nop
    riscv.nop
    riscv.nop
  }
  riscv.nop
  riscv.nop
}
// CHECK: loop 1 inside of loop 1: the inner loop is 0 and the outer one 1

// -----

riscv_pulp.lp_setupi 0, 8 {
  riscv_pulp.lp_setupi 1, 8 {
    riscv.nop
    riscv.nop
    riscv.nop
  }
  riscv.nop
  riscv.nop
}
// CHECK: loop 1 inside of loop 0: the inner loop is 0 and the outer one 1

// -----

riscv_pulp.lp_setupi 1, 8 {
  riscv_pulp.lp_setupi 0, 8 {
    riscv.nop
    riscv.nop
    riscv.nop
  }
  riscv.nop
}
// CHECK: 1 instructions follow the inner loop in the body of the outer one; at least 2 must

// -----

// Loop-carried values.

%a = "test.op"() : () -> !riscv.reg
%r, %s = riscv_pulp.lp_setupi 0, 8 iter_args(%x = %a, %y = %a) -> (!riscv.reg, !riscv.reg) {
  riscv.nop
  riscv.nop
  riscv.nop
  riscv_pulp.yield %x, %y : !riscv.reg, !riscv.reg
}
// CHECK: two loop-carried values start as the same register

// -----

%a = rv32.get_register : !riscv.reg<a0>
%r = riscv_pulp.lp_setupi 0, 8 iter_args(%x = %a) -> (!riscv.reg<a0>) {
  riscv.nop
  riscv.nop
  %y = riscv.addi %x, 1 : (!riscv.reg<a0>) -> !riscv.reg<a1>
  riscv_pulp.yield %y : !riscv.reg<a1>
}
// CHECK: a loop-carried value changes its register: !riscv.reg<a0>, !riscv.reg<a0>, !riscv.reg<a1>, !riscv.reg<a0>

// -----

%a = "test.op"() : () -> !riscv.reg
%r = riscv_pulp.lp_setupi 0, 8 iter_args(%x = %a) -> (!riscv.reg) {
  riscv.nop
  riscv.nop
  riscv.nop
  riscv_pulp.yield
}
// CHECK: 1 initial values, 1 block arguments and 0 yielded values
