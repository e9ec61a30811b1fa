/* What the port gvsoc does that is its own: `pulp_open SCENARIO [CORE]`. */
#include "ports/bare_metal.h"
#include "ports/gvsoc/events.h"

#define EXPECT(condition)                                                                                      \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            qf_print(#condition "\n");                                                                         \
            qf_exit(1);                                                                                        \
        }                                                                                                      \
    } while (0)

static int equal(const char *a, const char *b) {
    while (*a != '\0' && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

static const char *scenario;
static uint32_t chosen;

/* ---- forks and barriers -------------------------------------------------------------------------------- */

static volatile uint32_t seen[QF_CORES];

static void count_up(void *arg) {
    uint32_t core = qf_core_id();
    EXPECT(seen[core] == *(const uint32_t *)arg);
    seen[core]++;
    qf_barrier();
    EXPECT(seen[(core + 1) % QF_CORES] == *(const uint32_t *)arg + 1);
    qf_barrier();
}

static void forks(void) {
    EXPECT(qf_core_id() == 0 && qf_num_cores() == QF_CORES);
    for (uint32_t i = 0; i < 100; i++) {
        qf_fork(count_up, &i);
    }
    for (uint32_t core = 0; core < QF_CORES; core++) {
        EXPECT(seen[core] == 100);
    }
}

/* ---- DMA ----------------------------------------------------------------------------------------------- */

enum { LARGE = 200001 };
static uint8_t from[LARGE], to[LARGE];

static void fill(void) {
    for (uint32_t i = 0; i < LARGE; i++) {
        from[i] = (uint8_t)(i * 7 + (i >> 8) + (i >> 16));
        to[i] = 0xDD;
    }
}

/* All of L1 there and back, at odd addresses: to and from L2, and in L1. */
static void whole(void *unused) {
    uint8_t *l1 = qf_l1_base();
    uint32_t bytes = qf_l1_bytes() - 8;
    (void)unused;
    if (qf_core_id() != 0) {
        return;
    }
    qf_dma_wait(qf_dma_start(l1 + 3, from + 1, bytes));
    qf_dma_wait(qf_dma_start(to + 2, l1 + 3, bytes));
    EXPECT(to[1] == 0xDD && to[bytes + 2] == 0xDD);
    for (uint32_t i = 0; i < bytes; i++) {
        EXPECT(to[i + 2] == from[i + 1]);
    }
    bytes /= 2;
    qf_dma_wait(qf_dma_start(l1 + 5 + bytes, l1 + 3, bytes));
    for (uint32_t i = 0; i < bytes; i++) {
        EXPECT(l1[i + 5 + bytes] == from[i + 1]);
    }
}

/* L2 to L2, which the engine cannot do. */
static void within_l2(void *unused) {
    (void)unused;
    if (qf_core_id() == 0) {
        qf_dma_wait(qf_dma_start(to, from, LARGE));
        for (uint32_t i = 0; i < LARGE; i++) {
            EXPECT(to[i] == from[i]);
        }
    }
}

/* More at once than the engine has counters, waited for in another order. */
static void many(void *unused) {
    enum { TRANSFERS = 21, BYTES = 37 };
    qf_dma_t ids[TRANSFERS];
    uint8_t *l1 = qf_l1_base();
    (void)unused;
    if (qf_core_id() != 0) {
        return;
    }
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < TRANSFERS; i++) {
            ids[i] = qf_dma_start(l1 + i * BYTES, from + round + i * BYTES, BYTES);
        }
        for (uint32_t i = 0; i < TRANSFERS; i++) {
            qf_dma_wait(ids[i * 5 % TRANSFERS]);
        }
        for (uint32_t i = 0; i < TRANSFERS * BYTES; i++) {
            EXPECT(l1[i] == from[round + i]);
        }
    }
}

/* ---- counters ------------------------------------------------------------------------------------------ */

static uint64_t work[QF_CORES];
static uint32_t instructions, slept;

static void one_works(void *unused) {
    uint64_t start = qf_work_count();
    (void)unused;
    if (qf_core_id() == 0) {
        qf_events_start();
        for (uint32_t i = 0; i < 1000; i++) {
            __asm__ volatile("nop\nnop\nnop\nnop");
        }
        qf_events_stop();
        instructions = QF_EVENT(QF_EVENT_INSTRUCTIONS);
    } else {
        qf_events_start();
    }
    qf_barrier();
    if (qf_core_id() == 1) {
        qf_events_stop();
        slept = QF_EVENT(QF_EVENT_CYCLES);
    }
    work[qf_core_id()] = qf_work_count() - start;
}

static void counters(void) {
    uint64_t start = qf_cycles();
    qf_fork(one_works, NULL);
    start = qf_cycles() - start;
    for (uint32_t core = 1; core < QF_CORES; core++) {
        EXPECT(work[core] < 500);
    }
    EXPECT(work[0] > 4000 && work[0] <= start && start < 20000);
    EXPECT(instructions > 4000 && instructions < 8000 && slept < 200);
}

/* ---- traps ----------------------------------------------------------------------------------------------- */

static void trap(void *unused) {
    (void)unused;
    if (qf_core_id() == chosen || equal(scenario, "all-trap")) {
        if (equal(scenario, "breakpoint")) {
            __asm__ volatile("ebreak");
        } else if (equal(scenario, "environment-call")) {
            __asm__ volatile("ecall");
        } else if (equal(scenario, "no-memory")) {
            *(volatile uint32_t *)0x50000000 = 1;
        } else if (equal(scenario, "no-code")) {
            ((void (*)(void))0x60000000)();
        } else {
            __asm__ volatile(".word 0xFFFFFFFF");
        }
    }
    qf_barrier();
}

static void chosen_exits(void *unused) {
    (void)unused;
    if (qf_core_id() == chosen) {
        qf_exit(9);
    }
    qf_barrier();
}

/* ---- stacks ---------------------------------------------------------------------------------------------- */

/* Writes `bytes` bytes of the stack, in steps of frames. */
__attribute__((noinline)) static uint32_t use_stack(uint32_t bytes) {
    uint32_t frame[16] = {bytes};
    __asm__ volatile("" : : "r"(frame) : "memory");
    if (bytes > sizeof frame) {
        frame[1] = use_stack(bytes - (uint32_t)sizeof frame);
    }
    return frame[0];
}

static void chosen_uses_stack(void *arg) {
    if (qf_core_id() == chosen) {
        use_stack(*(const uint32_t *)arg);
    }
}

static void stacks(uint32_t bytes) {
    qf_fork(chosen_uses_stack, &bytes);
    for (uint32_t core = 0; core < QF_CORES; core++) {
        EXPECT(qf_stack_bytes(core) == QF_STACK_BYTES);
        EXPECT((qf_stack_used(core) >= bytes) == (core == chosen));
    }
}

int qf_main(int argc, char **argv) {
    scenario = argc > 1 ? argv[1] : "";
    chosen = argc > 2 ? (uint32_t)(argv[2][0] - '0') : 0;
    if (equal(scenario, "forks")) {
        forks();
    } else if (equal(scenario, "transfers")) {
        fill();
        qf_fork(whole, NULL);
        qf_fork(within_l2, NULL);
        qf_fork(many, NULL);
    } else if (equal(scenario, "counters")) {
        counters();
    } else if (equal(scenario, "stack")) {
        stacks(QF_STACK_BYTES / 2);
    } else if (equal(scenario, "stack-overflow")) {
        uint32_t bytes = QF_STACK_BYTES + 64;
        qf_fork(chosen_uses_stack, &bytes);
    } else if (equal(scenario, "exit")) {
        qf_fork(chosen_exits, NULL);
    } else if (equal(scenario, "for-ever")) {
        qf_print("begins\n");
        for (;;) {
            __asm__ volatile("");
        }
    } else {
        qf_fork(trap, NULL);
    }
    return 0;
}
