/* The cluster in Spike: harts that share memory, counted in instructions, with files of the host by fesvr's system calls.
 *
 * What a core does in qf_barrier, in qf_dma_wait, in qf_dma_start and between forks is not in its qf_work_count. A DMA transfer is a copy
 * by core 0, when it is waited for.
 */
#include "../bare_metal.h"

#define IN_L1 __attribute__((section(".l1")))

/* Waits for others: the simulator goes on with the next hart (start.S enables the interrupt that ends wfi). */
static void wait_a_turn(void) { __asm__ volatile("wfi" ::: "memory"); }

static void fence(void) { __asm__ volatile("fence" ::: "memory"); }

uint32_t qf_core_id(void) {
    uint32_t hart;
    __asm__ volatile("csrr %0, mhartid" : "=r"(hart));
    return hart;
}

uint32_t qf_num_cores(void) { return QF_CORES; }

/* ---- console: fesvr ------------------------------------------------------------------------------------ */

/* The host looks at tohost now and then: the address of a call, or the exit status * 2 + 1. Its answer is fromhost. */
extern volatile uint32_t tohost[2], fromhost[2];
volatile uint32_t tohost[2] __attribute__((section(".htif"), aligned(64)));
volatile uint32_t fromhost[2] __attribute__((section(".htif"), aligned(64)));

/* The core that talks to the host, plus 1; 0: none. */
extern volatile uint32_t qf_console_owner;
volatile uint32_t qf_console_owner IN_L1;

/* Whether this core did not have the console before. */
static int take_console(void) {
    uint32_t self = qf_core_id() + 1;
    if (qf_console_owner == self) {
        return 0;
    }
    for (;;) {
        uint32_t failed;
        __asm__ volatile(".option push\n.option arch, +a\n"
                         "1: lr.w %0, %1\n"
                         "bnez %0, 2f\n"
                         "sc.w %0, %2, %1\n"
                         "bnez %0, 1b\n"
                         "2:\n.option pop"
                         : "=&r"(failed), "+A"(qf_console_owner)
                         : "r"(self)
                         : "memory");
        if (!failed) {
            return 1;
        }
        wait_a_turn();
    }
}

/* System calls of fesvr (fesvr/syscall.cc of Spike): Linux's numbers, and one of its own. */
enum { SYS_OPENAT = 56, SYS_CLOSE = 57, SYS_READ = 63, SYS_WRITE = 64, SYS_GETMAINVARS = 2011 };

static int64_t call(uint32_t number, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t e) {
    static volatile uint64_t block[8] __attribute__((aligned(64)));
    int taken = take_console();
    int64_t result;
    block[0] = number;
    block[1] = a;
    block[2] = b;
    block[3] = c;
    block[4] = d;
    block[5] = e;
    fence();
    tohost[0] = (uint32_t)(uintptr_t)block;
    while (fromhost[0] == 0) {
        wait_a_turn();
    }
    fromhost[0] = 0;
    fence();
    result = (int64_t)block[0];
    if (taken) {
        qf_console_owner = 0;
    }
    return result;
}

static uint32_t address(const void *p) { return (uint32_t)(uintptr_t)p; }

int qf_file_open(const char *path, int write) {
    /* AT_FDCWD, the length with its 0, O_RDONLY or O_WRONLY | O_CREAT | O_TRUNC of Linux, the mode */
    uint32_t length = 1;
    while (path[length - 1] != '\0') {
        length++;
    }
    int64_t file = call(SYS_OPENAT, (uint32_t)-100, address(path), length, write ? 01 | 0100 | 01000 : 0, 0666);
    return file < 0 ? -1 : (int)file;
}

ptrdiff_t qf_file_read(int file, void *data, size_t bytes) {
    int64_t done = call(SYS_READ, (uint32_t)file, address(data), bytes, 0, 0);
    return done < 0 ? -1 : (ptrdiff_t)done;
}

ptrdiff_t qf_file_write(int file, const void *data, size_t bytes) {
    int64_t done = call(SYS_WRITE, (uint32_t)file, address(data), bytes, 0, 0);
    return done < 0 ? -1 : (ptrdiff_t)done;
}

int qf_file_close(int file) { return call(SYS_CLOSE, (uint32_t)file, 0, 0, 0, 0) == 0 ? 0 : -1; }

void qf_exit(int status) {
    take_console();
    for (;;) {
        tohost[0] = (uint32_t)status << 1 | 1;
        wait_a_turn();
    }
}

/* ---- counters ------------------------------------------------------------------------------------------ */

/* Instructions that were not work, by core. */
static uint64_t waited[QF_CORES] IN_L1;

uint64_t qf_cycles(void) {
    uint32_t high, low, again;
    do {
        __asm__ volatile("csrr %0, minstreth\ncsrr %1, minstret\ncsrr %2, minstreth"
                         : "=&r"(high), "=&r"(low), "=&r"(again));
    } while (high != again);
    return (uint64_t)high << 32 | low;
}

uint64_t qf_work_count(void) { return qf_cycles() - waited[qf_core_id()]; }

static void end_wait(uint64_t since) { waited[qf_core_id()] += qf_cycles() - since; }

uint64_t qf_clock(void) { return qf_cycles(); }

const uint32_t qf_clock_per_second = 0;

/* ---- forks and barriers -------------------------------------------------------------------------------- */

enum meeting { BARRIER, END_OF_FORK };

/* How often each core has come to a meeting, times 2, plus which kind the last one was; and how often all of them have. No two
 * cores write the same word. */
static volatile uint32_t arrived[QF_CORES] IN_L1;
static volatile uint32_t passed IN_L1;

static volatile uint32_t forks IN_L1;
static void (*volatile fork_entry)(void *) IN_L1;
static void *volatile fork_argument IN_L1;

static void unequal_barriers(uint32_t core) {
    qf_print("qf_barrier: core 0 and core ");
    qf_print_unsigned(core);
    qf_print(" did not call it equally often in a fork\n");
    qf_exit(QF_EXIT_DEADLOCK);
}

static void meet(enum meeting kind) {
    uint32_t self = qf_core_id();
    uint32_t mine = (arrived[self] & ~1u) + 2 + (uint32_t)kind;
    fence();
    arrived[self] = mine;
    if (self == 0) {
        for (uint32_t core = 1; core < QF_CORES; core++) {
            while ((arrived[core] | 1) != (mine | 1)) {
                wait_a_turn();
            }
            if (arrived[core] != mine) {
                unequal_barriers(core);
            }
        }
        passed = mine >> 1;
    } else {
        while (passed != mine >> 1) {
            wait_a_turn();
        }
    }
    fence();
}

void qf_barrier(void) {
    uint64_t since = qf_cycles();
    meet(BARRIER);
    end_wait(since);
}

void qf_fork(void (*entry)(void *), void *arg) {
    uint64_t since;
    fork_entry = entry;
    fork_argument = arg;
    fence();
    forks = forks + 1;
    entry(arg);
    since = qf_cycles();
    meet(END_OF_FORK);
    end_wait(since);
#ifdef QFOLD_DEBUG_DMA
    qf_debug_dma_end_of_fork();
#endif
}

/* What cores other than 0 do. */
void qf_serve(void);

void qf_serve(void) {
    for (uint32_t served = 0;; served++) {
        uint64_t since = qf_cycles();
        while (forks == served) {
            wait_a_turn();
        }
        fence();
        end_wait(since);
        fork_entry(fork_argument);
        since = qf_cycles();
        meet(END_OF_FORK);
        end_wait(since);
    }
}

/* ---- scratchpad and DMA -------------------------------------------------------------------------------- */

extern uint8_t __qf_l1[];

void *qf_l1_base(void) { return __qf_l1; }

uint32_t qf_l1_bytes(void) { return QF_L1_BYTES; }

#ifndef QFOLD_DEBUG_DMA
void *memcpy(void *restrict dst, const void *restrict src, size_t bytes);

enum { MAX_TRANSFERS = 16 };

/* Under way: the id is the index plus 1. */
static struct {
    uint8_t *dst; /* NULL: free */
    const uint8_t *src;
    uint32_t row_bytes, rows, dst_stride, src_stride;
} transfers[MAX_TRANSFERS];

static void copy_rows(uint8_t *dst, const uint8_t *src, uint32_t row_bytes, uint32_t rows, uint32_t dst_stride, uint32_t src_stride) {
    for (uint32_t row = 0; row < rows; row++) {
        memcpy(dst + (size_t)row * dst_stride, src + (size_t)row * src_stride, row_bytes);
    }
}

qf_dma_t qf_dma_start(void *dst, const void *src, uint32_t bytes) {
    return qf_dma_start_2d(dst, src, bytes, 1, bytes, bytes);
}

qf_dma_t qf_dma_start_2d(void *dst, const void *src, uint32_t row_bytes, uint32_t rows, uint32_t dst_stride, uint32_t src_stride) {
    uint64_t since = qf_cycles();
    qf_dma_t id = 0;
    for (uint32_t i = 0; i < MAX_TRANSFERS; i++) {
        if (transfers[i].dst == NULL) {
            transfers[i].dst = dst;
            transfers[i].src = src;
            transfers[i].row_bytes = row_bytes;
            transfers[i].rows = rows;
            transfers[i].dst_stride = dst_stride;
            transfers[i].src_stride = src_stride;
            id = i + 1;
            break;
        }
    }
    if (id == 0) { /* too many at once: at the start is as good as at the wait */
        copy_rows(dst, src, row_bytes, rows, dst_stride, src_stride);
    }
    end_wait(since);
    return id;
}

void qf_dma_wait(qf_dma_t transfer) {
    uint64_t since = qf_cycles();
    if (transfer != 0) {
        uint32_t i = transfer - 1;
        copy_rows(transfers[i].dst, transfers[i].src, transfers[i].row_bytes, transfers[i].rows, transfers[i].dst_stride,
                  transfers[i].src_stride);
        transfers[i].dst = NULL;
    }
    end_wait(since);
}
#endif

/* ---- start and end ------------------------------------------------------------------------------------- */

/* Called by start.S, on core 0 and on the core that trapped. */
void qf_start(void);
void qf_trap(uint32_t core, uint32_t cause, uint32_t pc, uint32_t tval);

enum { MAX_ARGUMENTS = 16 };

void qf_start(void) {
    static uint64_t vars[256]; /* argc, the arguments' addresses, 0, 0, then the texts */
    static char *argv[MAX_ARGUMENTS + 1];
    uint32_t argc;
    int status;
    if (call(SYS_GETMAINVARS, address(vars), sizeof vars, 0, 0, 0) != 0 || vars[0] > MAX_ARGUMENTS) {
        qf_print("the arguments are too long\n");
        qf_exit(2);
    }
    argc = (uint32_t)vars[0];
    for (uint32_t i = 0; i < argc; i++) {
        argv[i] = (char *)(uintptr_t)vars[i + 1];
    }
    status = qf_main((int)argc, argv);
    if (!qf_stacks_are_good()) {
        status = QF_EXIT_STACK;
    }
    qf_exit(status);
}

void qf_trap(uint32_t core, uint32_t cause, uint32_t pc, uint32_t tval) {
    qf_report_trap(core, cause, pc, tval);
    if (qf_is_stack_guard(core, tval)) {
        qf_report_overflow(core);
        qf_exit(QF_EXIT_STACK);
    }
    qf_exit(QF_EXIT_TRAP);
}
