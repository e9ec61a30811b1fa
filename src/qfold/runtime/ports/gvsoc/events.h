/* The event counters of a core (RI5CY's PCCRs): for benchmarks. Each core has its own; generated code does not touch them. */
#ifndef QFOLD_GVSOC_EVENTS_H
#define QFOLD_GVSOC_EVENTS_H

#include <stdint.h>

/* Numbers of the events. All are cycles but for INSTRUCTIONS. Cycles that the core slept are in none. */
#define QF_EVENT_CYCLES 0
#define QF_EVENT_INSTRUCTIONS 1
#define QF_EVENT_LOAD_USE 2
#define QF_EVENT_ICACHE_MISS 4
#define QF_EVENT_FPU_CONTENTION 18

/* From 0, all of them. */
static inline void qf_events_start(void) {
    __asm__ volatile("csrw 0xCC1, zero\n" /* PCMR: stop */
                     "csrw 0x79F, zero\n" /* all PCCRs */
                     "csrw 0xCC0, %0\n"   /* PCER: which ones */
                     "csrw 0xCC1, %1"
                     :
                     : "r"(-1), "r"(1)
                     : "memory");
}

static inline void qf_events_stop(void) { __asm__ volatile("csrw 0xCC1, zero" ::: "memory"); }

/* `event`: a constant. */
#define QF_EVENT(event)                                                                                        \
    __extension__({                                                                                            \
        uint32_t count_;                                                                                       \
        __asm__ volatile("csrr %0, %1" : "=r"(count_) : "i"(0x780 + (event)) : "memory");                      \
        count_;                                                                                                \
    })

#endif
