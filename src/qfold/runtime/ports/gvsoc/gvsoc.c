/* The cluster of pulp-open in GVSoC: counted in cycles, with files of the host by semihosting.
 *
 * The simulator runs in a directory of its own. There the file `arguments` holds the program's, its name first, each with a 0
 * byte at its end, and the console is the files `stdout` and `stderr`. Other files are named by absolute paths.
 *
 * With -DQFOLD_COUNT, what a core spends in qf_barrier, in qf_dma_wait and between forks is not in its qf_work_count.
 */
#include "../bare_metal.h"
#include "pulp_open.h"

#define IN_L1 __attribute__((section(".l1")))

typedef volatile uint32_t *register_t;

static void set(uint32_t address, uint32_t value) { *(register_t)address = value; }

/* p.elw: a load that the core may sleep in. */
static uint32_t wait_at(uint32_t address) {
    uint32_t value;
    __asm__ volatile(".insn i 0x03, 6, %0, 0(%1)" : "=r"(value) : "r"(address) : "memory");
    return value;
}

uint32_t qf_core_id(void) {
    uint32_t hart;
    __asm__ volatile("csrr %0, mhartid" : "=r"(hart));
    return hart; /* the cluster is number 0 */
}

uint32_t qf_num_cores(void) { return QF_CORES; }

/* ---- files: semihosting -------------------------------------------------------------------------------- */

/* "Semihosting for AArch32 and AArch64", which RISC-V's takes its operations from. Modes of open: "rb" and "wb". */
enum { SYS_OPEN = 1, SYS_CLOSE = 2, SYS_WRITE = 5, SYS_READ = 6, READ_BINARY = 1, WRITE_BINARY = 5 };

int32_t qf_semihost(uint32_t operation, const void *block);

static int32_t call(uint32_t operation, uint32_t a, uint32_t b, uint32_t c) {
    uint32_t block[3] = {a, b, c};
    __asm__ volatile("" ::"r"(block) : "memory");
    return qf_semihost(operation, block);
}

static uint32_t address(const void *p) { return (uint32_t)(uintptr_t)p; }

int qf_file_open(const char *path, int write) {
    uint32_t length = 0;
    while (path[length] != '\0') {
        length++;
    }
    return call(SYS_OPEN, address(path), write ? WRITE_BINARY : READ_BINARY, length);
}

/* QF_STDOUT and QF_STDERR, once they are open. */
static int console[2];

/* What was done of `bytes`, of which the host says how many it has not done. */
static ptrdiff_t done(size_t bytes, int32_t rest) { return rest < 0 ? -1 : (ptrdiff_t)(bytes - (uint32_t)rest); }

ptrdiff_t qf_file_read(int file, void *data, size_t bytes) {
    return done(bytes, call(SYS_READ, (uint32_t)file, address(data), bytes));
}

ptrdiff_t qf_file_write(int file, const void *data, size_t bytes) {
    int host = file == QF_STDOUT || file == QF_STDERR ? console[file - QF_STDOUT] : file;
    ptrdiff_t written = done(bytes, call(SYS_WRITE, (uint32_t)host, address(data), bytes));
    return written == 0 && bytes > 0 ? -1 : written;
}

int qf_file_close(int file) { return qf_semihost(SYS_CLOSE, (const void *)file) == 0 ? 0 : -1; }

void qf_exit(int status) {
    for (;;) {
        set(CORE_STATUS, END_OF_RUN | (uint32_t)status);
    }
}

/* ---- counters ------------------------------------------------------------------------------------------ */

/* mcycleh is not there: 2^32 cycles take GVSoC hours. */
uint64_t qf_cycles(void) {
    uint32_t cycles;
    __asm__ volatile("csrr %0, mcycle" : "=r"(cycles)::"memory");
    return cycles;
}

#ifdef QFOLD_COUNT
/* Cycles that were not work, by core. */
static uint32_t waited[QF_CORES] IN_L1;

#define BEGIN_WAIT() uint32_t since = (uint32_t)qf_cycles()
#define END_WAIT() (waited[qf_core_id()] += (uint32_t)qf_cycles() - since)

uint64_t qf_work_count(void) { return (uint32_t)qf_cycles() - waited[qf_core_id()]; }
#else
#define BEGIN_WAIT() ((void)0)
#define END_WAIT() ((void)0)

uint64_t qf_work_count(void) { return qf_cycles(); }
#endif

uint64_t qf_clock(void) { return qf_cycles(); }

const uint32_t qf_clock_per_second = 0;

/* ---- forks and barriers -------------------------------------------------------------------------------- */

static void (*volatile fork_entry)(void *) IN_L1;
static void *volatile fork_argument IN_L1;

static void meet(void) { wait_at(EVENT_UNIT + EVENT_BARRIER + BARRIER_WAIT_CLEAR); }

void qf_barrier(void) {
    BEGIN_WAIT();
    meet();
    END_WAIT();
}

void qf_fork(void (*entry)(void *), void *arg) {
    fork_entry = entry;
    fork_argument = arg;
    qf_barrier();
    entry(arg);
    qf_barrier();
#ifdef QFOLD_DEBUG_DMA
    qf_debug_dma_end_of_fork();
#endif
}

/* Called by start.S: on all cores before anything else, and then what cores other than 0 do. */
void qf_meet_first(void);
void qf_serve(void);

void qf_meet_first(void) {
    uint32_t all = (1u << QF_CORES) - 1;
    set(EVENT_UNIT + EVENT_MASK_OR, 1u << EVENT_OF_BARRIER);
    set(EVENT_UNIT + EVENT_BARRIER + BARRIER_TRIGGER_MASK, all);
    set(EVENT_UNIT + EVENT_BARRIER + BARRIER_TARGET_MASK, all);
    meet();
}

void qf_serve(void) {
    for (;;) {
        qf_barrier();
        fork_entry(fork_argument);
        qf_barrier();
    }
}

/* ---- scratchpad and DMA -------------------------------------------------------------------------------- */

extern uint8_t __qf_l1[];

void *qf_l1_base(void) { return __qf_l1; }

uint32_t qf_l1_bytes(void) { return QF_L1_BYTES; }

#ifndef QFOLD_DEBUG_DMA
void *memcpy(void *restrict dst, const void *restrict src, size_t bytes);

/* One command moves fewer bytes than this, in 64-byte steps, so that its parts are as aligned as the whole. */
enum { COMMAND_BYTES = DMA_LENGTH_MAX & ~63 };

static uint32_t get(uint32_t address) { return *(register_t)address; }

static int in_l1(uint32_t at) { return at - CLUSTER_BASE < CLUSTER_L1_SPAN; }

static void command(uint32_t word, uint32_t local, uint32_t outside) {
    set(DMA_QUEUE + DMA_COMMAND, word | DMA_INCREMENT | DMA_EVENT);
    set(DMA_QUEUE + DMA_COMMAND, local);
    set(DMA_QUEUE + DMA_COMMAND, outside);
}

/* Consecutive bytes on both sides. */
static void move_bytes(uint32_t direction, uint32_t local, uint32_t outside, uint32_t bytes) {
    for (; bytes > COMMAND_BYTES; bytes -= COMMAND_BYTES) {
        command(direction | COMMAND_BYTES, local, outside);
        local += COMMAND_BYTES;
        outside += COMMAND_BYTES;
    }
    command(direction | bytes, local, outside);
}

/* Rows that are dense in L1, `stride` apart outside. */
static void command_of_rows(uint32_t word, uint32_t local, uint32_t outside, uint32_t row_bytes, uint32_t stride) {
    command(word | DMA_ROWS_OUTSIDE, local, outside);
    set(DMA_QUEUE + DMA_COMMAND, row_bytes);
    set(DMA_QUEUE + DMA_COMMAND, stride);
}

/* As many in a command as its length can say. row_bytes <= COMMAND_BYTES. */
static void move_rows(uint32_t direction, uint32_t local, uint32_t outside, uint32_t row_bytes, uint32_t rows, uint32_t stride) {
    uint32_t bytes = row_bytes * rows;
    if (bytes > COMMAND_BYTES) {
        uint32_t most = COMMAND_BYTES / row_bytes;
        for (; rows > most; rows -= most) {
            command_of_rows(direction | most * row_bytes, local, outside, row_bytes, stride);
            local += most * row_bytes;
            outside += most * stride;
        }
        bytes = row_bytes * rows;
    }
    command_of_rows(direction | bytes, local, outside, row_bytes, stride);
}

/* Whether the engine can do it: one end is in L1, and there is a counter left. A core that asks for one when there is none would
 * wait for ever. */
static int takes(uint32_t to, uint32_t from) {
    return (in_l1(to) || in_l1(from)) && get(DMA_QUEUE + DMA_STATUS) >> DMA_COUNTERS != (1u << DMA_COUNTERS) - 1;
}

/* The id of a transfer is its counter plus 1; 0 is one that is done. */
qf_dma_t qf_dma_start(void *dst, const void *src, uint32_t bytes) {
    uint32_t to = address(dst), from = address(src);
    uint32_t counter;
    if (bytes == 0) {
        return 0;
    }
    if (!takes(to, from)) {
        memcpy(dst, src, bytes);
        return 0;
    }
    counter = get(DMA_QUEUE + DMA_COMMAND);
    if (in_l1(to)) {
        move_bytes(DMA_TO_L1, to, from, bytes);
    } else {
        move_bytes(0, from, to, bytes);
    }
    return counter + 1;
}

qf_dma_t qf_dma_start_2d(void *dst, const void *src, uint32_t row_bytes, uint32_t rows, uint32_t dst_stride,
                         uint32_t src_stride) {
    uint32_t to = address(dst), from = address(src);
    uint32_t to_l1 = in_l1(to);
    uint32_t direction = to_l1 ? DMA_TO_L1 : 0;
    uint32_t local = to_l1 ? to : from, local_stride = to_l1 ? dst_stride : src_stride;
    uint32_t outside = to_l1 ? from : to, outside_stride = to_l1 ? src_stride : dst_stride;
    uint32_t counter;
    if (rows <= 1 || (dst_stride == row_bytes && src_stride == row_bytes)) {
        return qf_dma_start(dst, src, row_bytes * rows);
    }
    if (row_bytes == 0) {
        return 0;
    }
    if (!takes(to, from)) {
        for (uint32_t row = 0; row < rows; row++) {
            memcpy((uint8_t *)dst + (size_t)row * dst_stride, (const uint8_t *)src + (size_t)row * src_stride, row_bytes);
        }
        return 0;
    }
    counter = get(DMA_QUEUE + DMA_COMMAND);
    if (local_stride == row_bytes && row_bytes <= COMMAND_BYTES) {
        move_rows(direction, local, outside, row_bytes, rows, outside_stride);
    } else {
        for (; rows > 0; rows--) {
            move_bytes(direction, local, outside, row_bytes);
            local += local_stride;
            outside += outside_stride;
        }
    }
    return counter + 1;
}

void qf_dma_wait(qf_dma_t transfer) {
    BEGIN_WAIT();
    if (transfer != 0) {
        uint32_t counter = 1u << (transfer - 1);
        set(EVENT_UNIT + EVENT_MASK_OR, 1u << EVENT_OF_DMA);
        while (get(DMA_QUEUE + DMA_STATUS) & counter) {
            wait_at(EVENT_UNIT + EVENT_WAIT_CLEAR);
        }
        set(EVENT_UNIT + EVENT_MASK_AND, 1u << EVENT_OF_DMA);
        set(DMA_QUEUE + DMA_STATUS, counter);
    }
    END_WAIT();
}
#endif

/* ---- start and end ------------------------------------------------------------------------------------- */

/* Called by start.S, on core 0 and on the core that trapped. */
void qf_start(void);
void qf_trap(uint32_t core, uint32_t cause, uint32_t pc, uint32_t tval);

enum { MAX_ARGUMENTS = 16, ARGUMENT_BYTES = 4096 };

void qf_start(void) {
    static char text[ARGUMENT_BYTES];
    static char *argv[MAX_ARGUMENTS + 1];
    int argc = 0;
    int file;
    int status;
    ptrdiff_t bytes;
    console[0] = qf_file_open("stdout", 1);
    console[1] = qf_file_open("stderr", 1);
    file = qf_file_open("arguments", 0);
    bytes = file < 0 ? -1 : qf_file_read(file, text, sizeof text);
    if (bytes <= 0 || bytes == sizeof text) {
        qf_print("the file of the arguments is missing, or too long\n");
        qf_exit(2);
    }
    for (char *p = text; p < text + bytes; p++) {
        if (argc == MAX_ARGUMENTS) {
            qf_print("there are too many arguments\n");
            qf_exit(2);
        }
        argv[argc++] = p;
        while (*p != '\0') {
            p++;
        }
    }
    qf_file_close(file);
    status = qf_main(argc, argv);
    if (!qf_stacks_are_good()) {
        status = QF_EXIT_STACK;
    }
    qf_exit(status);
}

/* RI5CY's causes of exceptions, of which the model gives the last one for all of them. */
enum { ILLEGAL_INSTRUCTION = 2, BREAKPOINT = 3, ENVIRONMENT_CALL = 11 };

static uint32_t cause_at(uint32_t pc) {
    uint32_t low = *(const volatile uint16_t *)pc;
    uint32_t high = (low & 3) == 3 ? *(const volatile uint16_t *)(pc + 2) : 0;
    switch (high << 16 | low) {
    case 0x00000073:
        return ENVIRONMENT_CALL;
    case 0x00100073:
    case 0x9002: /* c.ebreak */
        return BREAKPOINT;
    default:
        return ILLEGAL_INSTRUCTION;
    }
}

void qf_trap(uint32_t core, uint32_t cause, uint32_t pc, uint32_t tval) {
    qf_report_trap(core, cause == ENVIRONMENT_CALL ? cause_at(pc) : cause, pc, tval);
    qf_exit(QF_EXIT_TRAP);
}
