/* Calls one function of loops.S, `loops NAME A B`, on the last core, and prints its two results. */
#include "port.h"

#define FUNCTIONS(F)                                                                                           \
    F(single)                                                                                                  \
    F(outer_level)                                                                                             \
    F(immediate)                                                                                               \
    F(nested)                                                                                                  \
    F(twice)                                                                                                   \
    F(loads)                                                                                                   \
    F(stores)                                                                                                  \
    F(post_increment)                                                                                          \
    F(branches)                                                                                                \
    F(jumps)                                                                                                   \
    F(calls)                                                                                                   \
    F(reads_csr)                                                                                               \
    F(reads_counter)                                                                                           \
    F(fences)                                                                                                  \
    F(waits)                                                                                                   \
    F(asks)                                                                                                    \
    F(sleeps)                                                                                                  \
    F(loops_again)                                                                                             \
    F(loads_in_the_inner)                                                                                      \
    F(short_body)                                                                                              \
    F(too_close)                                                                                               \
    F(no_such_level)                                                                                           \
    F(short_instruction)                                                                                       \
    F(same_register)                                                                                           \
    F(long_field)

#define DECLARE(name) uint64_t name(uint32_t a, uint32_t b);
FUNCTIONS(DECLARE)

static const struct {
    const char *name;
    uint64_t (*function)(uint32_t, uint32_t);
} functions[] = {
#define ROW(name) {#name, name},
    FUNCTIONS(ROW)
#undef ROW
};

static uint64_t (*function)(uint32_t, uint32_t);
static uint32_t a, b;
static uint64_t result;

static void on_the_last(void *unused) {
    (void)unused;
    if (qf_core_id() == qf_num_cores() - 1) {
        result = function(a, b);
    }
}

static int equal(const char *x, const char *y) {
    for (; *x == *y; x++, y++) {
        if (*x == '\0') {
            return 1;
        }
    }
    return 0;
}

static uint32_t parse(const char *text) {
    uint32_t value = 0;
    for (; *text != '\0'; text++) {
        value = value * 10 + (uint32_t)(*text - '0');
    }
    return value;
}

int qf_main(int argc, char **argv) {
    for (uint32_t i = 0; argc == 4 && i < sizeof functions / sizeof functions[0]; i++) {
        if (equal(functions[i].name, argv[1])) {
            function = functions[i].function;
        }
    }
    if (function == NULL) {
        return 1;
    }
    a = parse(argv[2]);
    b = parse(argv[3]);
    qf_fork(on_the_last, NULL);
    qf_print_unsigned((uint32_t)result);
    qf_print(" ");
    qf_print_unsigned(result >> 32);
    return 0;
}
