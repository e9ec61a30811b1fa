/* Every core starts here. First the fabric controller, alone: it boots the cluster and sleeps for ever. Then the cores of the
 * cluster: core 0 goes on to qf_start, the others to qf_serve. Memory is 0 but for what the program holds: the loader sees to it.
 * gp and tp are not set: nothing is linked relative to them, and generated kernels use them as registers more.
 *
 * __qf_stacks (link script) is the lowest address of the cores' stacks, core 0's first; -DQF_STACK_BYTES= each.
 */
#include "pulp_open.h"

#define PAINT 0x51ACC0DE

    .option arch, +zicsr

    .section .text.start, "ax", @progbits
    .globl _start
    .type _start, @function
_start:
    csrr a0, mhartid
    srli t0, a0, HART_CLUSTER_BIT
    li t1, FABRIC_CONTROLLER
    bne t0, t1, start_of_core

    la t0, qf_trap_entry
    csrw mtvec, t0
    li t0, ICACHE_CONTROL
    li t1, -1 /* of every core */
    sw t1, ICACHE_ENABLE(t0)
    li t0, CLUSTER_CONTROL
    la t1, _start
    .set core, 0
    .rept QF_CORES
    sw t1, CLUSTER_BOOT_ADDRESS + 4 * core(t0)
    .set core, core + 1
    .endr
    li t1, (1 << QF_CORES) - 1
    sw t1, CLUSTER_FETCH_ENABLE(t0)
1:  wfi
    j 1b

start_of_core:
    la t0, qf_trap_entry
    csrw mtvec, t0
    la t0, __qf_stacks
    li t1, QF_STACK_BYTES
    mul t2, a0, t1
    add t0, t0, t2
    add sp, t0, t1
    li t1, PAINT
1:  sw t1, 0(t0)
    addi t0, t0, 4
    bltu t0, sp, 1b
    call qf_meet_first
    csrr a0, mhartid
    bnez a0, 2f
    call qf_start
2:  call qf_serve
    .size _start, . - _start

/* Never returns. Takes the mutex, so that of several traps one is reported, and a stack that no trap can have spoilt. Exceptions
 * go to the first entry of the vector, which has 256 bytes; the others are for interrupts, which are never enabled.
 */
    .text
    .balign 256
    .globl qf_trap_entry
    .type qf_trap_entry, @function
qf_trap_entry:
    csrr a1, mcause
    csrr a2, mepc
    csrr a3, mtval
    la t0, qf_second_trap
    csrw mtvec, t0
    li t0, EVENT_UNIT
    .insn i 0x03, 6, t1, EVENT_MUTEX(t0) /* p.elw: asleep while another core has it */
    csrr a0, mhartid
    la sp, trap_stack_top
    call qf_trap
    .size qf_trap_entry, . - qf_trap_entry

    .balign 256
    .globl qf_second_trap
    .type qf_second_trap, @function
qf_second_trap: /* in the report of a trap */
    li a0, 71
    call qf_exit
    .size qf_second_trap, . - qf_second_trap

/* int32_t qf_semihost(uint32_t operation, const void *block): "RISC-V Semihosting", version 0.4, which wants the three
 * instructions uncompressed and on one page. */
    .balign 16
    .globl qf_semihost
    .type qf_semihost, @function
qf_semihost:
    .option push
    .option norvc
    slli x0, x0, 0x1f
    ebreak
    srai x0, x0, 7
    .option pop
    ret
    .size qf_semihost, . - qf_semihost

    .bss
    .balign 16
    .skip 1024
trap_stack_top:

    .section .note.GNU-stack, "", @progbits
