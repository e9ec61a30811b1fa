/* What is counted, and how several cores come to an end: `waiting SCENARIO`. */
#include "port.h"

static uint64_t work[QF_CORES];
static uint32_t bytes;
static uint64_t elapsed;

/* `rounds` times three instructions. */
static void spin(uint32_t rounds) {
    if (rounds > 0) {
        __asm__ volatile("1: addi %0, %0, -1\nnop\nbnez %0, 1b" : "+r"(rounds));
    }
}

static void barriers(void *unused) {
    uint64_t start = qf_work_count();
    (void)unused;
    spin(qf_core_id() * 1000);
    qf_barrier();
    work[qf_core_id()] = qf_work_count() - start;
}

static void dma(void *unused) {
    static uint8_t source[4096];
    (void)unused;
    if (qf_core_id() == 0) {
        uint64_t cycles = qf_cycles();
        uint64_t start = qf_work_count();
        qf_dma_wait(qf_dma_start(qf_l1_base(), source, bytes));
        work[0] = qf_work_count() - start;
        elapsed = qf_cycles() - cycles;
    }
}

static void print(void *unused) {
    char text[] = "core0\n";
    (void)unused;
    text[4] = (char)('0' + qf_core_id());
    for (int i = 0; i < 20; i++) {
        qf_print(text);
    }
}

static void traps(void *unused) {
    (void)unused;
    *(volatile uint32_t *)(uintptr_t)(0x40000000u + 4096 * qf_core_id()) = 1;
}

static void hang(void *unused) {
    (void)unused;
    for (;;) {
        spin(1000);
    }
}

int qf_main(int argc, char **argv) {
    switch (argc > 1 ? argv[1][0] : '?') {
    case 'b':
        qf_fork(barriers, NULL);
        for (uint32_t core = 0; core < QF_CORES; core++) {
            qf_print_unsigned(work[core]);
            qf_print("\n");
        }
        return 0;
    case 'd':
        bytes = argv[2][0] == '6' ? 64 : 4096;
        qf_fork(dma, NULL);
        qf_print_unsigned(work[0]);
        qf_print(" ");
        qf_print_unsigned(elapsed);
        return 0;
    case 'p':
        qf_fork(print, NULL);
        return 0;
    case 't':
        qf_fork(traps, NULL);
        return 1;
    case 'h':
        qf_fork(hang, NULL);
        return 1;
    default:
        return 1;
    }
}
