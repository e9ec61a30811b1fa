/* The cluster as one core in user-mode qemu-riscv32: a static program without a C library, by system calls of Linux.
 *
 * A DMA transfer is a copy, made when it starts. The stack (-DQF_STACK_BYTES=) is painted and has a page below it that faults.
 * SIGSEGV and its like end the run with the message of a trap.
 */
#include "port.h"
#include "stack.h"

#if QF_CORES != 1
#error "user-mode qemu is one core: build with -DQF_CORES=1"
#endif

/* ---- system calls -------------------------------------------------------------------------------------- */

/* Numbers and constants of Linux's generic ABI (asm-generic/unistd.h, fcntl.h, signal.h), which RISC-V uses. */
enum {
    SYS_OPENAT = 56,
    SYS_CLOSE = 57,
    SYS_READ = 63,
    SYS_WRITE = 64,
    SYS_EXIT_GROUP = 94,
    SYS_SIGALTSTACK = 132,
    SYS_RT_SIGACTION = 134,
    SYS_MPROTECT = 226,
    SYS_CLOCK_GETTIME64 = 403,

    AT_FDCWD = -100,
    O_RDONLY = 0,
    O_WRONLY_CREAT_TRUNC = 01 | 0100 | 01000,
    PROT_NONE = 0,
    SA_SIGINFO = 4,
    SA_ONSTACK = 0x08000000,
    CLOCK_PROCESS_CPUTIME_ID = 2
};

/* The result, or the negative of an error number. */
static intptr_t call(intptr_t number, intptr_t a, intptr_t b, intptr_t c, intptr_t d) {
    register intptr_t a0 __asm__("a0") = a;
    register intptr_t a1 __asm__("a1") = b;
    register intptr_t a2 __asm__("a2") = c;
    register intptr_t a3 __asm__("a3") = d;
    register intptr_t a7 __asm__("a7") = number;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a3), "r"(a7) : "memory");
    return a0;
}

void qf_exit(int status) {
    for (;;) {
        call(SYS_EXIT_GROUP, status, 0, 0, 0);
    }
}

int qf_file_open(const char *path, int write) {
    intptr_t file = call(SYS_OPENAT, AT_FDCWD, (intptr_t)path, write ? O_WRONLY_CREAT_TRUNC : O_RDONLY, 0666);
    return file < 0 ? -1 : (int)file;
}

ptrdiff_t qf_file_read(int file, void *data, size_t bytes) {
    intptr_t done = call(SYS_READ, file, (intptr_t)data, (intptr_t)bytes, 0);
    return done < 0 ? -1 : done;
}

ptrdiff_t qf_file_write(int file, const void *data, size_t bytes) {
    intptr_t done = call(SYS_WRITE, file, (intptr_t)data, (intptr_t)bytes, 0);
    return done < 0 ? -1 : done;
}

int qf_file_close(int file) { return call(SYS_CLOSE, file, 0, 0, 0) == 0 ? 0 : -1; }

uint64_t qf_clock(void) {
    int64_t time[2] = {0, 0}; /* seconds, nanoseconds */
    call(SYS_CLOCK_GETTIME64, CLOCK_PROCESS_CPUTIME_ID, (intptr_t)time, 0, 0);
    return (uint64_t)time[0] * 1000000000u + (uint64_t)time[1];
}

const uint32_t qf_clock_per_second = 1000000000u;

/* ---- cores --------------------------------------------------------------------------------------------- */

uint32_t qf_core_id(void) { return 0; }

uint32_t qf_num_cores(void) { return 1; }

void qf_barrier(void) {}

void qf_fork(void (*entry)(void *), void *arg) {
    entry(arg);
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
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t i = 0; i < row_bytes; i++) {
            to[i] = from[i];
        }
        to += dst_stride;
        from += src_stride;
    }
    return 0;
}

void qf_dma_wait(qf_dma_t transfer) { (void)transfer; }
#endif

/* ---- counters ------------------------------------------------------------------------------------------ */

/* User-mode qemu counts no instructions: processor time. */
uint64_t qf_cycles(void) { return qf_clock(); }

uint64_t qf_work_count(void) { return qf_clock(); }

/* ---- stack --------------------------------------------------------------------------------------------- */

/* start.S: a page, the stack of QF_STACK_BYTES, its upper end. */
extern uint8_t qf_stack_guard[];
extern const uint32_t qf_stack[];

uint32_t qf_stack_bytes(uint32_t core) {
    (void)core;
    return QF_STACK_BYTES;
}

uint32_t qf_stack_used(uint32_t core) {
    uint32_t untouched = 0;
    (void)core;
    while (untouched < QF_STACK_BYTES / 4 && qf_stack[untouched] == STACK_PAINT) {
        untouched++;
    }
    return QF_STACK_BYTES - untouched * 4;
}

/* ---- signals ------------------------------------------------------------------------------------------- */

/* Linux's structures on 32-bit RISC-V, as far as they are used here. */
typedef struct {
    void (*handler)(int signal, const uint32_t *info, const uint32_t *context);
    uint32_t flags;
    uint32_t mask[2];
} sigaction_t;

typedef struct {
    void *base;
    int32_t flags;
    uint32_t bytes;
} sigaltstack_t;

enum {
    SIGILL = 4,
    SIGTRAP = 5,
    SIGBUS = 7,
    SIGFPE = 8,
    SIGSEGV = 11,
    INFO_ADDRESS = 3,   /* word of siginfo_t */
    CONTEXT_PC = 160 / 4 /* word of ucontext_t: uc_mcontext is aligned to 16 bytes and begins with pc */
};

static const char *signal_name(int signal) {
    switch (signal) {
    case SIGILL:
        return "SIGILL";
    case SIGTRAP:
        return "SIGTRAP";
    case SIGBUS:
        return "SIGBUS";
    case SIGFPE:
        return "SIGFPE";
    default:
        return "SIGSEGV";
    }
}

static void on_signal(int signal, const uint32_t *info, const uint32_t *context) {
    uint32_t address = info[INFO_ADDRESS];
    if (address - (uint32_t)(uintptr_t)qf_stack_guard < STACK_PAGE) {
        qf_print("stack overflow: core 0 used all ");
        qf_print_unsigned(QF_STACK_BYTES);
        qf_print(" bytes of its stack\n");
        qf_exit(QF_EXIT_STACK);
    }
    qf_print("trap: core 0: ");
    qf_print(signal_name(signal));
    qf_print(", pc ");
    qf_print_hex(context[CONTEXT_PC]);
    qf_print(", address ");
    qf_print_hex(address);
    qf_print("\n");
    qf_exit(QF_EXIT_TRAP);
}

static void catch_signals(void) {
    static const uint8_t signals[] = {SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV};
    static uint32_t signal_stack[1024] __attribute__((aligned(16)));
    sigaltstack_t alternative = {signal_stack, 0, sizeof signal_stack};
    sigaction_t action = {on_signal, SA_SIGINFO | SA_ONSTACK, {0, 0}};
    call(SYS_SIGALTSTACK, (intptr_t)&alternative, 0, 0, 0);
    for (size_t i = 0; i < sizeof signals; i++) {
        call(SYS_RT_SIGACTION, signals[i], (intptr_t)&action, 0, sizeof action.mask);
    }
}

/* `start`: what sp was at _start. */
void qf_start(intptr_t *start);

void qf_start(intptr_t *start) {
    catch_signals();
    if (call(SYS_MPROTECT, (intptr_t)qf_stack_guard, STACK_PAGE, PROT_NONE, 0) != 0) {
        qf_print("qemu: the page below the stack cannot be protected\n");
        qf_exit(1);
    }
    qf_exit(qf_main((int)start[0], (char **)(start + 1)));
}
