/* The runtime that generated code for a cluster runs on: cores that share a scratchpad (L1), and a DMA engine that fills it.
 *
 * Every port in ports/ implements this. Core 0 runs the program; qf_fork has all cores run one function. The build says how
 * many there are (-DQF_CORES=, 1 to 16) and how much of L1 tiles may use (-DQF_L1_BYTES=).
 */
#ifndef QFOLD_RT_H
#define QFOLD_RT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- cores --------------------------------------------------------------------------------------------- */

/* 0 to qf_num_cores() - 1. Outside of a fork, 0. */
uint32_t qf_core_id(void);
uint32_t qf_num_cores(void);

/* Returns when every core has called it, each as often as the others. What a core wrote before, all read after. In a fork. */
void qf_barrier(void);

/* entry(arg) on all cores, core 0 included; returns when it has returned on all of them. What was written before the call is
 * seen by all, and what they write after it. On core 0, outside of a fork. */
void qf_fork(void (*entry)(void *), void *arg);

/* Part `part` of `parts` equal ones of 0 .. n - 1: *first to *last - 1. Sizes differ by one at most, the larger ones first.
 * A part that does not exist (part >= parts) is empty. n >= 0, parts >= 1. */
static inline void qf_share(ptrdiff_t n, uint32_t part, uint32_t parts, ptrdiff_t *first, ptrdiff_t *last) {
    ptrdiff_t size = n / (ptrdiff_t)parts;
    ptrdiff_t larger = n % (ptrdiff_t)parts;
    ptrdiff_t i = part < parts ? (ptrdiff_t)part : (ptrdiff_t)parts;
    *first = i * size + (i < larger ? i : larger);
    *last = part < parts ? *first + size + (i < larger) : *first;
}

/* ---- scratchpad ---------------------------------------------------------------------------------------- */

/* The part of L1 that tiles may use, aligned to 64 bytes. */
void *qf_l1_base(void);
uint32_t qf_l1_bytes(void);

/* ---- DMA ----------------------------------------------------------------------------------------------- */

/* A transfer under way. */
typedef uint32_t qf_dma_t;

#ifndef QFOLD_DEBUG_DMA

/* Starts to copy `bytes` bytes, any number, from src to dst. Until qf_dma_wait, what dst holds is undefined, and the source must
 * not change. Either may be in L1 or L2, at any address; they do not overlap. On core 0. */
qf_dma_t qf_dma_start(void *dst, const void *src, uint32_t bytes);

/* The same for `rows` rows of `row_bytes` bytes; row i is at dst + i * dst_stride and src + i * src_stride, in bytes. Rows of dst
 * do not overlap: dst_stride >= row_bytes. */
qf_dma_t qf_dma_start_2d(void *dst, const void *src, uint32_t row_bytes, uint32_t rows, uint32_t dst_stride, uint32_t src_stride);

/* Returns when the copy is done, for core 0; the others know by a barrier after it. Exactly once for each transfer, in the fork
 * that started it, in any order. */
void qf_dma_wait(qf_dma_t transfer);

#else /* The debug build, debug_dma.c, checks all of that, and says which function broke it. */

qf_dma_t qf_debug_dma_start(void *dst, const void *src, uint32_t row_bytes, uint32_t rows, uint32_t dst_stride,
                            uint32_t src_stride, const char *function);
void qf_debug_dma_wait(qf_dma_t transfer, const char *function);

#define qf_dma_start(dst, src, bytes) qf_debug_dma_start((dst), (src), (bytes), 1u, (bytes), (bytes), __func__)
#define qf_dma_start_2d(dst, src, row_bytes, rows, dst_stride, src_stride)                                     \
    qf_debug_dma_start((dst), (src), (row_bytes), (rows), (dst_stride), (src_stride), __func__)
#define qf_dma_wait(transfer) qf_debug_dma_wait((transfer), __func__)

#endif

/* ---- counters ------------------------------------------------------------------------------------------ */

/* This core's counter: cycles, or instructions where the machine counts those, or nanoseconds of its processor time. */
uint64_t qf_cycles(void);

/* The same without what the core spent in qf_barrier, qf_dma_wait, and between forks. In a build with -DQFOLD_COUNT; a port may
 * not keep account in others. */
uint64_t qf_work_count(void);

#ifdef QFOLD_COUNT
/* Called on every core after each dispatch, 0 to NET_DISPATCH_COUNT - 1 (network.h), before its barrier: `work` is the core's
 * qf_work_count(). runner.c collects them. */
void qf_count(uint32_t dispatch, uint64_t work);
#endif

#ifdef __cplusplus
}
#endif

#endif
