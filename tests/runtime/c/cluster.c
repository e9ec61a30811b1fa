/* What a program may expect of cores, barriers, forks and DMA: `cluster SCENARIO` returns 0 when it holds. */
#include "port.h"

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

static uint32_t seen[QF_CORES], shared_value;

/* ---- many forks: the same cores, what one fork writes the next one sees --------------------------------- */

#if defined(__linux__)
static __thread char local;
#else
static char local;
#endif
static void *locals[QF_CORES];

static void count_fork(void *arg) {
    uint32_t core = qf_core_id();
    EXPECT(core < qf_num_cores());
    EXPECT(seen[core] == *(const uint32_t *)arg);
    EXPECT(locals[core] == NULL || locals[core] == &local);
    locals[core] = &local;
    seen[core]++;
}

static void forks(void) {
    for (uint32_t i = 0; i < 500; i++) {
        qf_fork(count_fork, &i);
        for (uint32_t core = 0; core < QF_CORES; core++) {
            EXPECT(seen[core] == i + 1);
        }
    }
    EXPECT(qf_core_id() == 0 && qf_num_cores() == QF_CORES);
#if defined(__linux__)
    for (uint32_t core = 1; core < QF_CORES; core++) {
        EXPECT(locals[core] != locals[core - 1]);
    }
#endif
}

/* ---- barriers: all have written before any reads --------------------------------------------------------- */

static void write_and_read(void *unused) {
    (void)unused;
    for (uint32_t phase = 1; phase <= 100; phase++) {
        seen[qf_core_id()] = phase;
        qf_barrier();
        for (uint32_t core = 0; core < QF_CORES; core++) {
            EXPECT(seen[core] == phase);
        }
        qf_barrier();
    }
}

#ifdef __linux__
/* All cores are here, without telling ThreadSanitizer: relaxed accesses order nothing. */
static void meet(void) {
    static uint32_t here[QF_CORES];
    __atomic_store_n(&here[qf_core_id()], 1, __ATOMIC_RELAXED);
    for (uint32_t core = 0; core < QF_CORES; core++) {
        while (__atomic_load_n(&here[core], __ATOMIC_RELAXED) == 0) {
            qf_cycles();
        }
    }
}
#endif

static void no_barrier(void *unused) {
    (void)unused;
#ifdef __linux__
    meet();
#endif
    if (qf_core_id() == 0) {
        shared_value = 1;
    }
    /* qf_barrier() is missing here */
    seen[qf_core_id()] = shared_value;
}

static void unequal_barriers(void *unused) {
    (void)unused;
    if (qf_core_id() != QF_CORES - 1) {
        qf_barrier();
    }
}

static void last_core_exits(void *unused) {
    (void)unused;
    if (qf_core_id() == QF_CORES - 1) {
        qf_exit(9);
    }
    qf_barrier();
}

/* ---- DMA: every stride, both directions, shared with a barrier ------------------------------------------- */

#define SIDE 512
static uint8_t source[SIDE], result[SIDE];

/* Copies by way of L1 and compares with `rows` copies; every byte between rows keeps its value. */
static void copy(uint32_t row_bytes, uint32_t rows, uint32_t l2_stride, uint32_t l1_stride, uint32_t misaligned) {
    uint8_t *l1 = (uint8_t *)qf_l1_base() + misaligned;
    if (qf_core_id() == 0) {
        qf_dma_t in, out;
        for (uint32_t i = 0; i < SIDE; i++) {
            l1[i] = 0xEE;
            result[i] = 0xDD;
        }
        in = qf_dma_start_2d(l1, source, row_bytes, rows, l1_stride, l2_stride);
        qf_dma_wait(in);
        out = qf_dma_start_2d(result, l1, row_bytes, rows, l2_stride, l1_stride);
        qf_dma_wait(out);
    }
    qf_barrier();
    for (uint32_t i = 0; i < SIDE; i++) {
        uint32_t in_l1 = rows > 0 && i < rows * l1_stride && i % l1_stride < row_bytes;
        uint32_t in_l2 = rows > 0 && i < rows * l2_stride && i % l2_stride < row_bytes;
        EXPECT(l1[i] == (in_l1 ? source[i / l1_stride * l2_stride + i % l1_stride] : 0xEE));
        EXPECT(result[i] == (in_l2 ? source[i] : 0xDD));
    }
    qf_barrier();
}

static void transfers(void *unused) {
    static const uint32_t widths[] = {0, 1, 3, 4, 17, 64};
    (void)unused;
    for (uint32_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        uint32_t width = widths[w];
        for (uint32_t rows = 0; rows <= 4; rows++) {
            for (uint32_t gap = 0; gap < 4; gap++) {
                copy(width, rows, width + 1 + gap, width + 1, gap);
                copy(width, rows, width + 1, width + 1 + gap * 7, 0);
            }
            if (width > 0) {
                copy(width, rows, width, width, rows);
            }
        }
    }
    if (qf_core_id() == 0) { /* two under way, waited for the other way round */
        uint8_t *l1 = qf_l1_base();
        qf_dma_t a = qf_dma_start(l1, source, 100);
        qf_dma_t b = qf_dma_start(l1 + 100, source + 100, SIDE - 100);
        qf_dma_wait(b);
        qf_dma_wait(a);
    }
    qf_barrier();
    for (uint32_t i = 0; i < SIDE; i++) {
        EXPECT(((uint8_t *)qf_l1_base())[i] == source[i]);
    }
}

/* ---- counters: waiting is no work ------------------------------------------------------------------------ */

static uint64_t work[QF_CORES];

static void one_works(void *unused) {
    uint64_t start = qf_work_count();
    (void)unused;
    if (qf_core_id() == 0) {
        uint32_t state = 1;
        for (uint32_t i = 0; i < 20000000; i++) {
            state = state * 1664525u + 1013904223u;
            __asm__ volatile("" : "+r"(state));
        }
    }
    qf_barrier();
    work[qf_core_id()] = qf_work_count() - start;
}

static void counters(void) {
    qf_fork(one_works, NULL);
    for (uint32_t core = 1; core < QF_CORES; core++) {
        EXPECT(work[core] < work[0] / 4);
    }
    EXPECT(work[0] > 0 && qf_cycles() >= qf_work_count());
}

int qf_main(int argc, char **argv) {
    const char *scenario = argc > 1 ? argv[1] : "";
    for (uint32_t i = 0; i < SIDE; i++) {
        source[i] = (uint8_t)(i * 7 + (i >> 8));
    }
    EXPECT(qf_l1_bytes() == QF_L1_BYTES && ((uintptr_t)qf_l1_base() & 63) == 0);
    if (equal(scenario, "forks")) {
        forks();
    } else if (equal(scenario, "barriers")) {
        qf_fork(write_and_read, NULL);
    } else if (equal(scenario, "transfers")) {
        qf_fork(transfers, NULL);
    } else if (equal(scenario, "counters")) {
        counters();
    } else if (equal(scenario, "no-barrier")) {
        qf_fork(no_barrier, NULL);
    } else if (equal(scenario, "unequal-barriers")) {
        qf_fork(unequal_barriers, NULL);
    } else if (equal(scenario, "last-core-exits")) {
        qf_fork(last_core_exits, NULL);
    } else {
        qf_print("unknown scenario\n");
        return 1;
    }
    return 0;
}
