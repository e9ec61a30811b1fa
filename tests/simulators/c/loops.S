/* Hardware loops: f(n, m) returns in a0 what the bodies counted, and in a1 the instructions between two readings of minstret.
 * The end of lp.setup (0x7b, 4) and lp.setupi (0x7b, 5), in half words from the setup, is the body's last instruction. */
    .option norvc
    .text

.macro function name
    .globl \name
    .type \name, @function
\name:
.endm

.macro begin
    mv t0, a0
    li a0, 0
    csrr t6, minstret
.endm

.macro end
    csrr t5, minstret
    sub a1, t5, t6
    ret
.endm

function single /* n times 3 */
    begin
    .insn i 0x7b, 4, x0, t0, 6
    addi a0, a0, 1
    addi a0, a0, 2
    addi a0, a0, 4
    end
    .size single, . - single

function outer_level /* the same with the other registers */
    begin
    .insn i 0x7b, 4, x1, t0, 6
    addi a0, a0, 1
    addi a0, a0, 2
    addi a0, a0, 4
    end
    .size outer_level, . - outer_level

function immediate /* 5 times 4 */
    begin
    .insn i 0x7b, 5, x0, x8, 5
    addi a0, a0, 1
    addi a0, a0, 1
    addi a0, a0, 1
    addi a0, a0, 1
    end
    .size immediate, . - immediate

function nested /* n times (1 + setup + m times 3 + 2) */
    begin
    .insn i 0x7b, 4, x1, t0, 14
    addi a0, a0, 1
    .insn i 0x7b, 4, x0, a1, 6
    addi a0, a0, 0x10
    addi a0, a0, 0x10
    addi a0, a0, 0x10
    addi a0, a0, 0x100
    addi a0, a0, 0x100
    end
    .size nested, . - nested

function twice /* two loops one after the other in the body of a third */
    begin
    .insn i 0x7b, 4, x1, t0, 20
    .insn i 0x7b, 4, x0, a1, 6
    addi a0, a0, 1
    addi a0, a0, 1
    addi a0, a0, 1
    .insn i 0x7b, 5, x0, x6, 2
    addi a0, a0, 0x10
    addi a0, a0, 0x10
    addi a0, a0, 0x10
    addi a0, a0, 0x100
    addi a0, a0, 0x100
    end
    .size twice, . - twice

/* What may not be: f(n, address). The label is where the trap is. */

.macro broken name, instruction:vararg
function \name
    mv t0, a0
    .insn i 0x7b, 4, x0, t0, 8
    nop
    \instruction
    nop
    nop
    ret
    .size \name, . - \name
.endm

    broken loads, lw t1, 0(a1)
    broken stores, sw t1, 0(a1)
    broken post_increment, .insn i 0x0b, 2, t1, 4(a1)
    broken branches, beq x0, x0, . + 4
    broken jumps, j . + 4
    broken calls, jalr t1, 0(a1)
    broken reads_csr, csrr t1, mhartid
    broken reads_counter, csrr t1, minstret
    broken fences, fence
    broken waits, wfi
    broken asks, ecall
    broken sleeps, .insn i 0x03, 6, t1, 0(sp)
    broken loops_again, .insn i 0x7b, 4, x0, t0, 6

function loads_in_the_inner
    .insn i 0x7b, 4, x1, a0, 18
    addi t0, t0, 1
    .insn i 0x7b, 5, x0, x8, 100
    addi t0, t0, 1
    addi t0, t0, 1
    lw t1, 0(a1)
    addi a1, a1, 1024
    nop
    nop
    nop
    ret
    .size loads_in_the_inner, . - loads_in_the_inner

function short_body
    .insn i 0x7b, 4, x0, a0, 4
    nop
    nop
    ret
    .size short_body, . - short_body

function too_close /* one instruction of the outer body is left after the inner one */
    .insn i 0x7b, 4, x1, a0, 10
    .insn i 0x7b, 4, x0, a0, 6
    nop
    nop
    nop
    nop
    ret
    .size too_close, . - too_close

function no_such_level
    .insn i 0x7b, 4, x2, a0, 6
    nop
    nop
    nop
    ret
    .size no_such_level, . - no_such_level

function short_instruction
    .insn i 0x7b, 4, x0, a0, 6
    nop
    .option rvc
    c.nop
    c.nop
    .option norvc
    nop
    ret
    .size short_instruction, . - short_instruction

function same_register /* the loaded value and the pointer */
    .insn i 0x0b, 2, a1, 4(a1)
    ret
    .size same_register, . - same_register

function long_field /* bits 16 to 32 */
    .insn r 0x33, 0, 0x70, a0, a1, x16
    ret
    .size long_field, . - long_field

    .section .note.GNU-stack, "", @progbits
