/* A staged dispatch that keeps the rules of the DMA, and what breaks each of them: `dma_rules SCENARIO`, in the debug build. */
#include "port.h"

#define BYTES 256
#define TILE 64

typedef struct {
    const char *name;
    void (*entry)(void *);
} scenario_t;

/* Tiles through L1, two buffers: each byte plus one. The wait for tile `missing` is missing. `swap`: the next tile goes to the buffer
 * that is being worked on. */
static uint8_t from[BYTES], to[BYTES];

#define TILES (BYTES / TILE)
#define NONE TILES

static void tiles(uint32_t missing, int swap) {
    uint8_t *l1 = qf_l1_base();
    uint32_t core = qf_core_id();
    qf_dma_t in = 0;
    if (core == 0) {
        in = qf_dma_start(l1, from, TILE);
    }
    for (uint32_t tile = 0; tile < TILES; tile++) {
        uint8_t *now = l1 + tile % 2 * TILE;
        uint8_t *next = swap ? now : l1 + (tile + 1) % 2 * TILE;
        ptrdiff_t first, last;
        if (core == 0 && tile != missing) {
            qf_dma_wait(in);
        }
        qf_barrier();
        if (core == 0 && tile + 1 < TILES) {
            in = qf_dma_start(next, from + (tile + 1) * TILE, TILE);
        }
        qf_share(TILE, core, QF_CORES, &first, &last);
        for (ptrdiff_t i = first; i < last; i++) {
            l1[2 * TILE + i] = (uint8_t)(now[i] + 1);
        }
        qf_barrier();
        if (core == 0) {
            qf_dma_wait(qf_dma_start(to + tile * TILE, l1 + 2 * TILE, TILE));
        }
    }
}

static void good(void *unused) {
    (void)unused;
    tiles(NONE, 0);
    qf_barrier();
    for (uint32_t i = 0; i < BYTES; i++) {
        if (to[i] != (uint8_t)(from[i] + 1)) {
            qf_exit(1);
        }
    }
}

static void first_wait_removed(void *unused) {
    (void)unused;
    tiles(0, 0);
}

static void last_wait_removed(void *unused) {
    (void)unused;
    tiles(TILES - 1, 0);
}

/* Not seen by a rule but in the result: the tile that is worked on is poison. */
static void buffer_swapped(void *unused) {
    (void)unused;
    tiles(NONE, 1);
    qf_barrier();
    if (qf_core_id() == 0) {
        qf_exit(to[0] == 0xA6 && to[1] == 0x5B && to[2] == 0xFA && to[3] == 0x80 ? 42 : 1);
    }
}

/* The rest: on core 0, one rule each. */
#define SCENARIO(name)                                                                                         \
    static void name##_broken(uint8_t *l1);                                                                    \
    static void name(void *unused) {                                                                           \
        (void)unused;                                                                                          \
        if (qf_core_id() == 0) {                                                                               \
            name##_broken(qf_l1_base());                                                                       \
        }                                                                                                      \
    }                                                                                                          \
    static void name##_broken(uint8_t *l1)

SCENARIO(reads_poison) {
    /* Every float of the destination is a NaN until the wait, then what the source has. */
    float source = 1.5f;
    float *destination = (float *)(void *)l1;
    qf_dma_t t = qf_dma_start(destination, &source, sizeof source);
    int early = *destination != *destination;
    qf_dma_wait(t);
    qf_exit(early && *destination == 1.5f ? 42 : 1);
}

SCENARIO(source_written) {
    qf_dma_t t = qf_dma_start_2d(l1, from, 8, 4, 8, 32);
    from[3 * 32 + 7]++;
    qf_dma_wait(t);
}

SCENARIO(between_rows_written) {
    qf_dma_t t = qf_dma_start_2d(l1, from, 8, 4, 16, 32);
    from[8]++;
    from[3 * 32 + 8]++;
    l1[8] = 1;
    l1[15] = 1;
    qf_dma_wait(t);
    qf_exit(l1[16 + 7] == from[32 + 7] && l1[8] == 1 ? 42 : 1);
}

SCENARIO(destination_written) {
    qf_dma_t t = qf_dma_start_2d(l1, from, 8, 4, 16, 32);
    l1[3 * 16 + 7] = 0;
    qf_dma_wait(t);
}

SCENARIO(waited_twice) {
    qf_dma_t t = qf_dma_start(l1, from, 8);
    qf_dma_t u = qf_dma_start(l1 + 8, from, 8);
    qf_dma_wait(t);
    qf_dma_wait(u);
    qf_dma_wait(t);
}

SCENARIO(never_started) {
    (void)l1;
    qf_dma_wait(12345);
}

SCENARIO(same_destination) {
    qf_dma_t t = qf_dma_start_2d(l1, from, 4, 8, 16, 4);
    qf_dma_t u = qf_dma_start(l1 + 7 * 16 + 3, from, 1);
    qf_dma_wait(t);
    qf_dma_wait(u);
}

SCENARIO(interleaved) {
    qf_dma_t t = qf_dma_start_2d(l1, from, 4, 8, 16, 4);
    qf_dma_t u = qf_dma_start_2d(l1 + 4, from, 12, 8, 16, 12);
    qf_dma_wait(t);
    qf_dma_wait(u);
    qf_exit(42);
}

SCENARIO(reads_what_another_writes) {
    qf_dma_t t = qf_dma_start(l1, from, 16);
    qf_dma_t u = qf_dma_start(to, l1 + 8, 16);
    qf_dma_wait(t);
    qf_dma_wait(u);
}

SCENARIO(onto_itself) {
    qf_dma_wait(qf_dma_start(l1 + 4, l1, 8));
}

SCENARIO(leaves_the_scratchpad) {
    qf_dma_wait(qf_dma_start_2d(l1 + QF_L1_BYTES - 40, from, 8, 3, 32, 8));
}

SCENARIO(begins_before_the_scratchpad) {
    qf_dma_wait(qf_dma_start(to, l1 - 1, 2));
}

SCENARIO(up_to_the_end) {
    qf_dma_wait(qf_dma_start_2d(l1 + QF_L1_BYTES - 40, from, 8, 2, 32, 8));
    qf_dma_wait(qf_dma_start(l1, from, 0));
    qf_dma_wait(qf_dma_start_2d(l1, from, 4, 0, 1, 1));
    qf_exit(42);
}

SCENARIO(outside_the_scratchpad) {
    (void)l1;
    qf_dma_wait(qf_dma_start(to, from, 8));
}

SCENARIO(rows_overlap) {
    qf_dma_wait(qf_dma_start_2d(l1, from, 8, 2, 4, 8));
}

static void other_core(void *unused) {
    (void)unused;
    if (qf_core_id() == QF_CORES - 1) {
        qf_dma_wait(qf_dma_start(qf_l1_base(), from, 8));
    }
}

#define NAMED(name) {#name, name}
static const scenario_t scenarios[] = {
    NAMED(good),
    NAMED(first_wait_removed),
    NAMED(last_wait_removed),
    NAMED(buffer_swapped),
    NAMED(reads_poison),
    NAMED(source_written),
    NAMED(between_rows_written),
    NAMED(destination_written),
    NAMED(waited_twice),
    NAMED(never_started),
    NAMED(same_destination),
    NAMED(interleaved),
    NAMED(reads_what_another_writes),
    NAMED(onto_itself),
    NAMED(rows_overlap),
    NAMED(leaves_the_scratchpad),
    NAMED(begins_before_the_scratchpad),
    NAMED(up_to_the_end),
    NAMED(outside_the_scratchpad),
    NAMED(other_core),
};

int qf_main(int argc, char **argv) {
    for (uint32_t i = 0; i < BYTES; i++) {
        from[i] = (uint8_t)i;
    }
    for (uint32_t i = 0; argc > 1 && i < sizeof scenarios / sizeof scenarios[0]; i++) {
        const char *a = scenarios[i].name;
        const char *b = argv[1];
        while (*a != '\0' && *a == *b) {
            a++;
            b++;
        }
        if (*a == *b) {
            qf_fork(scenarios[i].entry, NULL);
            return 0;
        }
    }
    return 1;
}
