// RUN: qfold-opt %s | qfold-opt | filecheck %s
// RUN: qfold-opt %s --print-op-generic | qfold-opt | filecheck %s
// RUN: qfold-opt %s -t riscv-pulp-asm | filecheck %s --check-prefix=ASM
// RUN: qfold-opt %s -t 'riscv-pulp-asm{insn=true}' | filecheck %s --check-prefix=INSN

// ASM:      .option norvc
// ASM-NEXT: .option norelax
// INSN:      .option norvc
// INSN-NEXT: .option norelax

%a0 = rv32.get_register : !riscv.reg<a0>
%a1 = rv32.get_register : !riscv.reg<a1>
%a2 = rv32.get_register : !riscv.reg<a2>

%r0, %p1 = riscv_pulp.lb_post %a0, -4 : (!riscv.reg<a0>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// CHECK: %{{[^ ]+}}, %{{[^ ]+}} = riscv_pulp.lb_post %{{[^ ]+}}, -4 : (!riscv.reg<a0>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// ASM-NEXT: p.lb a3, -4(a0!)
// INSN-NEXT: .insn i 0xb, 0, a3, -4(a0)

%r1, %p2 = riscv_pulp.lb_post_reg %p1, %a1 : (!riscv.reg<a0>, !riscv.reg<a1>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// CHECK: %{{[^ ]+}}, %{{[^ ]+}} = riscv_pulp.lb_post_reg %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a0>, !riscv.reg<a1>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// ASM-NEXT: p.lb a3, a1(a0!)
// INSN-NEXT: .insn r 0xb, 7, 0x0, a3, a0, a1

%r2, %p3 = riscv_pulp.lbu_post %p2, -4 : (!riscv.reg<a0>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// CHECK: %{{[^ ]+}}, %{{[^ ]+}} = riscv_pulp.lbu_post %{{[^ ]+}}, -4 : (!riscv.reg<a0>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// ASM-NEXT: p.lbu a3, -4(a0!)
// INSN-NEXT: .insn i 0xb, 4, a3, -4(a0)

%r3, %p4 = riscv_pulp.lbu_post_reg %p3, %a1 : (!riscv.reg<a0>, !riscv.reg<a1>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// CHECK: %{{[^ ]+}}, %{{[^ ]+}} = riscv_pulp.lbu_post_reg %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a0>, !riscv.reg<a1>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// ASM-NEXT: p.lbu a3, a1(a0!)
// INSN-NEXT: .insn r 0xb, 7, 0x20, a3, a0, a1

%r4, %p5 = riscv_pulp.lh_post %p4, -4 : (!riscv.reg<a0>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// CHECK: %{{[^ ]+}}, %{{[^ ]+}} = riscv_pulp.lh_post %{{[^ ]+}}, -4 : (!riscv.reg<a0>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// ASM-NEXT: p.lh a3, -4(a0!)
// INSN-NEXT: .insn i 0xb, 1, a3, -4(a0)

%r5, %p6 = riscv_pulp.lh_post_reg %p5, %a1 : (!riscv.reg<a0>, !riscv.reg<a1>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// CHECK: %{{[^ ]+}}, %{{[^ ]+}} = riscv_pulp.lh_post_reg %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a0>, !riscv.reg<a1>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// ASM-NEXT: p.lh a3, a1(a0!)
// INSN-NEXT: .insn r 0xb, 7, 0x8, a3, a0, a1

%r6, %p7 = riscv_pulp.lhu_post %p6, -4 : (!riscv.reg<a0>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// CHECK: %{{[^ ]+}}, %{{[^ ]+}} = riscv_pulp.lhu_post %{{[^ ]+}}, -4 : (!riscv.reg<a0>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// ASM-NEXT: p.lhu a3, -4(a0!)
// INSN-NEXT: .insn i 0xb, 5, a3, -4(a0)

%r7, %p8 = riscv_pulp.lhu_post_reg %p7, %a1 : (!riscv.reg<a0>, !riscv.reg<a1>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// CHECK: %{{[^ ]+}}, %{{[^ ]+}} = riscv_pulp.lhu_post_reg %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a0>, !riscv.reg<a1>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// ASM-NEXT: p.lhu a3, a1(a0!)
// INSN-NEXT: .insn r 0xb, 7, 0x28, a3, a0, a1

%r8, %p9 = riscv_pulp.lw_post %p8, -4 : (!riscv.reg<a0>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// CHECK: %{{[^ ]+}}, %{{[^ ]+}} = riscv_pulp.lw_post %{{[^ ]+}}, -4 : (!riscv.reg<a0>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// ASM-NEXT: p.lw a3, -4(a0!)
// INSN-NEXT: .insn i 0xb, 2, a3, -4(a0)

%r9, %p10 = riscv_pulp.lw_post_reg %p9, %a1 : (!riscv.reg<a0>, !riscv.reg<a1>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// CHECK: %{{[^ ]+}}, %{{[^ ]+}} = riscv_pulp.lw_post_reg %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a0>, !riscv.reg<a1>) -> (!riscv.reg<a3>, !riscv.reg<a0>)
// ASM-NEXT: p.lw a3, a1(a0!)
// INSN-NEXT: .insn r 0xb, 7, 0x10, a3, a0, a1

%p11 = riscv_pulp.sb_post %p10, %a2, 2047 : (!riscv.reg<a0>, !riscv.reg<a2>) -> !riscv.reg<a0>
// CHECK: %{{[^ ]+}} = riscv_pulp.sb_post %{{[^ ]+}}, %{{[^ ]+}}, 2047 : (!riscv.reg<a0>, !riscv.reg<a2>) -> !riscv.reg<a0>
// ASM-NEXT: p.sb a2, 2047(a0!)
// INSN-NEXT: .insn s 0x2b, 0, a2, 2047(a0)

%p12 = riscv_pulp.sb_post_reg %p11, %a2, %a1 : (!riscv.reg<a0>, !riscv.reg<a2>, !riscv.reg<a1>) -> !riscv.reg<a0>
// CHECK: %{{[^ ]+}} = riscv_pulp.sb_post_reg %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a0>, !riscv.reg<a2>, !riscv.reg<a1>) -> !riscv.reg<a0>
// ASM-NEXT: p.sb a2, a1(a0!)
// INSN-NEXT: .insn r 0x2b, 4, 0x0, a1, a0, a2

%p13 = riscv_pulp.sh_post %p12, %a2, 2047 : (!riscv.reg<a0>, !riscv.reg<a2>) -> !riscv.reg<a0>
// CHECK: %{{[^ ]+}} = riscv_pulp.sh_post %{{[^ ]+}}, %{{[^ ]+}}, 2047 : (!riscv.reg<a0>, !riscv.reg<a2>) -> !riscv.reg<a0>
// ASM-NEXT: p.sh a2, 2047(a0!)
// INSN-NEXT: .insn s 0x2b, 1, a2, 2047(a0)

%p14 = riscv_pulp.sh_post_reg %p13, %a2, %a1 : (!riscv.reg<a0>, !riscv.reg<a2>, !riscv.reg<a1>) -> !riscv.reg<a0>
// CHECK: %{{[^ ]+}} = riscv_pulp.sh_post_reg %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a0>, !riscv.reg<a2>, !riscv.reg<a1>) -> !riscv.reg<a0>
// ASM-NEXT: p.sh a2, a1(a0!)
// INSN-NEXT: .insn r 0x2b, 5, 0x0, a1, a0, a2

%p15 = riscv_pulp.sw_post %p14, %a2, 2047 : (!riscv.reg<a0>, !riscv.reg<a2>) -> !riscv.reg<a0>
// CHECK: %{{[^ ]+}} = riscv_pulp.sw_post %{{[^ ]+}}, %{{[^ ]+}}, 2047 : (!riscv.reg<a0>, !riscv.reg<a2>) -> !riscv.reg<a0>
// ASM-NEXT: p.sw a2, 2047(a0!)
// INSN-NEXT: .insn s 0x2b, 2, a2, 2047(a0)

%p16 = riscv_pulp.sw_post_reg %p15, %a2, %a1 : (!riscv.reg<a0>, !riscv.reg<a2>, !riscv.reg<a1>) -> !riscv.reg<a0>
// CHECK: %{{[^ ]+}} = riscv_pulp.sw_post_reg %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a0>, !riscv.reg<a2>, !riscv.reg<a1>) -> !riscv.reg<a0>
// ASM-NEXT: p.sw a2, a1(a0!)
// INSN-NEXT: .insn r 0x2b, 6, 0x0, a1, a0, a2

%nlb = riscv_pulp.lb %a1, 8 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.lb %{{[^ ]+}}, 8 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// ASM-NEXT: lb a3, 8(a1)
// INSN-NEXT: lb a3, 8(a1)

%nlbu = riscv_pulp.lbu %a1, 8 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.lbu %{{[^ ]+}}, 8 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// ASM-NEXT: lbu a3, 8(a1)
// INSN-NEXT: lbu a3, 8(a1)

%nlh = riscv_pulp.lh %a1, 8 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.lh %{{[^ ]+}}, 8 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// ASM-NEXT: lh a3, 8(a1)
// INSN-NEXT: lh a3, 8(a1)

%nlhu = riscv_pulp.lhu %a1, 8 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.lhu %{{[^ ]+}}, 8 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// ASM-NEXT: lhu a3, 8(a1)
// INSN-NEXT: lhu a3, 8(a1)

riscv_pulp.sb %a1, %a2, 8 : (!riscv.reg<a1>, !riscv.reg<a2>) -> ()
// CHECK: riscv_pulp.sb %{{[^ ]+}}, %{{[^ ]+}}, 8 : (!riscv.reg<a1>, !riscv.reg<a2>) -> ()
// ASM-NEXT: sb a2, 8(a1)
// INSN-NEXT: sb a2, 8(a1)

riscv_pulp.sh %a1, %a2, 8 : (!riscv.reg<a1>, !riscv.reg<a2>) -> ()
// CHECK: riscv_pulp.sh %{{[^ ]+}}, %{{[^ ]+}}, 8 : (!riscv.reg<a1>, !riscv.reg<a2>) -> ()
// ASM-NEXT: sh a2, 8(a1)
// INSN-NEXT: sh a2, 8(a1)

%elw = riscv_pulp.elw %a1, 28 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.elw %{{[^ ]+}}, 28 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// ASM-NEXT: p.elw a3, 28(a1)
// INSN-NEXT: .insn i 0x3, 6, a3, 28(a1)

%abs = riscv_pulp.abs %a1 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.abs %{{[^ ]+}} : (!riscv.reg<a1>) -> !riscv.reg<a3>
// ASM-NEXT: p.abs a3, a1
// INSN-NEXT: .insn r 0x33, 0, 0x2, a3, a1, x0

%min = riscv_pulp.min %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.min %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: p.min a3, a1, a2
// INSN-NEXT: .insn r 0x33, 4, 0x2, a3, a1, a2

%minu = riscv_pulp.minu %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.minu %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: p.minu a3, a1, a2
// INSN-NEXT: .insn r 0x33, 5, 0x2, a3, a1, a2

%max = riscv_pulp.max %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.max %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: p.max a3, a1, a2
// INSN-NEXT: .insn r 0x33, 6, 0x2, a3, a1, a2

%maxu = riscv_pulp.maxu %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.maxu %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: p.maxu a3, a1, a2
// INSN-NEXT: .insn r 0x33, 7, 0x2, a3, a1, a2

%clip = riscv_pulp.clip %a1, 8 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.clip %{{[^ ]+}}, 8 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// ASM-NEXT: p.clip a3, a1, 8
// INSN-NEXT: .insn r 0x33, 1, 0xa, a3, a1, x8

%clipu = riscv_pulp.clipu %a1, 8 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.clipu %{{[^ ]+}}, 8 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// ASM-NEXT: p.clipu a3, a1, 8
// INSN-NEXT: .insn r 0x33, 2, 0xa, a3, a1, x8

%addn = riscv_pulp.addn %a1, %a2, 14 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.addn %{{[^ ]+}}, %{{[^ ]+}}, 14 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: p.addn a3, a1, a2, 14
// INSN-NEXT: .insn r 0x5b, 2, 0xe, a3, a1, a2

%extract = riscv_pulp.extract %a1, 7, 16 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.extract %{{[^ ]+}}, 7, 16 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// ASM-NEXT: p.extract a3, a1, 7, 16
// INSN-NEXT: .insn r 0x33, 0, 0x67, a3, a1, x16

%extractu = riscv_pulp.extractu %a1, 7, 16 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.extractu %{{[^ ]+}}, 7, 16 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// ASM-NEXT: p.extractu a3, a1, 7, 16
// INSN-NEXT: .insn r 0x33, 1, 0x67, a3, a1, x16

%bclr = riscv_pulp.bclr %a1, 7, 16 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.bclr %{{[^ ]+}}, 7, 16 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// ASM-NEXT: p.bclr a3, a1, 7, 16
// INSN-NEXT: .insn r 0x33, 3, 0x67, a3, a1, x16

%bset = riscv_pulp.bset %a1, 7, 16 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.bset %{{[^ ]+}}, 7, 16 : (!riscv.reg<a1>) -> !riscv.reg<a3>
// ASM-NEXT: p.bset a3, a1, 7, 16
// INSN-NEXT: .insn r 0x33, 4, 0x67, a3, a1, x16

%acc0 = rv32.li 0 : !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = rv32.li 0 : !riscv.reg<a3>
// ASM-NEXT: li a3, 0
// INSN-NEXT: li a3, 0

%acc1 = riscv_pulp.insert %acc0, %a1, 7, 15 : (!riscv.reg<a3>, !riscv.reg<a1>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.insert %{{[^ ]+}}, %{{[^ ]+}}, 7, 15 : (!riscv.reg<a3>, !riscv.reg<a1>) -> !riscv.reg<a3>
// ASM-NEXT: p.insert a3, a1, 7, 15
// INSN-NEXT: .insn r 0x33, 2, 0x67, a3, a1, x15

%acc2 = riscv_pulp.mac %acc1, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.mac %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: p.mac a3, a1, a2
// INSN-NEXT: .insn r 0x33, 0, 0x21, a3, a1, a2

%acc3 = riscv_pulp.msu %acc2, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.msu %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: p.msu a3, a1, a2
// INSN-NEXT: .insn r 0x33, 1, 0x21, a3, a1, a2

%dotup_h = riscv_pulp.dotup.h %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.dotup.h %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.dotup.h a3, a1, a2
// INSN-NEXT: .insn r 0x57, 0, 0x40, a3, a1, a2

%dotup_b = riscv_pulp.dotup.b %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.dotup.b %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.dotup.b a3, a1, a2
// INSN-NEXT: .insn r 0x57, 1, 0x40, a3, a1, a2

%dotup_sc_h = riscv_pulp.dotup.sc.h %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.dotup.sc.h %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.dotup.sc.h a3, a1, a2
// INSN-NEXT: .insn r 0x57, 4, 0x40, a3, a1, a2

%dotup_sc_b = riscv_pulp.dotup.sc.b %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.dotup.sc.b %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.dotup.sc.b a3, a1, a2
// INSN-NEXT: .insn r 0x57, 5, 0x40, a3, a1, a2

%dotusp_h = riscv_pulp.dotusp.h %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.dotusp.h %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.dotusp.h a3, a1, a2
// INSN-NEXT: .insn r 0x57, 0, 0x44, a3, a1, a2

%dotusp_b = riscv_pulp.dotusp.b %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.dotusp.b %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.dotusp.b a3, a1, a2
// INSN-NEXT: .insn r 0x57, 1, 0x44, a3, a1, a2

%dotusp_sc_h = riscv_pulp.dotusp.sc.h %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.dotusp.sc.h %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.dotusp.sc.h a3, a1, a2
// INSN-NEXT: .insn r 0x57, 4, 0x44, a3, a1, a2

%dotusp_sc_b = riscv_pulp.dotusp.sc.b %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.dotusp.sc.b %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.dotusp.sc.b a3, a1, a2
// INSN-NEXT: .insn r 0x57, 5, 0x44, a3, a1, a2

%dotsp_h = riscv_pulp.dotsp.h %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.dotsp.h %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.dotsp.h a3, a1, a2
// INSN-NEXT: .insn r 0x57, 0, 0x4c, a3, a1, a2

%dotsp_b = riscv_pulp.dotsp.b %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.dotsp.b %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.dotsp.b a3, a1, a2
// INSN-NEXT: .insn r 0x57, 1, 0x4c, a3, a1, a2

%dotsp_sc_h = riscv_pulp.dotsp.sc.h %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.dotsp.sc.h %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.dotsp.sc.h a3, a1, a2
// INSN-NEXT: .insn r 0x57, 4, 0x4c, a3, a1, a2

%dotsp_sc_b = riscv_pulp.dotsp.sc.b %a1, %a2 : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.dotsp.sc.b %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.dotsp.sc.b a3, a1, a2
// INSN-NEXT: .insn r 0x57, 5, 0x4c, a3, a1, a2

%acc4 = riscv_pulp.sdotup.h %acc3, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.sdotup.h %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.sdotup.h a3, a1, a2
// INSN-NEXT: .insn r 0x57, 0, 0x50, a3, a1, a2

%acc5 = riscv_pulp.sdotup.b %acc4, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.sdotup.b %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.sdotup.b a3, a1, a2
// INSN-NEXT: .insn r 0x57, 1, 0x50, a3, a1, a2

%acc6 = riscv_pulp.sdotup.sc.h %acc5, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.sdotup.sc.h %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.sdotup.sc.h a3, a1, a2
// INSN-NEXT: .insn r 0x57, 4, 0x50, a3, a1, a2

%acc7 = riscv_pulp.sdotup.sc.b %acc6, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.sdotup.sc.b %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.sdotup.sc.b a3, a1, a2
// INSN-NEXT: .insn r 0x57, 5, 0x50, a3, a1, a2

%acc8 = riscv_pulp.sdotusp.h %acc7, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.sdotusp.h %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.sdotusp.h a3, a1, a2
// INSN-NEXT: .insn r 0x57, 0, 0x54, a3, a1, a2

%acc9 = riscv_pulp.sdotusp.b %acc8, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.sdotusp.b %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.sdotusp.b a3, a1, a2
// INSN-NEXT: .insn r 0x57, 1, 0x54, a3, a1, a2

%acc10 = riscv_pulp.sdotusp.sc.h %acc9, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.sdotusp.sc.h %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.sdotusp.sc.h a3, a1, a2
// INSN-NEXT: .insn r 0x57, 4, 0x54, a3, a1, a2

%acc11 = riscv_pulp.sdotusp.sc.b %acc10, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.sdotusp.sc.b %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.sdotusp.sc.b a3, a1, a2
// INSN-NEXT: .insn r 0x57, 5, 0x54, a3, a1, a2

%acc12 = riscv_pulp.sdotsp.h %acc11, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.sdotsp.h %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.sdotsp.h a3, a1, a2
// INSN-NEXT: .insn r 0x57, 0, 0x5c, a3, a1, a2

%acc13 = riscv_pulp.sdotsp.b %acc12, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.sdotsp.b %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.sdotsp.b a3, a1, a2
// INSN-NEXT: .insn r 0x57, 1, 0x5c, a3, a1, a2

%acc14 = riscv_pulp.sdotsp.sc.h %acc13, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.sdotsp.sc.h %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.sdotsp.sc.h a3, a1, a2
// INSN-NEXT: .insn r 0x57, 4, 0x5c, a3, a1, a2

%acc15 = riscv_pulp.sdotsp.sc.b %acc14, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// CHECK: %{{[^ ]+}} = riscv_pulp.sdotsp.sc.b %{{[^ ]+}}, %{{[^ ]+}}, %{{[^ ]+}} : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
// ASM-NEXT: pv.sdotsp.sc.b a3, a1, a2
// INSN-NEXT: .insn r 0x57, 5, 0x5c, a3, a1, a2

// A loop in a loop; both forms. The label stands before the last instruction of the body.
%n = rv32.get_register : !riscv.reg<a4>
%out = riscv_pulp.lp_setup 1, %n : !riscv.reg<a4> iter_args(%o = %acc15) -> (!riscv.reg<a3>) {
  %in = riscv_pulp.lp_setupi 0, 4000 iter_args(%i = %o) -> (!riscv.reg<a3>) {
    %i1 = riscv_pulp.mac %i, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
    %i2 = riscv_pulp.mac %i1, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
    %i3 = riscv_pulp.mac %i2, %a1, %a2 : (!riscv.reg<a3>, !riscv.reg<a1>, !riscv.reg<a2>) -> !riscv.reg<a3>
    riscv_pulp.yield %i3 : !riscv.reg<a3>
  }
  %o1 = riscv.addi %in, 1 : (!riscv.reg<a3>) -> !riscv.reg<a3>
  %o2 = riscv.addi %o1, 2 : (!riscv.reg<a3>) -> !riscv.reg<a3>
  riscv_pulp.yield %o2 : !riscv.reg<a3>
}
// CHECK:      %{{[^ ]+}} = riscv_pulp.lp_setup 1, %{{[^ ]+}} : !riscv.reg<a4> iter_args(%{{[^ ]+}} = %{{[^ ]+}}) -> (!riscv.reg<a3>) {
// CHECK-NEXT:   %{{[^ ]+}} = riscv_pulp.lp_setupi 0, 4000 iter_args(%{{[^ ]+}} = %{{[^ ]+}}) -> (!riscv.reg<a3>) {
// CHECK:          riscv_pulp.yield %{{[^ ]+}} : !riscv.reg<a3>
// ASM-NEXT: lp.setup x1, a4, .Lpulp_loop_end_0
// ASM-NEXT: lp.setupi x0, 4000, .Lpulp_loop_end_1
// ASM-NEXT: p.mac a3, a1, a2
// ASM-NEXT: p.mac a3, a1, a2
// ASM-NEXT: .Lpulp_loop_end_1:
// ASM-NEXT: p.mac a3, a1, a2
// ASM-NEXT: addi a3, a3, 1
// ASM-NEXT: .Lpulp_loop_end_0:
// ASM-NEXT: addi a3, a3, 2
// INSN-NEXT: .insn i 0x7b, 4, x1, a4, 12
// INSN-NEXT: .insn i 0x7b, 5, x0, x6, -96
// INSN-NEXT: .insn r 0x33, 0, 0x21, a3, a1, a2
// INSN-COUNT-2: .insn r 0x33, 0, 0x21, a3, a1, a2
// INSN-NEXT: addi a3, a3, 1
// INSN-NEXT: addi a3, a3, 2

// Without loop-carried values, with an attribute; the terminator is implied.
riscv_pulp.lp_setupi 1, 2 attributes {comment = "idle"} {
  riscv.nop
  riscv.nop
  riscv.nop
}
// CHECK:      riscv_pulp.lp_setupi 1, 2 attributes {comment = "idle"} {
// CHECK-NEXT:   riscv.nop
// CHECK-NEXT:   riscv.nop
// CHECK-NEXT:   riscv.nop
// CHECK-NEXT: }
// ASM-NEXT: lp.setupi x1, 2, .Lpulp_loop_end_2 {{ *}}# idle
// INSN-NEXT: .insn i 0x7b, 5, x1, x6, 2 {{ *}}# idle
