/* Runs a generated network on the host: inputs and outputs as raw bytes in files.
 *
 *   runner INPUTS OUTPUTS REPEAT [TRACE]
 *
 * INPUTS holds the bytes of every input, one after the other in the order of network.h; OUTPUTS gets the outputs likewise.
 * The network runs REPEAT times; the seconds that each run took are printed, one to a line. In the checked build
 * (-DQFOLD_TRACE) the operands of every kernel call of the first run go to TRACE as records:
 *   0, symbol length (uint64 each), symbol                    a call
 *   1 + argument * 2 + after, bytes (uint64 each), bytes      an operand before or after it
 *
 * Exit codes: 0 good, 1 the network reported an error, 2 a file could not be read or written.
 */
#define _POSIX_C_SOURCE 200112L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "network.h"

static void fail(const char *what) {
    fprintf(stderr, "runner: %s\n", what);
    exit(2);
}

/* Memory of its own for every buffer, so that a sanitizer sees each one's bounds. */
static void *allocate(size_t bytes, size_t alignment) {
    void *p = NULL;
    if (posix_memalign(&p, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes ? bytes : 1) != 0) {
        fail("out of memory");
    }
    memset(p, 0xA5, bytes);
    return p;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#ifdef QFOLD_TRACE
static FILE *trace_file;

static void trace_record(uint64_t tag, const void *data, size_t bytes) {
    uint64_t head[2];
    head[0] = tag;
    head[1] = bytes;
    if (trace_file != NULL) {
        if (fwrite(head, sizeof head, 1, trace_file) != 1 || fwrite(data, 1, bytes, trace_file) != bytes) {
            fail("the trace cannot be written");
        }
    }
}

void qfold_trace_dispatch(const char *symbol);
void qfold_trace(int argument, int after, const void *data, size_t bytes);

void qfold_trace_dispatch(const char *symbol) { trace_record(0, symbol, strlen(symbol)); }

void qfold_trace(int argument, int after, const void *data, size_t bytes) {
    trace_record(1u + (uint64_t)argument * 2u + (uint64_t)after, data, bytes);
}
#endif

int main(int argc, char **argv) {
    net_t net;
    net_mem_t mem;
    net_in_t in;
    net_out_t out;
    FILE *file;
    long repeat;
    int status;

    if (argc < 4) {
        fail("usage: runner INPUTS OUTPUTS REPEAT [TRACE]");
    }
    repeat = strtol(argv[3], NULL, 10);
#ifdef QFOLD_TRACE
    if (argc > 4 && (trace_file = fopen(argv[4], "wb")) == NULL) {
        fail("the trace cannot be written");
    }
#endif

#define ALLOCATE_LEVEL(member, bytes, alignment) mem.member = allocate(bytes, alignment);
    NET_FOR_EACH_LEVEL(ALLOCATE_LEVEL)
    mem.weights = NULL;
    status = net_init(&net, &mem);
    if (status != NET_OK) {
        fprintf(stderr, "runner: net_init returned %d\n", status);
        return 1;
    }

    file = fopen(argv[1], "rb");
    if (file == NULL) {
        fail("the inputs cannot be read");
    }
#define READ_INPUT(index, member, type, elements)                                                              \
    {                                                                                                          \
        type *data = allocate((elements) * sizeof(type), sizeof(type));                                        \
        if (fread(data, sizeof(type), (elements), file) != (elements)) {                                       \
            fail("the inputs end early");                                                                      \
        }                                                                                                      \
        in.member = data;                                                                                      \
    }
    NET_FOR_EACH_IN(READ_INPUT)
    fclose(file);
#define ALLOCATE_OUTPUT(index, member, type, elements) out.member = allocate((elements) * sizeof(type), sizeof(type));
    NET_FOR_EACH_OUT(ALLOCATE_OUTPUT)

    for (long i = 0; i < repeat; i++) {
        double start = now();
        status = net_run(&net, &in, &out);
        if (status != NET_OK) {
            fprintf(stderr, "runner: net_run returned %d\n", status);
            return 1;
        }
        printf("%.9f\n", now() - start);
#ifdef QFOLD_TRACE
        if (trace_file != NULL) {
            if (fclose(trace_file) != 0) {
                fail("the trace cannot be written");
            }
            trace_file = NULL;
        }
#endif
    }

    file = fopen(argv[2], "wb");
    if (file == NULL) {
        fail("the outputs cannot be written");
    }
#define WRITE_OUTPUT(index, member, type, elements)                                                            \
    if (fwrite(out.member, sizeof(type), (elements), file) != (elements)) {                                    \
        fail("the outputs cannot be written");                                                                 \
    }                                                                                                          \
    free(out.member);
    NET_FOR_EACH_OUT(WRITE_OUTPUT)
    if (fclose(file) != 0) {
        fail("the outputs cannot be written");
    }
#define FREE_LEVEL(member, bytes, alignment) free(mem.member);
    NET_FOR_EACH_LEVEL(FREE_LEVEL)
#define FREE_INPUT(index, member, type, elements) free((void *)in.member);
    NET_FOR_EACH_IN(FREE_INPUT)
    return 0;
}
