/* Known numbers of calls, of loads of each kind and of dot products. */
#include "port.h"

void kinds(const void *data);
void words(const void *data);

__asm__(".text\n.globl kinds\n.type kinds, @function\n"
        "kinds:\n"
        "lb t0, 0(a0)\nlb t0, 1(a0)\n"
        "lbu t0, 0(a0)\nlh t0, 2(a0)\nlhu t0, 2(a0)\n"
        "lw t0, 4(a0)\n"
        ".option push\n.option rvc\nlw a1, 4(a0)\n.option pop\n"
        "li t1, 5\n"
        ".option push\n.option norvc\n"
        ".insn i 0x7b, 4, x0, t1, 10\n" /* lp.setup: 5 times */
        ".insn i 0x0b, 0, t0, 1(a0)\n"  /* p.lb */
        ".insn i 0x0b, 4, t0, 1(a0)\n"  /* p.lbu */
        ".insn i 0x0b, 0, t0, 1(a0)\n"
        ".insn r 0x57, 1, 0x5c, t2, t3, t4\n" /* pv.sdotsp.b */
        ".insn r 0x57, 4, 0x44, t2, t3, t4\n" /* pv.dotusp.sc.h */
        "addi a0, a0, -15\n"
        ".insn i 0x0b, 2, t0, 4(a0)\n"           /* p.lw */
        ".insn r 0x0b, 7, 0x08, t0, a0, x0\n"    /* p.lh by a register */
        ".insn i 0x0b, 5, t0, 2(a0)\n"           /* p.lhu */
        ".insn i 0x03, 6, t0, 2(a0)\n"           /* p.elw */
        "ret\n"
        ".option pop\n"
        ".size kinds, . - kinds\n"
        ".globl words\n.type words, @function\n"
        "words:\n"
        "lw t0, 0(a0)\nlw t1, 0(a0)\n"
#ifdef __riscv_float_abi_single
        "flw fa0, 0(a0)\n"
        ".option push\n.option rvc\nflw fa0, 4(a0)\n.option pop\n"
#endif
        "ret\n"
        ".size words, . - words\n");

static const uint32_t data[16] = {1, 2, 3};

/* Core c calls words c + 1 times, the last one kinds by a pointer. */
static void (*volatile pointer)(const void *) = kinds;

static void job(void *unused) {
    (void)unused;
    for (uint32_t i = 0; i <= qf_core_id(); i++) {
        words(data);
    }
    if (qf_core_id() == qf_num_cores() - 1) {
        pointer(data);
    }
}

int qf_main(int argc, char **argv) {
    (void)argc;
    (void)argv;
    qf_fork(job, NULL);
    qf_fork(job, NULL);
    return 0;
}
