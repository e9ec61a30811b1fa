/* The cluster on POSIX threads: one per core, made by the first fork and kept for all that follow. Core 0 is the thread that
 * forks. L1 is an array; a transfer is a copy, made when it starts.
 */
#define _POSIX_C_SOURCE 200112L

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "port.h"

static __thread uint32_t core_id;
static __thread uint64_t waited; /* processor time of this thread, in ns, that was not work: with -DQFOLD_COUNT */

uint32_t qf_core_id(void) { return core_id; }

uint32_t qf_num_cores(void) { return QF_CORES; }

/* ---- barriers and forks -------------------------------------------------------------------------------- */

/* Cores that wait at it, and how often all have come: who waits, waits for `turn` to change. */
typedef struct {
    pthread_cond_t changed;
    uint32_t waiting, turn;
} barrier_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static barrier_t within = {PTHREAD_COND_INITIALIZER, 0, 0}; /* a fork: qf_barrier */
static barrier_t around = {PTHREAD_COND_INITIALIZER, 0, 0}; /* a fork: its start and its end */

static void pass(barrier_t *barrier) {
#ifdef QFOLD_COUNT
    uint64_t start = qf_cycles();
#endif
    pthread_mutex_lock(&mutex);
    if (++barrier->waiting == QF_CORES) {
        barrier->waiting = 0;
        barrier->turn++;
        pthread_cond_broadcast(&barrier->changed);
    } else {
        uint32_t turn = barrier->turn;
        if (within.waiting > 0 && within.waiting + around.waiting == QF_CORES) {
            qf_print("threads: some cores wait in a qf_barrier that the others have ended the fork without\n");
            qf_exit(QF_EXIT_DEADLOCK);
        }
        while (barrier->turn == turn) {
            pthread_cond_wait(&barrier->changed, &mutex);
        }
    }
    pthread_mutex_unlock(&mutex);
#ifdef QFOLD_COUNT
    waited += qf_cycles() - start;
#endif
}

void qf_barrier(void) { pass(&within); }

static void (*fork_entry)(void *);
static void *fork_arg;

/* A core but 0: from fork to fork until the program ends. */
static void *core_main(void *id) {
    core_id = *(const uint32_t *)id;
    for (;;) {
        pass(&around);
        fork_entry(fork_arg);
        pass(&around);
    }
    return NULL;
}

static void start_cores(void) {
    static uint32_t ids[QF_CORES];
    for (uint32_t core = 1; core < QF_CORES; core++) {
        pthread_t thread;
        ids[core] = core;
        if (pthread_create(&thread, NULL, core_main, &ids[core]) != 0 || pthread_detach(thread) != 0) {
            qf_print("threads: a thread cannot be started\n");
            qf_exit(1);
        }
    }
}

void qf_fork(void (*entry)(void *), void *arg) {
    static int started;
    if (!started) {
        started = 1;
        start_cores();
    }
    fork_entry = entry;
    fork_arg = arg;
    pass(&around);
    entry(arg);
    pass(&around);
#ifdef QFOLD_DEBUG_DMA
    qf_debug_dma_end_of_fork();
#endif
}

/* ---- scratchpad and DMA -------------------------------------------------------------------------------- */

static uint8_t l1[QF_L1_BYTES] __attribute__((aligned(64)));

void *qf_l1_base(void) { return l1; }

uint32_t qf_l1_bytes(void) { return QF_L1_BYTES; }

#ifndef QFOLD_DEBUG_DMA
qf_dma_t qf_dma_start(void *dst, const void *src, uint32_t bytes) {
    return qf_dma_start_2d(dst, src, bytes, 1, bytes, bytes);
}

qf_dma_t qf_dma_start_2d(void *dst, const void *src, uint32_t row_bytes, uint32_t rows, uint32_t dst_stride,
                         uint32_t src_stride) {
    uint8_t *to = dst;
    const uint8_t *from = src;
#ifdef QFOLD_COUNT
    uint64_t start = qf_cycles();
#endif
    for (uint32_t row = 0; row < rows; row++) {
        memcpy(to + (size_t)row * dst_stride, from + (size_t)row * src_stride, row_bytes);
    }
#ifdef QFOLD_COUNT
    waited += qf_cycles() - start; /* the DMA engine's work, not the core's */
#endif
    return 0;
}

void qf_dma_wait(qf_dma_t transfer) { (void)transfer; }
#endif

/* ---- counters ------------------------------------------------------------------------------------------ */

uint64_t qf_cycles(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t qf_work_count(void) { return qf_cycles() - waited; }
