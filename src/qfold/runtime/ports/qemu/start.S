/* Where Linux enters the program: sp points at argc, and argv is behind it. gp is not set: nothing is linked relative to it, and
 * generated kernels use it as one register more. */
#include "stack.h"

    .text
    .globl _start
    .type _start, @function
_start:
    mv a0, sp
    la sp, qf_stack_top
    la t0, qf_stack
    li t1, STACK_PAINT
1:  sw t1, 0(t0)
    addi t0, t0, 4
    bltu t0, sp, 1b
    call qf_start
    .size _start, . - _start

    .bss
    .balign STACK_PAGE
    .globl qf_stack_guard, qf_stack, qf_stack_top
qf_stack_guard:
    .zero STACK_PAGE
qf_stack:
    .zero QF_STACK_BYTES
qf_stack_top:

    .section .note.GNU-stack,"",@progbits
