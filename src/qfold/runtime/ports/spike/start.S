/* Every hart starts here at once, in memory that is 0 but for what the program holds. Core 0 goes on to qf_start, the others to
 * qf_serve. gp and tp are not set: nothing is linked relative to them, and generated kernels use them as registers more.
 *
 * __qf_stacks (link script) is the lowest address of the cores' stacks, core 0's first; -DQF_STACK_BYTES= each.
 */
#define PAINT 0x51ACC0DE

    .option arch, +zicsr, +a

    .section .text.start, "ax", @progbits
    .globl _start
    .type _start, @function
_start:
    csrw mie, zero
    la t0, qf_trap_entry
    csrw mtvec, t0
    /* A software interrupt, which the simulator keeps pending, ends wfi; it is never taken, as mstatus.MIE stays 0. */
    csrsi mie, 8
#ifdef __riscv_float_abi_single
    li t0, 0x2000 /* mstatus.FS: initial */
    csrs mstatus, t0
#endif
    csrwi 0x003, 0 /* fcsr */

    csrr a0, mhartid
    la t0, __qf_stacks
    li t1, QF_STACK_BYTES
    mul t2, a0, t1
    add t0, t0, t2
    add sp, t0, t1
    li t1, PAINT
1:  sw t1, 0(t0)
    addi t0, t0, 4
    bltu t0, sp, 1b

    /* The lowest 16 bytes are a guard: region 0, by its address of 16 bytes, locked and without any permission. */
    srli t2, t2, 2
    la t0, __qf_stacks
    srli t0, t0, 2
    add t0, t0, t2
    addi t0, t0, 1
    csrw pmpaddr0, t0
    li t0, 0x98
    csrw pmpcfg0, t0

    bnez a0, 2f
    call qf_start
2:  call qf_serve
    .size _start, . - _start

/* Never returns. Takes the console, so that of several traps one is reported, and a stack that no trap can have spoilt. */
    .text
    .balign 4
    .globl qf_trap_entry
    .type qf_trap_entry, @function
qf_trap_entry:
    csrr a0, mhartid
    addi t0, a0, 1
    la t1, qf_console_owner
1:  lr.w t2, (t1)
    beq t2, t0, 2f /* this core was talking to the console when it trapped */
    bnez t2, 1b
    sc.w t2, t0, (t1)
    bnez t2, 1b
2:  csrr a1, mcause
    csrr a2, mepc
    csrr a3, mtval
    la sp, trap_stack_top
    la t0, qf_second_trap
    csrw mtvec, t0
    call qf_trap
    .balign 4
    .globl qf_second_trap
qf_second_trap: /* in the report of a trap */
    li a0, 71
    call qf_exit
    .size qf_trap_entry, . - qf_trap_entry

    .bss
    .balign 16
    .skip 1024
trap_stack_top:

    .section .note.GNU-stack, "", @progbits
