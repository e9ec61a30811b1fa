/* y = 2 x + b in two dispatches: t = 2 x (t in L2), then y = t + b by way of L1. `b[0] == 99` is an error. */
#include "network.h"

#ifndef NO_SCRATCHPAD
#include "qfold_rt.h"
#endif

enum { N = 11 };

#ifdef QFOLD_TRACE
void qfold_trace_dispatch(const char *symbol);
void qfold_trace(int argument, int after, const void *data, size_t bytes);
#endif

int net_init(net_t *net, const net_mem_t *mem) {
    for (uint32_t i = 0; i < NET_L2_BYTES; i++) {
        if (((const uint8_t *)mem->l2)[i] != 0xA5) {
            return 17;
        }
    }
    if ((uintptr_t)mem->l2 % NET_L2_ALIGN != 0) {
        return 18;
    }
#ifndef NO_SCRATCHPAD
    if (mem->l1 != qf_l1_base() || *(const uint8_t *)mem->l1 != 0xA5) {
        return 19;
    }
    net->l1 = mem->l1;
#endif
    net->l2 = mem->l2;
    net->runs = 0;
    return NET_OK;
}

#ifdef NO_SCRATCHPAD
int net_run(net_t *net, const net_in_t *in, net_out_t *out) {
    for (int i = 0; i < N; i++) {
        out->y[i] = 2.0f * in->x[i] + (float)in->b[i];
    }
    *out->runs = ++net->runs;
    return in->b[0] == 99 ? 5 : NET_OK;
}
#else
static void twice(const float *x, float *t) {
    ptrdiff_t first, last;
    qf_share(N, qf_core_id(), qf_num_cores(), &first, &last);
    for (ptrdiff_t i = first; i < last; i++) {
        t[i] = 2.0f * x[i];
    }
}

static void add(uint8_t *l1, const float *t, const int8_t *b, float *y) {
    ptrdiff_t first, last;
    float *tile = (float *)(void *)l1;
    if (qf_core_id() == 0) {
        qf_dma_wait(qf_dma_start(tile, t, N * 4));
    }
    qf_barrier();
#ifdef QFOLD_COUNT
    if (qf_core_id() == qf_num_cores() - 1) { /* some work to count */
        for (uint32_t i = 0; i < 5000000; i++) {
            __asm__ volatile("" : : "r"(i));
        }
    }
#endif
    qf_share(N, qf_core_id(), qf_num_cores(), &first, &last);
    for (ptrdiff_t i = first; i < last; i++) {
        tile[i] += (float)b[i];
    }
    qf_barrier();
    if (qf_core_id() == 0) {
        qf_dma_wait(qf_dma_start(y, tile, N * 4));
    }
}

typedef struct {
    net_t *net;
    const net_in_t *in;
    net_out_t *out;
} run_t;

static void run(void *arg) {
    const run_t *r = arg;
    float *t = (float *)(void *)r->net->l2;
#ifdef QFOLD_TRACE
    if (qf_core_id() == 0) {
        qfold_trace_dispatch("twice");
        qfold_trace(0, 0, r->in->x, N * 4);
    }
    qf_barrier();
#endif
    twice(r->in->x, t);
#ifdef QFOLD_COUNT
    qf_count(0, qf_work_count());
#endif
    qf_barrier();
#ifdef QFOLD_TRACE
    if (qf_core_id() == 0) {
        qfold_trace(1, 1, t, N * 4);
        qfold_trace_dispatch("add");
    }
    qf_barrier();
#endif
    add(r->net->l1, t, r->in->b, r->out->y);
#ifdef QFOLD_COUNT
    qf_count(1, qf_work_count());
#endif
    qf_barrier();
}

int net_run(net_t *net, const net_in_t *in, net_out_t *out) {
    run_t r = {net, in, out};
    qf_fork(run, &r);
    *out->runs = ++net->runs;
    return in->b[0] == 99 ? 5 : NET_OK;
}
#endif
