/* Runs a generated network, on every port: inputs and outputs as raw bytes in files.
 *
 *   runner INPUTS OUTPUTS REPEAT [TRACE] [COUNTS]
 *
 * INPUTS holds the bytes of every input, one after the other in the order of network.h; OUTPUTS gets the outputs likewise.
 * The network runs REPEAT times; what each run took is printed to QF_STDOUT, a line each: seconds with nine decimals, or a whole
 * number of cycles or instructions of core 0 where the port has no other clock. Every byte that the network does not get as an
 * input or a constant is 0xA5 before the first run.
 *
 * Built with -DQFOLD_TRACE, the operands of every kernel call of the first run go to TRACE as records of
 *   0, symbol length (uint64 each), symbol                    a call
 *   1 + argument * 2 + after, bytes (uint64 each), bytes      an operand before or after it
 *   ~0, symbol length (uint64 each), symbol                   a kernel that a staged dispatch calls
 *
 * Built with -DQFOLD_COUNT, what each core did in each dispatch (qf_count) goes to COUNTS, the last argument, as uint64s:
 *   "QFCOUNT1", dispatches, cores, runs
 *   runs times:  qf_cycles of core 0 over net_run; dispatches x cores counts
 *   cores times: bytes of its stack; how many of them were used (0 and 0 where the port does not know)
 * A count is what the core's qf_work_count went up by since the dispatch before, less what counting took.
 *
 * Exit codes: 0 good, 1 the network reported an error or does not fit, 2 a file could not be read or written, or wrong arguments.
 */
#include "port.h"

#include "network.h"

static void fail(int status, const char *what) {
    qf_print("runner: ");
    qf_print(what);
    qf_print("\n");
    qf_exit(status);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

#define AT_LEAST_ONE(n) ((n) > 0 ? (n) : 1)
#define ALIGNED __attribute__((aligned(64)))

/* Inputs and outputs have the alignment of their type, and the caller of a network owes it no more. */
#define DEFINE_INPUT(index, member, type, elements) static type input_##index[AT_LEAST_ONE(elements)];
#define DEFINE_OUTPUT(index, member, type, elements) static type output_##index[AT_LEAST_ONE(elements)];
/* Level l1 is the scratchpad where there is one, every other level an array. */
#define DEFINE_LEVEL(member, bytes, alignment) DEFINE_LEVEL_##member(bytes)
#define DEFINE_LEVEL_l1(bytes)
#define DEFINE_LEVEL_l2(bytes) static uint8_t level_l2[AT_LEAST_ONE(bytes)] ALIGNED;
#define DEFINE_LEVEL_l3(bytes) static uint8_t level_l3[AT_LEAST_ONE(bytes)] ALIGNED;

NET_FOR_EACH_IN(DEFINE_INPUT)
NET_FOR_EACH_OUT(DEFINE_OUTPUT)
NET_FOR_EACH_LEVEL(DEFINE_LEVEL)

static void fill(void *memory, size_t bytes) {
    uint8_t *p = memory;
    for (size_t i = 0; i < bytes; i++) {
        p[i] = 0xA5;
    }
}

/* ---- files --------------------------------------------------------------------------------------------- */

static void read_all(int file, void *data, size_t bytes) {
    uint8_t *p = data;
    while (bytes > 0) {
        ptrdiff_t done = qf_file_read(file, p, bytes);
        if (done <= 0) {
            fail(2, "the inputs end early");
        }
        p += done;
        bytes -= (size_t)done;
    }
}

static void write_all(int file, const void *data, size_t bytes, const char *what) {
    const uint8_t *p = data;
    while (bytes > 0) {
        ptrdiff_t done = qf_file_write(file, p, bytes);
        if (done <= 0) {
            fail(2, what);
        }
        p += done;
        bytes -= (size_t)done;
    }
}

static int create(const char *path, const char *what) {
    int file = qf_file_open(path, 1);
    if (file < 0) {
        fail(2, what);
    }
    return file;
}

static void close_written(int file, const char *what) {
    if (qf_file_close(file) != 0) {
        fail(2, what);
    }
}

static const char outputs_fail[] = "the outputs cannot be written";

/* ---- -DQFOLD_TRACE ------------------------------------------------------------------------------------- */

#ifdef QFOLD_TRACE
static const char trace_fails[] = "the trace cannot be written";
static int trace_file = -1;

static void trace_record(uint64_t tag, const void *data, size_t bytes) {
    if (trace_file >= 0) {
        uint64_t head[2];
        head[0] = tag;
        head[1] = bytes;
        write_all(trace_file, head, sizeof head, trace_fails);
        write_all(trace_file, data, bytes, trace_fails);
    }
}

void qfold_trace_dispatch(const char *symbol);
void qfold_trace_leaf(const char *symbol);
void qfold_trace(int argument, int after, const void *data, size_t bytes);

static void trace_symbol(uint64_t tag, const char *symbol) {
    size_t length = 0;
    while (symbol[length] != '\0') {
        length++;
    }
    trace_record(tag, symbol, length);
}

void qfold_trace_dispatch(const char *symbol) { trace_symbol(0, symbol); }

void qfold_trace_leaf(const char *symbol) { trace_symbol(UINT64_MAX, symbol); }

void qfold_trace(int argument, int after, const void *data, size_t bytes) {
    trace_record(1u + (uint64_t)argument * 2u + (uint64_t)after, data, bytes);
}
#endif

/* ---- -DQFOLD_COUNT ------------------------------------------------------------------------------------- */

#ifdef QFOLD_COUNT
#ifndef NET_DISPATCH_COUNT
#error "network.h does not say NET_DISPATCH_COUNT"
#endif
static const char counts_fail[] = "the counts cannot be written";
static uint32_t counts[AT_LEAST_ONE(NET_DISPATCH_COUNT)][QF_CORES];
static uint64_t counted[QF_CORES]; /* qf_work_count when counting was last done */

static void count_from_here(void *unused) {
    (void)unused;
    counted[qf_core_id()] = qf_work_count();
}

void qf_count(uint32_t dispatch, uint64_t work) {
    uint32_t core = qf_core_id();
    uint64_t more = work - counted[core] + counts[dispatch][core];
    counts[dispatch][core] = more < UINT32_MAX ? (uint32_t)more : UINT32_MAX;
    counted[core] = qf_work_count();
}

static void write_count(int file, uint64_t value) { write_all(file, &value, sizeof value, counts_fail); }

static int begin_counts(const char *path, uint64_t runs) {
    int file = create(path, counts_fail);
    write_all(file, "QFCOUNT1", 8, counts_fail);
    write_count(file, NET_DISPATCH_COUNT);
    write_count(file, QF_CORES);
    write_count(file, runs);
    return file;
}

static void write_run(int file, uint64_t elapsed) {
    write_count(file, elapsed);
    for (uint32_t dispatch = 0; dispatch < NET_DISPATCH_COUNT; dispatch++) {
        for (uint32_t core = 0; core < QF_CORES; core++) {
            write_count(file, counts[dispatch][core]);
            counts[dispatch][core] = 0;
        }
    }
}

static void end_counts(int file) {
    for (uint32_t core = 0; core < QF_CORES; core++) {
        write_count(file, qf_stack_bytes(core));
        write_count(file, qf_stack_used(core));
    }
    close_written(file, counts_fail);
}
#endif

/* ---- runs ---------------------------------------------------------------------------------------------- */

static uint32_t parse_repeat(const char *text) {
    uint32_t value = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9' && value < 100000000; p++) {
        value = value * 10 + (uint32_t)(*p - '0');
    }
    if (p == text || *p != '\0') {
        fail(2, "REPEAT is a number");
    }
    return value;
}

static void print_time(uint64_t ticks) {
    char text[QF_DECIMAL_SIZE + 2];
    size_t length;
    if (qf_clock_per_second == 1000000000u) {
        /* Ten digits at least: the last nine are decimals. */
        length = qf_decimal(text, ticks, 10) + 1;
        for (size_t i = length - 1; i > length - 10; i--) {
            text[i] = text[i - 1];
        }
        text[length - 10] = '.';
    } else {
        length = qf_decimal(text, ticks, 1);
    }
    text[length++] = '\n';
    write_all(QF_STDOUT, text, length, outputs_fail);
}

static void fail_status(const char *function, int status) {
    qf_print("runner: ");
    qf_print(function);
    qf_print(" returned ");
    qf_print_unsigned((uint64_t)status);
    qf_print("\n");
    qf_exit(1);
}

int qf_main(int argc, char **argv) {
    net_t net;
    net_mem_t mem;
    net_in_t in;
    net_out_t out;
    uint32_t repeat;
    int file;
    int status;
#ifdef QFOLD_COUNT
    int counts_file;
#endif

    if (argc < 4) {
        fail(2, "usage: runner INPUTS OUTPUTS REPEAT [TRACE] [COUNTS]");
    }
    repeat = parse_repeat(argv[3]);
#ifdef QFOLD_TRACE
    if (argc > 4) {
        trace_file = create(argv[4], trace_fails);
    }
#endif
#ifdef QFOLD_COUNT
    if (argc < 5) {
        fail(2, "a build that counts takes the name of a file for the counts as its last argument");
    }
    counts_file = begin_counts(argv[argc - 1], repeat);
#endif

#define SET_LEVEL(member, bytes, alignment) SET_LEVEL_##member(bytes)
#define SET_LEVEL_l1(bytes)                                                                                    \
    if ((bytes) > qf_l1_bytes()) {                                                                             \
        fail(1, "the network needs more of L1 than there is");                                                 \
    }                                                                                                          \
    mem.l1 = qf_l1_base();                                                                                     \
    fill(mem.l1, bytes);
#define SET_LEVEL_l2(bytes)                                                                                    \
    mem.l2 = level_l2;                                                                                         \
    fill(level_l2, bytes);
#define SET_LEVEL_l3(bytes)                                                                                    \
    mem.l3 = level_l3;                                                                                         \
    fill(level_l3, bytes);
    NET_FOR_EACH_LEVEL(SET_LEVEL)
    mem.weights = NULL;
    status = net_init(&net, &mem);
    if (status != NET_OK) {
        fail_status("net_init", status);
    }

    file = qf_file_open(argv[1], 0);
    if (file < 0) {
        fail(2, "the inputs cannot be read");
    }
#define READ_INPUT(index, member, type, elements)                                                              \
    read_all(file, input_##index, (elements) * sizeof(type));                                                  \
    in.member = input_##index;
    NET_FOR_EACH_IN(READ_INPUT)
    qf_file_close(file);
#define SET_OUTPUT(index, member, type, elements)                                                              \
    fill(output_##index, (elements) * sizeof(type));                                                           \
    out.member = output_##index;
    NET_FOR_EACH_OUT(SET_OUTPUT)

    for (uint32_t run = 0; run < repeat; run++) {
        uint64_t start;
#ifdef QFOLD_COUNT
        uint64_t cycles;
        qf_fork(count_from_here, NULL);
        cycles = qf_cycles();
#endif
        start = qf_clock();
        status = net_run(&net, &in, &out);
        start = qf_clock() - start;
#ifdef QFOLD_COUNT
        cycles = qf_cycles() - cycles;
        write_run(counts_file, cycles);
#endif
        if (status != NET_OK) {
            fail_status("net_run", status);
        }
        print_time(start);
#ifdef QFOLD_TRACE
        if (trace_file >= 0) {
            close_written(trace_file, trace_fails);
            trace_file = -1;
        }
#endif
    }

    file = create(argv[2], outputs_fail);
#define WRITE_OUTPUT(index, member, type, elements)                                                            \
    write_all(file, out.member, (elements) * sizeof(type), outputs_fail);
    NET_FOR_EACH_OUT(WRITE_OUTPUT)
    close_written(file, outputs_fail);
#ifdef QFOLD_COUNT
    end_counts(counts_file);
#endif
    return 0;
}
