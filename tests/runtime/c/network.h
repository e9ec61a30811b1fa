/* What a generated network.h says, of a network written by hand: network.c. */
#ifndef NETWORK_H
#define NETWORK_H

#include <stddef.h>
#include <stdint.h>

#define NET_OK 0
#define NET_ERR_NULL 1

#ifdef NO_SCRATCHPAD
#define NET_FOR_EACH_LEVEL(X) X(l2, NET_L2_BYTES, NET_L2_ALIGN)
#else
#define NET_L1_BYTES 128
#define NET_L1_ALIGN 64
#define NET_FOR_EACH_LEVEL(X) X(l1, NET_L1_BYTES, NET_L1_ALIGN) X(l2, NET_L2_BYTES, NET_L2_ALIGN)
#endif
#define NET_L2_BYTES 100
#define NET_L2_ALIGN 64
#define NET_DISPATCH_COUNT 2
#define NET_FOR_EACH_IN(X) X(0, x, float, 11) X(1, none, int32_t, 0) X(2, b, int8_t, 11)
#define NET_FOR_EACH_OUT(X) X(0, y, float, 11) X(1, runs, uint8_t, 1) X(2, untouched, uint16_t, 3)

typedef struct net_mem {
    void *l1;
    void *l2;
    const void *weights;
} net_mem_t;

typedef struct net_in {
    const float *x;
    const int32_t *none;
    const int8_t *b;
} net_in_t;

typedef struct net_out {
    float *y;
    uint8_t *runs;
    uint16_t *untouched;
} net_out_t;

typedef struct net {
    uint8_t *l1;
    uint8_t *l2;
    uint8_t runs;
} net_t;

int net_init(net_t *net, const net_mem_t *mem);
int net_run(net_t *net, const net_in_t *in, net_out_t *out);

#endif
