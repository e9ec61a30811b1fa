/* Executes each function of `instructions` on every line of arguments: `instructions ARGUMENTS RESULTS`, files of uint32_t.
 *
 * A line of arguments is a, b, c; of results: what the function returns in a0, and a1. The functions get a0 = a, a1 = b, a2 = c, and a3 the
 * address of `memory`, whose contents are part of the results.
 */
#include "port.h"

typedef uint64_t function_t(uint32_t a, uint32_t b, uint32_t c, uint8_t *memory);
extern function_t *const instructions[];
extern const uint32_t instructions_count;

enum { LINES = 256, MEMORY = 32 };

static uint32_t arguments[LINES][3];
static struct {
    uint32_t a0, a1;
    uint8_t memory[MEMORY];
} result;
static uint8_t memory[MEMORY] __attribute__((aligned(16)));

int qf_main(int argc, char **argv) {
    int in = argc == 3 ? qf_file_open(argv[1], 0) : -1;
    int out = argc == 3 ? qf_file_open(argv[2], 1) : -1;
    ptrdiff_t bytes = qf_file_read(in, arguments, sizeof arguments);
    if (bytes <= 0) {
        return 1;
    }
    for (uint32_t i = 0; i < instructions_count; i++) {
        for (uint32_t line = 0; line < (uint32_t)bytes / sizeof arguments[0]; line++) {
            uint64_t pair;
            for (uint32_t j = 0; j < MEMORY; j++) {
                memory[j] = (uint8_t)(j * 37 + 129);
            }
            pair = instructions[i](arguments[line][0], arguments[line][1], arguments[line][2], memory);
            result.a0 = (uint32_t)pair;
            result.a1 = (uint32_t)(pair >> 32);
            for (uint32_t j = 0; j < MEMORY; j++) {
                result.memory[j] = memory[j];
            }
            if (qf_file_write(out, &result, sizeof result) != (ptrdiff_t)sizeof result) {
                return 1;
            }
        }
    }
    return qf_file_close(out);
}
