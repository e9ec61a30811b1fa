/* What the port uses of `pulp-open`, the chip of GVSoC: 8 cores with 64 KiB of L1, event unit, DMA engine (mchan), and the fabric
 * controller that boots them. For C and assembly. Addresses and bits are those of the chip's models in GVSoC
 * (pulp/chips/pulp_open, pulp/event_unit, pulp/mchan).
 */
#ifndef QFOLD_PULP_OPEN_H
#define QFOLD_PULP_OPEN_H

#if QF_CORES > 8
#error "pulp-open has 8 cores: build for 8 or fewer (target option cores=)"
#endif
#ifdef __riscv_flen
#error "pulp-open has one register file: build with Zfinx (target option isa=zfinx)"
#endif

/* mhartid: the cluster's number, 31 for the fabric controller, above the core's. */
#define HART_CLUSTER_BIT 5
#define FABRIC_CONTROLLER 31

#define CLUSTER_CONTROL 0x10200000
#define CLUSTER_FETCH_ENABLE 0x08 /* a bit for each core */
#define CLUSTER_BOOT_ADDRESS 0x40 /* a word for each core */

#define ICACHE_CONTROL 0x10201400
#define ICACHE_ENABLE 0x00

/* A write of END_OF_RUN | status ends the simulation. */
#define CORE_STATUS 0x1A1040A0
#define END_OF_RUN 0x80000000

/* Each core sees the event unit and a queue of the DMA engine of its own at these addresses. */
#define EVENT_UNIT 0x10204000
#define EVENT_MASK_AND 0x04    /* write: events not to wait for */
#define EVENT_MASK_OR 0x08     /* write: events to wait for */
#define EVENT_WAIT_CLEAR 0x3C  /* p.elw: sleep until one of them has come, and forget it */
#define EVENT_MUTEX 0xC0       /* p.elw: sleep until it is free, and take it */
#define EVENT_BARRIER 0x200
#define BARRIER_TRIGGER_MASK 0x00 /* who must come */
#define BARRIER_TARGET_MASK 0x0C  /* who is told that all have */
#define BARRIER_WAIT_CLEAR 0x1C   /* p.elw: come, sleep until all have, and forget the event */
#define EVENT_OF_DMA 8
#define EVENT_OF_BARRIER 16

#define DMA_QUEUE 0x10204400
#define DMA_COMMAND 0x00 /* read: a counter; write: the words of a command, which counts for the counter read last */
#define DMA_STATUS 0x04  /* read: counters at work, counters taken from bit 16 on; write: counters to give back */
#define DMA_COUNTERS 16

/* The first word of a command. Then come the addresses in L1 and outside, and for rows their length and distance outside. */
#ifndef DMA_LENGTH_MAX /* tests have a shorter one */
#define DMA_LENGTH_MAX 0x1FFFF
#endif
#define DMA_TO_L1 (1 << 17)
#define DMA_INCREMENT (1 << 18)
#define DMA_ROWS_OUTSIDE (1 << 19)
#define DMA_EVENT (1 << 20)

/* L1 and its peripherals. */
#define CLUSTER_BASE 0x10000000
#define CLUSTER_L1_SPAN 0x100000

#endif
