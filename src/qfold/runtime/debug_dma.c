/* The debug build of the DMA (-DQFOLD_DEBUG_DMA), for every port: what a real transfer does at some time between start and wait
 * happens at the wait, and what code does too early or too late is found there.
 *
 * qf_dma_start takes a checksum of the source and fills the destination with poison. qf_dma_wait finds out whether the source has
 * changed and whether all poison is still there, and only then copies. So reading the destination early gives poison; writing to
 * either end in between, a transfer that is waited for twice or never, and two transfers under way where one writes what the
 * other reads or writes, end the run with a message.
 */
#include "port.h"

enum { MAX_TRANSFERS = 32 };

/* A NaN as a float at any multiple of 4, as a double at any multiple of 8; as bytes 0xA5, 0x5A, 0xF9, 0x7F. */
#define POISON 0x7FF95AA5u

typedef struct {
    qf_dma_t id; /* 0: free */
    uint8_t *dst;
    const uint8_t *src;
    uint32_t row_bytes, rows, dst_stride, src_stride;
    uint32_t sum;
    const char *function;
} transfer_t;

static transfer_t transfers[MAX_TRANSFERS];
static qf_dma_t last_id;
static uint32_t forks;

/* ---- messages ------------------------------------------------------------------------------------------ */

static void print_end(const char *name, const uint8_t *base, uint32_t stride, const transfer_t *t) {
    qf_print(name);
    qf_print_hex((uintptr_t)base);
    if (t->rows != 1) {
        qf_print(" stride ");
        qf_print_unsigned(stride);
    }
}

static void print_transfer(const transfer_t *t) {
    qf_print("\n  transfer ");
    qf_print_unsigned(t->id);
    qf_print(" of ");
    qf_print(t->function);
    qf_print(": ");
    if (t->rows != 1) {
        qf_print_unsigned(t->rows);
        qf_print(" x ");
    }
    qf_print_unsigned(t->row_bytes);
    print_end(" bytes from ", t->src, t->src_stride, t);
    print_end(" to ", t->dst, t->dst_stride, t);
}

static void say(const char *function, const char *what) {
    qf_print("DMA: core ");
    qf_print_unsigned(qf_core_id());
    qf_print(", fork ");
    qf_print_unsigned(forks);
    qf_print(", ");
    qf_print(function);
    qf_print(": ");
    qf_print(what);
}

static void end(void) {
    qf_print("\n");
    qf_exit(QF_EXIT_DMA);
}

static void fail_with(const char *function, const char *what, const transfer_t *a, const transfer_t *b) {
    say(function, what);
    print_transfer(a);
    if (b != NULL) {
        print_transfer(b);
    }
    end();
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static uint8_t poison_at(const uint8_t *p) { return (uint8_t)(POISON >> (((uintptr_t)p & 3) * 8)); }

/* Depends on every byte and its place (FNV-1a). */
static uint32_t checksum(const transfer_t *t) {
    uint32_t sum = 2166136261u;
    for (uint32_t row = 0; row < t->rows; row++) {
        const uint8_t *p = t->src + (size_t)row * t->src_stride;
        for (uint32_t i = 0; i < t->row_bytes; i++) {
            sum = (sum ^ p[i]) * 16777619u;
        }
    }
    return sum;
}

/* Whether any of `rows` rows at a shares a byte with those at b. Rows of one side are in order: the lower one is passed over. */
static int overlap(const uint8_t *a, uint32_t a_bytes, uint32_t a_rows, uint32_t a_stride, const uint8_t *b, uint32_t b_bytes,
                   uint32_t b_rows, uint32_t b_stride) {
    uintptr_t p = (uintptr_t)a;
    uintptr_t q = (uintptr_t)b;
    if (a_bytes == 0 || b_bytes == 0) {
        return 0;
    }
    while (a_rows > 0 && b_rows > 0) {
        if (p < q + b_bytes && q < p + a_bytes) {
            return 1;
        }
        if (p < q) {
            p += a_stride;
            a_rows--;
        } else {
            q += b_stride;
            b_rows--;
        }
    }
    return 0;
}

static int written_by_both(const transfer_t *t, const transfer_t *u) {
    return overlap(t->dst, t->row_bytes, t->rows, t->dst_stride, u->dst, u->row_bytes, u->rows, u->dst_stride);
}

static int writes_source(const transfer_t *t, const transfer_t *u) {
    return overlap(t->dst, t->row_bytes, t->rows, t->dst_stride, u->src, u->row_bytes, u->rows, u->src_stride);
}

enum { OUTSIDE, INSIDE, ACROSS };

/* Where `rows` rows at p are, seen from L1. */
static int place_of(const uint8_t *p, uint32_t row_bytes, uint32_t rows, uint32_t stride) {
    uintptr_t low = (uintptr_t)qf_l1_base();
    uintptr_t high = low + qf_l1_bytes();
    uintptr_t first = (uintptr_t)p;
    uintptr_t last = first + (uintptr_t)(rows - 1) * stride + row_bytes;
    if (last <= low || high <= first) {
        return OUTSIDE;
    }
    return low <= first && last <= high ? INSIDE : ACROSS;
}

/* ---- transfers ----------------------------------------------------------------------------------------- */

static void check_start(const transfer_t *t) {
    int dst_place = place_of(t->dst, t->row_bytes, t->rows, t->dst_stride);
    int src_place = place_of(t->src, t->row_bytes, t->rows, t->src_stride);
    if (qf_core_id() != 0) {
        fail_with(t->function, "a transfer is started on another core than 0", t, NULL);
    }
    if (t->rows == 0 || t->row_bytes == 0) {
        return;
    }
    if (t->rows > 1 && t->dst_stride < t->row_bytes) {
        fail_with(t->function, "rows of the destination overlap", t, NULL);
    }
    if (writes_source(t, t)) {
        fail_with(t->function, "source and destination overlap", t, NULL);
    }
    if (dst_place == ACROSS || src_place == ACROSS) {
        fail_with(t->function, "a transfer leaves the scratchpad", t, NULL);
    }
    if (dst_place == src_place) {
        fail_with(t->function, "a transfer is not between the scratchpad and another memory", t, NULL);
    }
    for (uint32_t i = 0; i < MAX_TRANSFERS; i++) {
        const transfer_t *u = &transfers[i];
        if (u->id == 0) {
            continue;
        }
        if (written_by_both(t, u)) {
            fail_with(t->function, "two transfers under way write the same bytes", t, u);
        }
        if (writes_source(t, u) || writes_source(u, t)) {
            fail_with(t->function, "a transfer under way reads what another one writes", t, u);
        }
    }
}

qf_dma_t qf_debug_dma_start(void *dst, const void *src, uint32_t row_bytes, uint32_t rows, uint32_t dst_stride,
                            uint32_t src_stride, const char *function) {
    transfer_t t;
    uint32_t place = 0;
    t.id = last_id + 1;
    t.dst = dst;
    t.src = src;
    t.row_bytes = row_bytes;
    t.rows = rows;
    t.dst_stride = dst_stride;
    t.src_stride = src_stride;
    t.function = function;
    check_start(&t);
    while (place < MAX_TRANSFERS && transfers[place].id != 0) {
        place++;
    }
    if (place == MAX_TRANSFERS) {
        fail_with(function, "more transfers are under way than the debug build can follow (32)", &t, NULL);
    }
    t.sum = checksum(&t);
    for (uint32_t row = 0; row < rows; row++) {
        uint8_t *p = t.dst + (size_t)row * dst_stride;
        for (uint32_t i = 0; i < row_bytes; i++) {
            p[i] = poison_at(p + i);
        }
    }
    last_id = t.id;
    transfers[place] = t;
    return t.id;
}

void qf_debug_dma_wait(qf_dma_t transfer, const char *function) {
    transfer_t *t = NULL;
    for (uint32_t i = 0; i < MAX_TRANSFERS; i++) {
        if (transfer != 0 && transfers[i].id == transfer) {
            t = &transfers[i];
        }
    }
    if (t == NULL) {
        int known = transfer != 0 && transfer <= last_id;
        say(function, known ? "a transfer is waited for twice: " : "what is waited for is no transfer: ");
        qf_print_unsigned(transfer);
        end();
        return;
    }
    if (qf_core_id() != 0) {
        fail_with(function, "a transfer is waited for on another core than 0", t, NULL);
    }
    if (checksum(t) != t->sum) {
        fail_with(function, "the source changed during the transfer", t, NULL);
    }
    for (uint32_t row = 0; row < t->rows; row++) {
        uint8_t *p = t->dst + (size_t)row * t->dst_stride;
        for (uint32_t i = 0; i < t->row_bytes; i++) {
            if (p[i] != poison_at(p + i)) {
                say(function, "the destination was written during the transfer, at ");
                qf_print_hex((uintptr_t)(p + i));
                print_transfer(t);
                end();
            }
        }
    }
    for (uint32_t row = 0; row < t->rows; row++) {
        uint8_t *p = t->dst + (size_t)row * t->dst_stride;
        const uint8_t *q = t->src + (size_t)row * t->src_stride;
        for (uint32_t i = 0; i < t->row_bytes; i++) {
            p[i] = q[i];
        }
    }
    t->id = 0;
}

void qf_debug_dma_end_of_fork(void) {
    for (uint32_t i = 0; i < MAX_TRANSFERS; i++) {
        if (transfers[i].id != 0) {
            fail_with("the end of the fork", "a transfer was never waited for", &transfers[i], NULL);
        }
    }
    forks++;
}
